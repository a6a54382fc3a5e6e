// The lengths of images that convolutions and pools make, which they round, and what the host
// refuses of ops over images: those sizes of a call that do not follow from equal ones.
#pragma once

#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>
#include <vector>

namespace tenon {

// What equal sizes do not tell of an op, by the name that the table of ops has for it.
struct SizeRule {
  std::string_view name;
  bool (*allows)(c10::ArrayRef<c10::IValue>) = nullptr;
  std::vector<int64_t> (*more)(c10::ArrayRef<c10::IValue>) = nullptr;
};

std::span<const SizeRule> image_size_rules();

}  // namespace tenon
