#include "runtime/layout.h"

#include <algorithm>
#include <iterator>

#include "runtime/error.h"

namespace tenon {

namespace {

// By PyTorch's numbers: names, which torch_tenon/runtime/dtypes.py has for Python, and bytes of an
// element. Quantised numbers are none of ours, and have none.
constexpr std::string_view kNames =
    "uint8,int8,int16,int32,int64,float16,float32,float64,complex32,complex64,complex128,bool,"
    "qint8,quint8,qint32,bfloat16,quint4x2,quint2x4,bits1x8,bits2x4,bits4x2,bits8,bits16,"
    "float8_e5m2,float8_e4m3fn,float8_e5m2fnuz,float8_e4m3fnuz,uint16,uint32,uint64,"
    "uint1,uint2,uint3,uint4,uint5,uint6,uint7,int1,int2,int3,int4,int5,int6,int7,"
    "float8_e8m0fnu,float4_e2m1fn_x2";
constexpr uint8_t kSizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 0, 0, 0, 2, 0, 0, 1, 1, 1, 1, 2,
                              1, 1, 1, 1, 2, 4, 8, 1, 1, 1, 1,  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static_assert(std::size(kSizes) == static_cast<size_t>(kNoDType));

bool is_dtype(DType dtype) {
  return dtype >= DType{0} && dtype < kNoDType;
}

}  // namespace

size_t item_size(DType dtype) {
  return is_dtype(dtype) ? kSizes[static_cast<size_t>(dtype)] : 0;
}

std::string name_of(DType dtype) {
  auto number = static_cast<int>(dtype);
  if (!is_dtype(dtype))
    return text_of("dtype {}", number);
  auto left = kNames;
  for (; number > 0; --number)
    left.remove_prefix(left.find(',') + 1);
  return text_of("torch.{}", left.substr(0, left.find(',')));
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
