// Which sizes of a call the sizes of its results follow from: what may differ between two calls of
// which one tells of the other.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "record/op_rules.h"

namespace tenon {

// What of an argument may differ.
enum class Differing : uint8_t {
  kNothing,  // a choice: a dimension, a padding, a count of digits
  kBatch,  // the first dimension of a tensor: the others are rounded, as by a pool, or have to fit
  kSizes,  // all sizes and strides of a tensor, a whole number that is a size
};

struct OpSizes {
  // Whether what some calls show of their sizes may be taken to hold for others: wherever what was
  // equal in those is equal, and what was the same is the same. Neither a size that is rounded nor
  // an error that depends on more than equal sizes is shown so.
  bool follow = false;
  std::vector<Differing> arguments;
  // Whether the host takes these arguments, where equal sizes are not all that matters; null: it
  // does.
  bool (*allows)(c10::ArrayRef<c10::IValue> arguments) = nullptr;
  // More sizes that those of the results may follow from; null: there are none.
  std::vector<int64_t> (*more)(c10::ArrayRef<c10::IValue> arguments) = nullptr;
};

OpSizes sizes_of(const c10::OperatorHandle& op, const OpRule& rule);
// What equal sizes do not tell of an op, by the name that the table of ops has for it.
struct SizeRule {
  std::string_view name;
  bool (*allows)(c10::ArrayRef<c10::IValue>) = nullptr;
  std::vector<int64_t> (*more)(c10::ArrayRef<c10::IValue>) = nullptr;
};

// ... of ops over images (record/image_sizes.cpp): the lengths that convolutions and pools make,
// which they round, and what the host refuses of them.
std::span<const SizeRule> image_size_rules();
// What the table of ops may name as `size_rule`.
std::vector<std::string> size_rules();

}  // namespace tenon
