// Where a tensor's elements lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tenon {

// PyTorch's numbers of dtypes (c10::ScalarType).
enum class DType : int8_t {};
constexpr DType kNoDType{46};  // `Undefined`

// Bytes of an element; 0 for a number that is no dtype, or one of quantised numbers.
size_t item_size(DType dtype);
// PyTorch's name of a dtype, or its number where it is none.
std::string name_of(DType dtype);

struct TensorLayout {
  DType dtype = kNoDType;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // elements
  size_t nbytes = 0;   // of a storage that holds it
  bool differentiable = false;
  bool wrapped_number = false;  // a number of Python's
};

// No memory has more bytes: what is added to such a number fits.
constexpr int64_t kMostTensorBytes = int64_t{1} << 46;

// The bytes of a storage that holds a tensor; none where no tensor is so.
std::optional<size_t> storage_bytes(const TensorLayout& layout);
// Whether there is such a tensor, and the layout says how many bytes it takes.
bool is_sound(const TensorLayout& layout);
// The strides of a tensor without gaps; none where its elements are too many.
std::optional<std::vector<int64_t>> dense_strides(const std::vector<int64_t>& sizes);

}  // namespace tenon
