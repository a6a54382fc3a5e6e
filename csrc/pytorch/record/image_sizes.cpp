#include "record/op_sizes.h"

#include <ATen/core/Tensor.h>
#include <ATen/native/Pool.h>

#include <algorithm>

namespace tenon {
namespace {

using Arguments = c10::ArrayRef<c10::IValue>;

// How often a window of `size` elements that are `dilation` apart fits, every `stride` elements.
int64_t count_of_windows(
    int64_t length, int64_t size, int64_t stride, int64_t padding, int64_t dilation, bool ceil) {
  if (stride <= 0 || length + 2 * padding < dilation * (size - 1) + 1)
    return 0;
  return at::native::pooling_output_shape_pad_lr(
      length, size, padding, padding, stride, dilation, ceil);
}

// A list without numbers, which the host refuses, has zeros.
int64_t at_or_last(const std::vector<int64_t>& numbers, size_t k) {
  return numbers.empty() ? 0 : numbers[std::min(k, numbers.size() - 1)];
}

bool all_positive(const std::vector<int64_t>& lengths) {
  return std::all_of(lengths.begin(), lengths.end(), [](auto length) { return length > 0; });
}

bool ends_with(const at::Tensor& tensor, const std::vector<int64_t>& lengths) {
  const auto sizes = tensor.sizes();
  return sizes.size() >= lengths.size() &&
         std::equal(lengths.begin(), lengths.end(), sizes.end() - lengths.size());
}

// Arguments: input, weight, bias or its sizes, stride, padding, dilation, transposed, output
// padding, groups. The lengths of the image, none for one of another rank.
std::vector<int64_t> convolved(Arguments arguments) {
  const auto& input = arguments[0].toTensor();
  const auto& weight = arguments[1].toTensor();
  if (input.dim() != weight.dim())
    return {};
  const auto stride = arguments[3].toIntVector(), padding = arguments[4].toIntVector();
  const auto dilation = arguments[5].toIntVector(), beyond = arguments[7].toIntVector();
  std::vector<int64_t> lengths;
  for (int64_t d = 2; d < input.dim(); ++d) {
    const auto k = static_cast<size_t>(d - 2);
    const auto s = at_or_last(stride, k), p = at_or_last(padding, k);
    const auto apart = at_or_last(dilation, k), size = weight.size(d);
    if (arguments[6].toBool()) {
      const auto made = (input.size(d) - 1) * s - 2 * p + apart * (size - 1) + 1;
      lengths.push_back(std::max<int64_t>(made + at_or_last(beyond, k), 0));
    } else {
      lengths.push_back(count_of_windows(input.size(d), size, s, p, apart, false));
    }
  }
  return lengths;
}

bool allows_convolution(Arguments arguments) {
  const auto& input = arguments[0].toTensor();
  const auto& weight = arguments[1].toTensor();
  const auto groups = arguments[8].toInt();
  const bool transposed = arguments[6].toBool();
  if (input.dim() != weight.dim() || input.dim() < 3 || groups <= 0)
    return false;
  const auto taken = weight.size(transposed ? 0 : 1) * (transposed ? 1 : groups);
  const auto made = weight.size(transposed ? 1 : 0) * (transposed ? groups : 1);
  if (input.size(1) != taken || (transposed ? taken : made) % groups != 0)
    return false;
  if (arguments[2].isTensor()) {
    const auto& bias = arguments[2].toTensor();
    if (bias.defined() && (bias.dim() != 1 || bias.size(0) != made))
      return false;
  }
  return all_positive(convolved(arguments));
}

bool allows_convolution_backward(Arguments arguments) {
  const auto& grad = arguments[0].toTensor();
  const auto forward = arguments.slice(1);
  if (!allows_convolution(forward) || grad.dim() != forward[0].toTensor().dim())
    return false;
  const auto& weight = forward[1].toTensor();
  const auto made = forward[6].toBool() ? weight.size(1) * forward[8].toInt() : weight.size(0);
  return grad.size(0) == forward[0].toTensor().size(0) && grad.size(1) == made &&
         ends_with(grad, convolved(forward));
}

// Arguments: input, size, stride, padding, the dilation of one that has it, whether to round up.
template <int64_t rank, bool dilated>
std::vector<int64_t> pooled(Arguments arguments) {
  const auto& input = arguments[0].toTensor();
  const auto size = arguments[1].toIntVector();
  const auto given = arguments[2].toIntVector();
  const auto &stride = given.empty() ? size : given, padding = arguments[3].toIntVector();
  const auto dilation = dilated ? arguments[4].toIntVector() : std::vector<int64_t>{1};
  const auto ceil = arguments[dilated ? 5 : 4].toBool();
  std::vector<int64_t> lengths;
  for (int64_t k = 0; k < rank && input.dim() >= rank; ++k) {
    lengths.push_back(count_of_windows(
        input.size(input.dim() - rank + k),
        at_or_last(size, k),
        at_or_last(stride, k),
        at_or_last(padding, k),
        at_or_last(dilation, k),
        ceil));
  }
  return lengths;
}

template <int64_t rank, bool dilated>
bool allows_pool(Arguments arguments) {
  return all_positive(pooled<rank, dilated>(arguments));
}

template <int64_t rank, bool dilated>
bool allows_pool_backward(Arguments arguments) {
  const auto forward = arguments.slice(1);
  return allows_pool<rank, dilated>(forward) &&
         ends_with(arguments[0].toTensor(), pooled<rank, dilated>(forward));
}

// Arguments: image, padding from the last dimension on, some of it negative maybe. What is
// reflected is more than the padding. The lengths that are made, none for what the host refuses.
template <bool reflects>
std::vector<int64_t> padded(Arguments arguments) {
  const auto sizes = arguments[0].toTensor().sizes();
  const auto padding = arguments[1].toIntVector();
  auto lengths = sizes.vec();
  if (2 * lengths.size() < padding.size())
    return {};
  for (size_t k = 0; k < padding.size(); ++k) {
    const auto d = lengths.size() - 1 - k / 2;
    if (sizes[d] < 1 || (reflects && padding[k] >= sizes[d]))
      return {};
    lengths[d] += padding[k];
  }
  for (size_t d = lengths.size() - (padding.size() + 1) / 2; d < lengths.size(); ++d) {
    if (lengths[d] < 1)
      return {};
  }
  return lengths;
}

template <bool reflects>
bool allows_padding(Arguments arguments) {
  return !padded<reflects>(arguments).empty();
}

template <bool reflects>
bool allows_padding_backward(Arguments arguments) {
  const auto lengths = padded<reflects>(arguments.slice(1));
  return !lengths.empty() && arguments[0].toTensor().sizes() == c10::IntArrayRef(lengths);
}

// Arguments: tensor, padding from the last dimension on. What is cut off on both sides is there,
// whatever is added on the other.
bool allows_constant_padding(Arguments arguments) {
  const auto sizes = arguments[0].toTensor().sizes();
  const auto padding = arguments[1].toIntVector();
  if (2 * sizes.size() < padding.size() || padding.size() % 2 != 0)
    return false;
  for (size_t k = 0; k < padding.size(); k += 2) {
    const auto cut = std::min<int64_t>(padding[k], 0) + std::min<int64_t>(padding[k + 1], 0);
    if (sizes[sizes.size() - 1 - k / 2] + cut < 0)
      return false;
  }
  return true;
}

// Arguments from the image on: what else there is, N, C, HxW, groups.
template <size_t self>
bool allows_group_norm(Arguments arguments) {
  const auto& image = arguments[self].toTensor();
  const auto numbers = arguments.slice(self == 0 ? 3 : 5);
  const auto batch = numbers[0].toInt(), channels = numbers[1].toInt(), length = numbers[2].toInt();
  const auto groups = numbers[3].toInt();
  return image.numel() == batch * channels * length && groups > 0 && channels % groups == 0;
}

constexpr SizeRule kImageRules[] = {
    {"group_norm", allows_group_norm<0>},
    {"group_norm_backward", allows_group_norm<1>},
    {"convolution", allows_convolution, convolved},
    {"convolution_backward", allows_convolution_backward},
    {"max_pool2d", allows_pool<2, true>, pooled<2, true>},
    {"max_pool3d", allows_pool<3, true>, pooled<3, true>},
    {"avg_pool2d", allows_pool<2, false>, pooled<2, false>},
    {"avg_pool3d", allows_pool<3, false>, pooled<3, false>},
    {"max_pool2d_backward", allows_pool_backward<2, true>},
    {"max_pool3d_backward", allows_pool_backward<3, true>},
    {"avg_pool2d_backward", allows_pool_backward<2, false>},
    {"avg_pool3d_backward", allows_pool_backward<3, false>},
    {"constant_pad", allows_constant_padding},
    {"reflection_pad", allows_padding<true>},
    {"replication_pad", allows_padding<false>},
    {"reflection_pad_backward", allows_padding_backward<true>},
    {"replication_pad_backward", allows_padding_backward<false>},
};

}  // namespace

std::span<const SizeRule> image_size_rules() {
  return kImageRules;
}

}  // namespace tenon
