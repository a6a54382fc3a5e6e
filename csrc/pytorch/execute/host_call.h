// Calls of ops on host tensors, with results in memory that is there for them: what is no kernel in
// a plan, and every call of a window that runs by reference.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <vector>

#include "record/layout.h"
#include "runtime/plan.h"

namespace tenon {

// Host memory that somebody else keeps, as a storage.
c10::Storage borrowed(void* data, size_t nbytes);

// Copies back what a call wrote to an argument that lay at `place` and lies elsewhere now: some
// kernels make an `out=` larger on their way to a result that fits (`mse_loss.out` with a mean).
// Raises where it does not fit.
void put_back(const at::Tensor& written, const TensorLayout& layout, void* place);

// The argument on the host, with the tensors and numbers (like `value`) that come next.
c10::IValue host_argument(
    const ArgumentPlan& plan,
    c10::function_ref<at::Tensor()> tensor,
    c10::function_ref<c10::IValue(const c10::IValue&)> number);

// Where a result of a call has to be: in memory at `place`, or in its own where there is none.
// Without a layout nobody wants it.
struct ResultPlace {
  const TensorLayout* layout = nullptr;
  void* place = nullptr;
};

// Calls an op on host tensors, as the thread is (see NeutralThread). What it allocates is memory of
// `device` (-1: of the host), and the given places where the sizes fit.
void call_on_host(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    c10::DeviceIndex device,
    c10::ArrayRef<ResultPlace> places = {});

// Moves and copies results of that call which are not where they have to be. After it those without
// a place lie at the start of a storage that nobody else has; what was passed to the call has to
// live until then. Raises where sizes or dtypes differ.
void place_results(
    const c10::OperatorHandle& op,
    std::vector<at::Tensor>& results,
    c10::DeviceIndex device,
    c10::ArrayRef<ResultPlace> places);

// What a call of a plan is to the device.
struct ResolvedCall {
  c10::OperatorHandle op;
  std::vector<ArgumentPlan> arguments;  // in the schema's order
  bool may_keep = false;                // whether its kernel may hold on to what it is given
};

bool takes_generator(const c10::Argument& argument);

// Finds the op of a plan's call, with its arguments. Raises where there is none, or where it takes
// no such arguments.
void resolve_call(CallStep& step);
// Raises for an op that opens files, which no plan from a file may call.
void check_opens_no_file(const c10::OperatorHandle& op);
inline const ResolvedCall& resolved(const CallStep& step) {
  return *static_cast<const ResolvedCall*>(step.resolved.get());
}

// Calls a step's op on the host, over the given memory of its tensors. `places` are where its
// results go (null: in memory of their own). A kernel that may hold on to its arguments gets copies
// of those that nothing keeps: `keepers` are by tensor, or none.
std::vector<at::Tensor> call_over(
    const CallStep& step,
    std::span<void* const> tensors,
    std::span<void* const> places,
    c10::DeviceIndex device,
    c10::ArrayRef<c10::Storage> keepers = {});

}  // namespace tenon
