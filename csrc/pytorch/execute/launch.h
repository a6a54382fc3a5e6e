// A kernel of the target's over tensors, for whoever links an op to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/plan.h"

namespace tenon {

// A call of a function of the target's library (`Target.library`), until the end of the scope. What
// it launches is for the op, which only reads its arguments.
class LibraryCall {
 public:
  LibraryCall(std::string op, std::vector<at::Tensor> arguments);
  ~LibraryCall();
  LibraryCall(const LibraryCall&) = delete;
  LibraryCall& operator=(const LibraryCall&) = delete;

  // The innermost of the calling thread; nullptr: there is none.
  static const LibraryCall* current();
  const std::string& op() const {
    return op_;
  }
  bool is_argument(const c10::StorageImpl& storage) const;

 private:
  const std::string op_;
  const std::vector<at::Tensor> arguments_;
  const LibraryCall* const outer_;
};

// A kernel of the target's over tensors of one device.
struct LaunchOver {
  uintptr_t kernel = 0;
  std::vector<std::optional<at::Tensor>> tensors;  // in the kernel's order; none: a null pointer
  std::vector<int64_t> numbers;
  std::vector<int64_t> grid, group;
  int64_t scratch = 0;
  // Which tensors it writes; none: nobody says. Then it may be any but the arguments of the op of a
  // library's function.
  std::optional<std::vector<int64_t>> writes;
  std::shared_ptr<KernelOwner> owner;  // what the kernel lies in, which stays until it has run
};

// Enqueues a launch behind all that was recorded with the tensors, and waits for nothing: the
// device's queue orders it with what was submitted before. An error that a tensor is known to have
// is raised; one that comes later is that of what the launch writes. The kernel gets where each
// tensor begins, and the numbers. Raises for tensors of elsewhere, and for `writes` of no tensor.
// It raises for a group of other axes than the grid's, for sizes below 0, and groups of nothing.
void launch_over(const LaunchOver& asked);

}  // namespace tenon
