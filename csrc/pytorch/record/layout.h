// What is known of a call's tensors and arguments without their memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

#include "runtime/layout.h"

namespace tenon {

TensorLayout layout_of(const at::Tensor& tensor);

inline at::ScalarType scalar_type(const TensorLayout& layout) {
  return static_cast<at::ScalarType>(layout.dtype);
}

// A tensor of the storage's device over it, `start` elements behind the layout's offset.
at::Tensor tensor_over(c10::Storage storage, const TensorLayout& layout, int64_t start = 0);

// The tensors of a result that is one, or a list of them.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

// A value with `f` of each tensor in it.
template <class F>
c10::IValue map_tensors(const c10::IValue& value, F&& f) {
  if (value.isTensor())
    return f(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& t : value.toTensorList())
      mapped.push_back(f(t));
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor> t : value.toOptionalTensorList())
      mapped.push_back(t ? std::optional(f(*t)) : std::nullopt);
    return mapped;
  }
  // TorchScript makes lists of optional tensors whose type is another object than the dispatcher's.
  if (value.isList() && value.toList().elementType()->isSubtypeOf(
                            *c10::OptionalType::create(c10::TensorType::get()))) {
    c10::impl::GenericList mapped(value.toList().elementType());
    for (const c10::IValue& element : value.toListRef())
      mapped.push_back(map_tensors(element, f));
    return mapped;
  }
  return value;
}

// An argument of a call that is known but for its memory: a constant, a tensor, a number that is
// given when the call runs, or a list of these.
struct ArgumentPlan {
  enum Kind { constant, tensor, number, list } kind = constant;
  // A constant: itself; a number: a tensor or number of the same dtype; a list: an empty one.
  c10::IValue value;
  std::vector<ArgumentPlan> elements;
};

}  // namespace tenon
