// What comes from a file is checked before it is used: layouts of tensors, and claims about sizes.
#pragma once

#include <optional>

#include "record/layout.h"
#include "record/sizes.h"

namespace tenon {

// No memory has more bytes: what is added to such a number fits.
constexpr int64_t kMostTensorBytes = int64_t{1} << 46;

// The bytes of a storage that holds a tensor; none where no tensor is so.
std::optional<size_t> storage_bytes(const TensorLayout& layout);
// Whether there is such a tensor, and the layout says how many bytes it takes.
bool is_sound(const TensorLayout& layout);

// Whether a claim holds for its own example.
bool is_sound(const SizeClaim& claim);

}  // namespace tenon
