// Calls of ops on host tensors, with results in memory that is there for them: what is no kernel in
// a plan, and every call of a window that runs by reference.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

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

// Host memory that somebody else keeps, as a storage.
c10::Storage borrowed(void* data, size_t nbytes);

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

// The argument on the host, with the tensors and numbers (like `value`) that come next.
c10::IValue host_argument(
    const ArgumentPlan& plan,
    c10::function_ref<at::Tensor()> tensor,
    c10::function_ref<c10::IValue(const c10::IValue&)> number);

// A result that a call was promised to make: in memory at `place`, or in its own where there is
// none. Without a layout nobody wants it.
struct Promise {
  const TensorLayout* layout = nullptr;
  void* place = nullptr;
};

// Calls an op on host tensors, below autograd. What it allocates is memory of `device` (-1: of the
// host), and the promised places where the sizes fit.
void call_on_host(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    c10::DeviceIndex device,
    c10::ArrayRef<Promise> promises = {});

// Moves and copies results of that call which did not come as promised. After it those without a
// place lie at the start of a storage that nobody else has; what was passed to the call has to
// live until then. Raises where sizes or dtypes differ.
void keep_promises(
    const c10::OperatorHandle& op,
    std::vector<at::Tensor>& results,
    c10::DeviceIndex device,
    c10::ArrayRef<Promise> promises);

}  // namespace tenon
