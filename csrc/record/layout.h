// What is known of a call's tensors and arguments without their memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

namespace tenon {

struct TensorLayout {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // elements
  size_t nbytes = 0;   // of a storage that holds it
  bool differentiable = false;
  bool wrapped_number = false;

  static TensorLayout of(const at::Tensor& tensor);
};

// A tensor of the storage's device over it, `start` elements behind the layout's offset.
at::Tensor tensor_over(c10::Storage storage, const TensorLayout& layout, int64_t start = 0);

// The tensors of a result that is one, or a list of them.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

// An argument of a call that is known but for its memory: a constant, a tensor, a number that is
// given when the call runs, or a list of these.
struct ArgumentPlan {
  enum Kind { constant, tensor, number, list } kind = constant;
  // A constant: itself; a number: a tensor or number of the same dtype; a list: an empty one.
  c10::IValue value;
  std::vector<ArgumentPlan> elements;
};

}  // namespace tenon
