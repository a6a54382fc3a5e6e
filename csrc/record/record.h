// Recording calls of ops, and committing what was recorded.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/recorded.h"
#include "record/op_cache.h"
#include "record/window.h"

namespace tenon {

enum class ExecuteMode : int { automatic = 0, reference = 1, compiled = 2, verify = 3 };

// What became of a call.
struct Recording {
  const OpEntry* entry = nullptr;           // null: it was not recorded, ...
  std::string_view why;                     // ... for this reason; empty: its key is new
  bool open = false;                        // is its numbers' key without their values?
  c10::SmallVector<at::Tensor, 4> results;  // those that it makes, some undefined
};

// The kernel of an op for the dispatch key of the device.
class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : info_(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

  Recording record(c10::ArrayRef<c10::IValue> arguments);
  // Runs a call that was not recorded: takes its arguments from the stack and leaves the results.
  void run(const Recording& call, torch::jit::Stack* stack);
  // Pushes the results of one that was.
  static void give(Recording& call, c10::ArrayRef<c10::IValue> arguments, torch::jit::Stack* stack);
  const c10::OperatorHandle& op() const {
    return info_.op;
  }

 private:
  OpInfo info_;
};

// A RecordKernel as the dispatcher calls it: with C++ arguments where their signature is a usual
// one, boxed where it is not.
c10::KernelFunction record_kernel(const c10::OperatorHandle& op);

// Registers a RecordKernel for every op that the host has whole: those with a CPU kernel, and those
// that PyTorch composes of others below autograd, as far as they make new results and draw no
// random numbers. Ops that have a kernel for the device keep it; those of sparse, quantised and
// nested tensors run by reference. Returns how many.
//
// Without it these ops would reach the device in their parts: more calls, counted under other
// names, and some compositions ask for a list of devices that PyTorch knows.
int64_t register_reference_kernels();

void set_execute_mode(ExecuteMode mode);
ExecuteMode execute_mode();

// See `commit` in device/recorded.h.
void commit_all(CommitReason reason);

// Records `self.copy_(src)` for tensors of one device; false: nothing is recorded at present.
bool record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking);

// Calls recorded, and windows by the reason of their commit.
std::pair<int64_t, std::vector<int64_t>> record_counts();

}  // namespace tenon
