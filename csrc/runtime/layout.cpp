#include "runtime/layout.h"

#include <algorithm>

namespace tenon {

size_t item_size(DType dtype) {
  // Quantised numbers (12 to 14, 16 and 17) are none of ours.
  static constexpr uint8_t kSizes[46] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 0, 0, 0, 2,
                                         0, 0, 1, 1, 1, 1, 2, 1, 1, 1, 1,  2, 4, 8, 1, 1,
                                         1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,  1, 1, 1};
  const auto number = static_cast<int>(dtype);
  return number >= 0 && number < static_cast<int>(kNoDType) ? kSizes[number] : 0;
}

std::optional<size_t> storage_bytes(const TensorLayout& layout) {
  constexpr size_t kMostDimensions = 64;
  const auto& sizes = layout.sizes;
  const auto& strides = layout.strides;
  const auto itemsize = static_cast<int64_t>(item_size(layout.dtype));
  if (sizes.size() != strides.size() || sizes.size() > kMostDimensions || layout.offset < 0 ||
      layout.offset > kMostTensorBytes || itemsize == 0)
    return std::nullopt;
  int64_t last = layout.offset;  // the element that lies furthest behind
  bool empty = false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < 0 || strides[d] < 0)
      return std::nullopt;
    empty = empty || sizes[d] == 0;
    int64_t reach = 0;
    if (sizes[d] > 0 && (__builtin_mul_overflow(sizes[d] - 1, strides[d], &reach) ||
                         __builtin_add_overflow(last, reach, &last)))
      return std::nullopt;
  }
  if (empty)
    return 0;
  if (last >= kMostTensorBytes / itemsize)
    return std::nullopt;
  return static_cast<size_t>((last + 1) * itemsize);
}

bool is_sound(const TensorLayout& layout) {
  return storage_bytes(layout) == layout.nbytes;
}

std::optional<std::vector<int64_t>> dense_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t elements = 1;
  for (auto d = sizes.size(); d-- > 0;) {
    strides[d] = elements;
    if (__builtin_mul_overflow(elements, std::max<int64_t>(sizes[d], 1), &elements))
      return std::nullopt;
  }
  return strides;
}

}  // namespace tenon
