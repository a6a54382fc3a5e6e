// The lengths of images that convolutions and pools make, which they round, and what the host
// refuses of ops over images: those sizes of a call that do not follow from equal ones.
#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace tenon {

using Arguments = c10::ArrayRef<c10::IValue>;

std::vector<int64_t> convolved(Arguments arguments);
bool allows_convolution(Arguments arguments);
bool allows_convolution_backward(Arguments arguments);

// Over the last `rank` dimensions, with a dilation or without.
template <int64_t rank, bool dilated>
std::vector<int64_t> pooled(Arguments arguments);
template <int64_t rank, bool dilated>
bool allows_pool(Arguments arguments);
template <int64_t rank, bool dilated>
bool allows_pool_backward(Arguments arguments);

// `reflects`: what is added is the image's own elements in the other order.
template <bool reflects>
bool allows_padding(Arguments arguments);
template <bool reflects>
bool allows_padding_backward(Arguments arguments);

// `self` is the place of the image among the arguments.
template <size_t self>
bool allows_group_norm(Arguments arguments);

}  // namespace tenon
