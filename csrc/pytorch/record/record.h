// Recording calls of ops.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string_view>

#include "record/op_cache.h"

namespace tenon {

// Backward runs on the thread that asks for it from now on, as it does on the CPU.
void keep_backward_here();

// What became of a call.
struct Recording {
  const OpEntry* entry = nullptr;           // null: it was not recorded, ...
  std::string_view why;                     // ... for this reason; empty: its key is new
  bool open = false;                        // its key is without the values of its numbers
  std::vector<c10::IValue> instead;         // arguments that it has in place of those given
  std::shared_ptr<const OpEntry> by_rule;   // the entry, where that is for this call alone
  c10::SmallVector<at::Tensor, 4> results;  // those that it makes, some undefined
};

// The kernel of an op for the dispatch key of the device.
class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : info_(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

  // What it gives refers to an entry, which stays while the call is in work.
  Recording record(CallInWork& in_work, c10::ArrayRef<c10::IValue> arguments);
  // Runs a call that was not recorded: takes its arguments from the stack and leaves the results.
  void run(const Recording& call, torch::jit::Stack* stack);
  // Pushes the results of one that was.
  static void give(Recording& call, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack* stack);
  const OpInfo& info() const {
    return info_;
  }

 private:
  void replace(torch::jit::Stack* stack, torch::jit::Stack results);
  const OpEntry* find(OpKey& key, c10::ArrayRef<c10::IValue> arguments, Recording& call);
  const OpEntry* find_opened(OpKey& key, c10::ArrayRef<c10::IValue> arguments, bool& open);
  const OpEntry* keep(std::shared_ptr<OpEntry> made, const OpKey& key);
  const OpEntry* recall(OpKey& key, c10::ArrayRef<c10::IValue> arguments, bool& open);

  OpInfo info_;
};

// A RecordKernel as the dispatcher calls it: with C++ arguments where their signature is a usual
// one, boxed where it is not.
c10::KernelFunction record_kernel(const c10::OperatorHandle& op);

// Registers a RecordKernel for every op that the host has whole. These have a CPU kernel, or
// PyTorch composes them of others below autograd. The latter make new results and draw no random
// numbers. Ops that have a kernel for the device keep it; those of sparse, quantised and nested
// tensors run by reference. Returns how many.
//
// Without it these ops would reach the device in their parts: more calls, counted under other
// names, and some compositions ask for a list of devices that PyTorch knows.
int64_t register_reference_kernels();

// Registers a RecordKernel for one op that was declared to this package; `name` with its overload.
// Raises for an op that is not there.
void record_op(const std::string& name, const std::string& overload);

// Registers for an op on tensors of a layout ("Sparse") the host's kernel for it. That takes them
// as they are: it reads what a tensor says of itself, not its elements. Raises for an op that is
// not there.
void take_by_host(const std::string& name, const std::string& overload, const std::string& layout);

// Records `self.copy_(src)` for tensors of one device; false: nothing is recorded at present.
bool record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking);

}  // namespace tenon
