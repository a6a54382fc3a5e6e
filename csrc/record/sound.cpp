#include "record/sound.h"

#include <algorithm>

namespace tenon {

std::optional<size_t> storage_bytes(const TensorLayout& layout) {
  constexpr size_t kMostDimensions = 64;
  const auto& [dtype, sizes, strides, offset, nbytes, differentiable, wrapped] = layout;
  if (sizes.size() != strides.size() || sizes.size() > kMostDimensions || offset < 0 ||
      offset > kMostTensorBytes || dtype == at::ScalarType::Undefined || c10::isQIntType(dtype))
    return std::nullopt;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t last = offset;  // the element that lies furthest behind
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

bool is_sound(const SizeClaim& claim) {
  const auto is_place = [&](auto place) { return place < claim.numbers.size(); };
  return claim.seen.size() == claim.numbers.size() &&
         std::all_of(claim.symbols.begin(), claim.symbols.end(), is_place) &&
         std::all_of(
             claim.reasons.begin(),
             claim.reasons.end(),
             [&](const auto& reason) { return is_place(reason.place); }) &&
         claim.symbols_of(claim.seen).has_value();
}

}  // namespace tenon
