// What is known of the calls that were seen before: for each op and key, the layouts of the
// results. The first call of a key runs at once, on the host, and its results teach the entry: so
// layouts and errors are the CPU's own, for any op, and no rule is written twice.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "device/buffer.h"
#include "device/counters.h"
#include "record/call_in_work.h"
#include "record/layout.h"
#include "record/op_key.h"
#include "record/op_sizes.h"

namespace tenon {

// A result: an argument that was written, a fresh tensor, or a list of these.
struct ResultPlan {
  int64_t argument = -1;      // which argument it is; -1: fresh
  bool list = false;          // a list of fresh tensors
  std::vector<bool> defined;  // for each fresh tensor, one where it is no list: is there one
};

// What a call gives: its results, and the layouts of what it makes. Those are of the tensors that
// it resizes first, then of fresh ones.
struct CallResults {
  std::vector<ResultPlan> results;
  std::vector<size_t> resized;  // which of its tensors
  std::vector<TensorLayout> made;
};

struct CallPattern;
struct OpInfo;

// One op with arguments of known layouts. Its tensors, and its numbers that are open, are the next
// of the window's slots and numbers.
struct OpEntry : std::enable_shared_from_this<OpEntry> {
  const OpInfo* op = nullptr;
  int64_t id = 0;
  uint64_t hash = 0;      // the same in every process
  bool recorded = false;  // false: every call runs at once, for this reason:
  std::string reason;
  std::vector<int64_t> key;
  std::vector<ArgumentPlan> arguments;
  std::vector<TensorLayout> tensors;  // the device's tensors among the arguments, in order
  std::vector<bool> written;          // for each of them
  // Whether it replaces all of a storage that is no larger than the tensor, and reads nothing of
  // it.
  std::vector<bool> overwritten;
  // Empty tensors that the call gives its results' sizes, as `out=` has them: `tensors` has what
  // they become.
  std::vector<size_t> resized;
  std::vector<ResultPlan> results;
  std::vector<TensorLayout> fresh;  // the tensors that the call makes, in order
  int64_t surroundings() const {
    return key.front();
  }
  // Its tensors take so little that a second thread would cost more than it does.
  bool small = false;
  // What it has in common with calls of other sizes (record/call_pattern.h), if that is known, and
  // its sizes: what the pattern's key leaves out, then sizes and strides of `fresh`.
  const CallPattern* pattern = nullptr;
  std::vector<int64_t> sizes;
  // How often it stands in windows that have not run: guarded by `record_mutex`.
  mutable uint32_t in_windows = 0;
  // By the op's clock, when it was found last.
  mutable std::atomic<uint32_t> last_found{0};
};

struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op);
  ~OpInfo();

  c10::OperatorHandle op;
  std::string name;
  bool recordable;                        // false: every call runs at once
  bool lasts;                             // what is known of its calls is so in every process
  bool selects = false;                   // makes a result by a list of indices
  bool may_open = false;                  // the lowering takes numbers as run-time values
  std::atomic<bool> open_scalars{false};  // ... and they were seen to change
  bool starts_from_memory;                // reads whole tensors, so that nothing fuses into it
  std::vector<bool> written;              // by argument
  std::vector<bool> replaced;             // by argument: written, and not read
  bool counts_writes;                     // in tensors' versions, since autograd does not
  // It writes nothing, or its first argument in place, and what it makes is dense.
  mutable std::atomic<bool> may_be_direct{false};
  std::vector<NumberArgument> numbers;  // by argument
  std::vector<int64_t> returned;        // by result: the argument that it is, or -1
  OpSizes sizes;                        // which may differ where results are foretold
  Counter* counter;                     // of recorded calls, ...
  Counter* reference;                   // ... of those that then ran by reference, and in both ...
  Counter* direct;                      // ... those that ran when they were made (record/direct.h)
  Counter* host;     // of calls that ran at once, as all of this op or of their kind do
  uint32_t subject;  // in the profile
  // How many different keys there were that differ in numbers alone.
  std::unordered_map<uint64_t, int> spread;
  // So many at most: beyond them those go that were found longest ago (record/call_in_work.h).
  std::unordered_multimap<uint64_t, std::shared_ptr<OpEntry>> entries;
  std::atomic<uint32_t> clock{0};  // goes on with each entry that is added
  std::unordered_multimap<uint64_t, std::unique_ptr<CallPattern>> patterns;
  // Entries that were found last, by their keys' hashes: looked at without a lock, since an entry
  // does not change, and lives while somebody uses it.
  std::array<std::atomic<OpEntry*>, 8> latest{};

  // Within a `CallInWork`. The first and the last of them under `record_mutex`.
  OpEntry* find(const OpKey& key);
  OpEntry* find_latest(const OpKey& key) const;
  // `unused`: what it let go of, and nobody uses, to be freed once the lock is open.
  OpEntry* add(std::shared_ptr<OpEntry> made, uint64_t hash, Entries& unused);

 private:
  void make_room();
};

// The most calls that are known of one op.
void set_most_known_calls(size_t most);
size_t most_known_calls();
// Of all ops: how many are known, how many were learned, and how many of these were let go of.
struct KnownCallCounts {
  int64_t known, learned, evicted;
};
KnownCallCounts known_call_counts();

// A tensor as it was before a call, to see whether that changed its layout or memory.
struct TensorBefore {
  explicit TensorBefore(const at::Tensor& tensor);
  bool is_unchanged(const at::Tensor& now) const;

  at::Tensor tensor;     // another one over the same storage
  const Buffer* buffer;  // which the storage had
};

// What is to be known of a call before it has run; the results are missing.
std::unique_ptr<OpEntry> entry_of(
    OpInfo& op, const OpKey& key, bool open_scalars, c10::ArrayRef<c10::IValue> arguments);
// They are known, as is what follows from them.
void set_results(OpEntry& entry, CallResults results);
CallResults results_of(const OpEntry& entry);

// Arguments like those of a call, of zeros. What an op makes of them tells the layouts of its
// results, and nobody's memory is read or written. Tensors of the device are over memory of their
// own; those that share a storage go on to share one.
torch::jit::Stack stand_ins_of(c10::ArrayRef<c10::IValue> arguments);

// The entry that a call teaches. `before`: the key's tensors before the call; the arguments'
// tensors are as it left them.
std::unique_ptr<OpEntry> learn(
    OpInfo& op,
    const OpKey& key,
    bool open_scalars,
    const std::vector<TensorBefore>& before,
    c10::ArrayRef<c10::IValue> arguments,
    c10::ArrayRef<c10::IValue> results);

}  // namespace tenon
