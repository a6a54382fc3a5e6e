// Recording calls of ops, and committing what was recorded.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>
#include <utility>
#include <vector>

#include "device/recorded.h"
#include "record/op_cache.h"
#include "record/window.h"

namespace tenon {

enum class ExecuteMode : int { automatic = 0, reference = 1, compiled = 2, verify = 3 };

// The kernel of an op for the dispatch key of the device.
class RecordKernel final : public c10::OperatorKernel {
 public:
  explicit RecordKernel(const c10::OperatorHandle& op) : info_(op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);
  const c10::OperatorHandle& op() const {
    return info_.op;
  }

 private:
  OpInfo info_;
};

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
