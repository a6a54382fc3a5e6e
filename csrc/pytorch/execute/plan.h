// A plan of the device (runtime/plan.h has its data), whose calls are PyTorch's ops.
//
// Python makes it (torch_tenon/compiler/plan.py). Running it (execute/plan_run.h) takes neither
// Python nor its lock, except where an op that is called is Python itself.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/counters.h"
#include "execute/host_call.h"
#include "execute/run_threads.h"
#include "runtime/plan_format.h"
#include "runtime/run.h"

namespace tenon {

// Whether kernels are timed, which costs more than a small one takes; returns what was before.
bool set_timing(bool on);
bool times_kernels();

// Whether the host waits after every step that a device's queue gets, as without command buffers.
void set_commit_each(bool on);

class Plan {
 public:
  // Called with an input's number after the last step that uses it.
  using Release = std::function<void(size_t)>;
  // Gives the memory of the output of that number, when a step is to write it.
  using Output = std::function<void*(size_t)>;

  // Of calls that are not resolved yet. `pace`: that of the plan which this one is an instance of.
  explicit Plan(PlanData data, std::shared_ptr<Pace> pace = nullptr);

  // Runs once, or enqueues it, over memory of the caller's: one address for each input, and memory
  // for each output when that is first written.
  // `device` is where temporaries lie: a device of the target, or the host. Every step runs, also
  // after one that failed: what depends on that holds anything. The errors are there at once, or,
  // on an asynchronous target, once the queue has passed what was enqueued.
  // `window`: its number in the profile. `worlds`: by recorded call, the surroundings that its
  // calls on whole tensors are made in; empty: those in force. `keepers`: by input, what its memory
  // lives as long as, for a plan that `lends_inputs`; without one such a kernel gets copies.
  std::function<StepFailures()> enqueue(
      c10::ArrayRef<void*> inputs,
      const Output& output,
      c10::Device device,
      const Release& release = {},
      uint32_t window = 0,
      c10::ArrayRef<int64_t> worlds = {},
      c10::ArrayRef<c10::Storage> keepers = {}) const;

  // The same over memory of the host's, to its end; a device that cannot reach that runs on copies
  // of the bytes that steps use. It gives back the outputs, and the inputs that are `written`.
  // Raises the first error.
  void run(
      c10::ArrayRef<void*> inputs,
      c10::ArrayRef<void*> outputs,
      c10::Device device,
      c10::ArrayRef<size_t> written = {}) const;

  // Runs once and makes tensors of the results on `device`. A result may lie in an input's storage;
  // other inputs are let go of after their last step. Raises the first error, which is then that of
  // the inputs `lost` too: those that it writes, and that depend on what may fail.
  std::vector<at::Tensor> run(
      std::vector<at::Tensor> inputs, c10::Device device, c10::ArrayRef<size_t> lost = {}) const;

  const PlanData& data() const {
    return data_;
  }
  Pace& pace() const {
    return *pace_;
  }
  // The number of what a profile has of a step (device/profile.h), at the sizes of this plan.
  uint32_t subject(size_t step) const;
  // What counts a step's runs: a call's always, a kernel's while they are timed.
  Counter& counter(size_t step) const {
    return *counters_[step];
  }
  // To a kernel of somebody else's, which may hold on to what it is given.
  bool lends_inputs() const {
    return lends_inputs_;
  }

 private:
  friend class SizedPlan;  // which gives it other sizes

  void resolve_calls();
  void run_on_copies(
      c10::ArrayRef<void*> inputs,
      c10::ArrayRef<void*> outputs,
      c10::DeviceIndex device,
      c10::ArrayRef<size_t> written) const;

  PlanData data_;
  const std::shared_ptr<Pace> pace_;
  std::vector<size_t> inputs_, outputs_;  // by slot: which input or output it is
  std::vector<Counter*> counters_;        // by step
  bool lends_inputs_ = false;
  std::vector<int64_t> symbols_;  // of the sizes, where they may have any value
  mutable std::vector<std::atomic<uint32_t>> subjects_;  // by step; 0: nobody has asked
};

// A plan whose sizes may be functions of symbols. A few plans with sizes are made of it, and one
// that nobody runs gets others when they are needed.
class SizedPlan {
 public:
  // Without `any_size` there is one plan, for the sizes that it has.
  SizedPlan(PlanOfAnySize plan, bool any_size);

  // Has the memory of each instance checked (runtime/plan_check.h): by input and output of the plan
  // the bytes that are there for it. Before anybody else has this.
  void check_memory_of(std::vector<SizeExpression> inputs, std::vector<SizeExpression> outputs) {
    memory_.emplace(std::move(inputs), std::move(outputs));
  }

  // The plan for these symbols; null where one of its numbers cannot be.
  std::shared_ptr<const Plan> instance(const std::vector<int64_t>& symbols);

  bool is_for_any_size() const {
    return only_ == nullptr;
  }
  // At the sizes of an example.
  const PlanData& data() const {
    return only_ ? only_->data() : plan_.plan;
  }

 private:
  bool give(Plan& instance, const std::vector<int64_t>& symbols) const;

  PlanOfAnySize plan_;
  std::shared_ptr<const Plan> only_;
  std::optional<std::pair<std::vector<SizeExpression>, std::vector<SizeExpression>>> memory_;
  const std::shared_ptr<Pace> pace_ = std::make_shared<Pace>(/*sized=*/true);
  std::mutex mutex_;  // not of forks: who has it holds the lock of a device's queue
  // The one that was used last comes first.
  std::list<std::pair<std::vector<int64_t>, std::shared_ptr<Plan>>> made_;
};

}  // namespace tenon
