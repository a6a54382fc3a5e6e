// Reference execution: one op, run by PyTorch's CPU kernel on host views of its arguments. The
// yardstick for every compiled plan, and the route of every op that has no other.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tenon {

// The keys of the device, each with the host's for the same layout.
constexpr std::pair<c10::DispatchKey, c10::DispatchKey> kKeys[] = {
    {c10::DispatchKey::PrivateUse1, c10::DispatchKey::CPU},
    {c10::DispatchKey::SparsePrivateUse1, c10::DispatchKey::SparseCPU},
    {c10::DispatchKey::SparseCsrPrivateUse1, c10::DispatchKey::SparseCsrCPU},
    {c10::DispatchKey::QuantizedPrivateUse1, c10::DispatchKey::QuantizedCPU},
    {c10::DispatchKey::NestedTensorPrivateUse1, c10::DispatchKey::NestedTensorCPU}};

// What a schema does not say of an op (see the fields of torch_tenon/ops/manifest.yaml).
struct OpRule {
  std::vector<std::string> host_arguments;  // may lie on the host beside device arguments
  std::vector<std::string> mutates;         // written by the CPU kernel, against the schema
  bool run_time_numbers = false;            // the lowering takes numbers as run-time values
  bool starts_from_memory = false;          // reads whole tensors, so that nothing fuses into it
  bool ends_in_memory = false;              // and its results into nothing
};

// `op`: name and overload, as in "aten::index.Tensor".
void set_op_rule(const std::string& op, OpRule rule);
const OpRule& op_rule(const std::string& op);

// By argument: does the op write it, as its schema or its rule says?
std::vector<bool> arguments_written(const c10::OperatorHandle& op);
// By result: the argument that the schema says it is (`Tensor(a!)`), or -1.
std::vector<int64_t> arguments_returned(const c10::FunctionSchema& schema);
// Does the schema say that a result is a view of an argument?
bool makes_views(const c10::FunctionSchema& schema);

// Warn once per op that falls back.
void set_warn_fallback(bool warn);

// A boxed kernel. Takes the arguments from the stack and leaves the results there. Raises what the
// CPU kernel raises, and c10::Error where tensors of several devices meet.
void run_reference(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// The calls of a window one by one, on the memory that its storages have. Raises what a kernel
// raises, with the op that was running at the end of the message. The calls after it do not run.
// `release` is called for slots that died, as `run_window` does.
struct Window;
struct WindowSlot;
void run_window_by_reference(
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release);

}  // namespace tenon
