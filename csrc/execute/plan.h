// A plan: a program's kernels and calls, in order, over slots of memory.
//
// A plan is for one set of run-time sizes. Python makes it (torch_tenon/compiler/plan.py); running
// it (execute/plan_run.h) takes neither Python nor its lock, except where an op that is called is
// Python itself. Several threads may run one plan at once: what changes is the run's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "device/counters.h"
#include "device/failure.h"
#include "device/queue.h"
#include "execute/host_call.h"
#include "execute/pace.h"
#include "record/sizes.h"

namespace tenon {

// What a check of a kernel leaves when it fails: the kind of error, the value and the size. The
// first word of one that did not fail stays 0.
constexpr size_t kStatusWords = 4;

// A kernel for the host's processor, which runs to its end whatever fails. `status` has words for
// each of its checks.
using HostKernel = void (*)(void* const* pointers, const int64_t* sizes, int64_t* status);

// A tensor over a slot; its offset is from the slot's start.
struct SlotTensor {
  size_t slot;
  TensorLayout layout;
};

struct Slot {
  enum class Kind {
    input,      // memory of a tensor that the caller passes
    output,     // memory of the caller's, or allocated for it
    temporary,  // lies in the arena
    block,      // a temporary with memory of its own, from its first step to its last
    external,   // memory that comes with the result of a call
    constant,   // memory of a tensor that the plan holds
    unused
  };
  Kind kind;
  size_t number = 0;  // output, block: bytes; temporary: offset in bytes
  at::Tensor tensor;  // constant
  size_t nbytes = 0;  // input, temporary, external: bytes that steps use
};

// What a kernel's code lies in, such as a shared object. It is closed when the last one goes that
// holds it: a plan, for each of its kernels.
class KernelOwner {
 public:
  virtual ~KernelOwner() = default;
  virtual size_t nbytes() const = 0;
};

// Where a kernel is found again: its name in a file of the cache directory.
struct KernelName {
  std::string object, symbol;
  uint64_t checksum = 0;  // of the file
};

struct KernelStep {
  KernelFunction function = nullptr;
  size_t kernel = 0;           // which of the plan's
  std::vector<size_t> slots;   // of its pointers
  std::vector<int64_t> sizes;  // the numbers that it takes
  // By check: the recorded calls that fail with it, counted in their window; -1 for no such call.
  std::vector<std::vector<int32_t>> checks;
};

// A call of an op on host tensors over slots.
struct CallStep {
  c10::OperatorHandle op;
  std::vector<ArgumentPlan> arguments;  // in the schema's order
  std::vector<SlotTensor> tensors;      // of the arguments; a number is a tensor without dimensions
  // What becomes of each result: an external slot takes over its memory, any other one a copy.
  std::vector<std::optional<SlotTensor>> results;
  Counter* counter;
  int32_t call = -1;  // the recorded call that it is part of, counted in the window; -1 for none
};

// What a profile has of a step, at any sizes.
struct StepFacts {
  std::string detail;  // with a `?` for each of `sizes`
  std::vector<SizeExpression> sizes;
  std::vector<int32_t> calls;
  SizeExpression bytes, operations;
};

struct Step {
  std::string name;  // the ops that it came from
  Counter* counter;  // of its kernel's runs, while they are timed
  std::shared_ptr<const StepFacts> facts;
  std::variant<KernelStep, CallStep> work;
  std::vector<size_t> allocated;  // outputs and blocks that no step used before
  std::vector<size_t> released;   // inputs, blocks and external slots that no later step uses
};

struct PlanData {
  std::vector<Slot> slots;
  std::vector<size_t> inputs, outputs;  // slots, in the order that callers pass them
  size_t arena_bytes = 0;
  std::vector<Step> steps;
  std::vector<SlotTensor> results;
  std::vector<KernelName> kernels;                   // empty where they are in no file
  std::vector<std::shared_ptr<KernelOwner>> owners;  // of the kernels; some live as long as we do
};

// Whether kernels are timed, which costs more than a small one takes; returns what was before.
bool set_timing(bool on);

// Whether the host waits after every step that a device's queue gets, as without command buffers.
void set_commit_each(bool on);

// An error of one or several recorded calls, counted in their window; none: of the plan's own.
struct CallFailure {
  std::vector<int32_t> calls;
  std::shared_ptr<Failure> failure;
};
using CallFailures = std::vector<CallFailure>;  // in the order of the steps

class Plan {
 public:
  // Called with an input's number after the last step that uses it.
  using Release = std::function<void(size_t)>;
  // Gives the memory of the output of that number, when a step is to write it.
  using Output = std::function<void*(size_t)>;

  // `pace`: that of the plan which this one is an instance of.
  explicit Plan(PlanData data, std::shared_ptr<Pace> pace = nullptr);

  // Runs once, or enqueues it, over memory of the caller's: one address for each input, and memory
  // for each output when that is first written.
  // `device` is where temporaries lie: a device of the target, or the host. Every step runs, also
  // after one that failed: what depends on that holds anything. The errors are there at once, or,
  // on an asynchronous target, once the queue has passed what was enqueued.
  // `window`: its number in the profile. `worlds`: by recorded call, the surroundings that its
  // calls on whole tensors are made in; empty: those in force. `keepers`: by input, what its memory
  // lives as long as, for a plan that `lends_inputs`; without one such a kernel gets copies.
  std::function<CallFailures()> enqueue(
      c10::ArrayRef<void*> inputs,
      const Output& output,
      c10::Device device,
      const Release& release = {},
      uint32_t window = 0,
      c10::ArrayRef<int64_t> worlds = {},
      c10::ArrayRef<c10::Storage> keepers = {}) const;

  // The same, to its end; raises the first error.
  void run(c10::ArrayRef<void*> inputs, c10::ArrayRef<void*> outputs, c10::Device device) const;

  // Runs once and makes tensors of the results on `device`. A result may lie in an input's storage;
  // other inputs are let go of after their last step. Raises the first error.
  std::vector<at::Tensor> run(std::vector<at::Tensor> inputs, c10::Device device) const;

  // Runs once on copies of the host's tensors, by a device whose memory the host cannot reach; the
  // outputs are bytes. Raises the first error.
  std::vector<at::Tensor> run_from_host(
      const std::vector<at::Tensor>& inputs, c10::DeviceIndex device) const;

  const PlanData& data() const {
    return data_;
  }
  Pace& pace() const {
    return *pace_;
  }
  // The number of what a profile has of a step (device/profile.h), at the sizes of this plan.
  uint32_t subject(size_t step) const;
  // Of all kernels' checks.
  size_t status_words() const {
    return status_words_;
  }
  // To a kernel of somebody else's, which may hold on to what it is given.
  bool lends_inputs() const {
    return lends_inputs_;
  }

 private:
  friend class SizedPlan;  // which gives it other sizes

  PlanData data_;
  const std::shared_ptr<Pace> pace_;
  std::vector<size_t> inputs_, outputs_;  // by slot: which input or output it is
  size_t status_words_ = 0;
  bool lends_inputs_ = false;
  std::vector<int64_t> symbols_;  // of the sizes, where they may have any value
  mutable std::vector<std::atomic<uint32_t>> subjects_;  // by step; 0: nobody has asked
};

}  // namespace tenon
