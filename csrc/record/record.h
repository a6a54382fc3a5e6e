// Recording calls of ops, and committing what was recorded.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <c10/core/Storage.h>

#include <functional>
#include <string>
#include <vector>

#include "record/op_cache.h"
#include "record/window.h"

namespace tenon {

enum class ExecuteMode : int { automatic = 0, reference = 1, compiled = 2, verify = 3 };

// Why a window was committed; the names are those of the report.
enum class CommitReason : int {
  host_read,     // the host needs a value
  host_write,    // the host writes memory that the window uses
  first_call,    // a call whose results' layouts are not known yet
  not_recorded,  // an op that runs at once
  synchronize,
  boundary,  // a place chosen by the content of the window
  length,    // the window is as long as it may be
  memory,    // it keeps as much memory as it may
  request,   // torch_tenon.commit(), fork
  count_
};

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

void set_execute_mode(ExecuteMode mode);
ExecuteMode execute_mode();

// Runs what was recorded for a device. Does nothing inside of a commit.
void commit(c10::DeviceIndex device, CommitReason reason);
void commit_all(CommitReason reason);

// Records `self.copy_(src)` for tensors of one device; false: nothing is recorded at present.
bool record_copy(const at::Tensor& self, const at::Tensor& src, bool non_blocking);

// A storage was made now and holds nothing yet.
void note_fresh(const c10::StorageImpl& storage);

// How windows were committed: by reason; calls recorded.
struct RecordCounts {
  int64_t commits[static_cast<int>(CommitReason::count_)] = {};
  int64_t calls = 0;
};
RecordCounts record_counts();

// The calls that were not recorded, by op and reason.
struct CallAtOnce {
  std::string op, reason;
  int64_t calls;
};
std::vector<CallAtOnce> calls_at_once();

}  // namespace tenon
