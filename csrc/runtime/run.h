// One run of a plan: the executor.
#pragma once

#include <mutex>

#include "runtime/plan.h"
#include "runtime/stack_arena.h"

namespace tenon {

// What a run asks of who embeds the runtime. It lives as long as the run does.
class RunHost {
 public:
  virtual ~RunHost() = default;

  // The arena, for as long as the run is.
  virtual void* arena(size_t nbytes) = 0;
  // Memory for a slot, until `release`: an output, a block, or what a call makes. Raises where
  // there is none left.
  virtual void* allocate(size_t slot, size_t nbytes) = 0;
  // Lets go of what a slot has, if it has anything.
  virtual void release(size_t slot) = 0;
  // The last step that uses an input is over, or enqueued.
  virtual void input_done(size_t /*slot*/) {}
  // Memory of the host that the device copies to and from.
  virtual std::shared_ptr<void> staging(size_t nbytes);

  // Runs a step's call on memory that the host reaches. `results`: where the results go; null where
  // the call brings memory of its own, which then stands there, and is the slot's until `release`.
  virtual void call(size_t step, std::span<void* const> tensors, std::span<void*> results);
  // The same, to be run later, by any thread, after this run is over. All results have memory.
  using LaterCall =
      std::function<void(std::span<void* const> tensors, std::span<void* const> results)>;
  virtual LaterCall call_later(size_t step);

  // Waits until the device has run all that was enqueued. With `raises`, raises what it failed
  // with. Where the queue runs at once nobody asks.
  virtual void wait(const char* /*reason*/, bool /*raises*/) {}
  // The same after an error, which is the one that counts.
  virtual void drain() noexcept {}

  // Whether somebody wants to know of each step. Then `watch` is given what runs or enqueues it.
  virtual bool watches() const {
    return false;
  }
  virtual void watch(size_t /*step*/, const std::function<void()>& run) {
    run();
  }
  // Whether the device is to be waited for after each step.
  virtual bool waits_for_each() const {
    return false;
  }
};

// What failed in a run. Of a kernel's check: the recorded calls that it is of.
struct StepFailure {
  std::vector<int32_t> calls;
  std::shared_ptr<Failure> failure;
};
using StepFailures = std::vector<StepFailure>;  // in the order of the steps
// Raises the first of them, if there is one.
void raise_first(const StepFailures& failures);

class Run {
 public:
  // `at_once`: the queue runs what it is given before it comes back, on memory that the host
  // reaches.
  Run(const PlanData& plan, Queue& queue, bool at_once, RunHost& host);

  // Before `execute`: where an input lies.
  void place(size_t slot, void* pointer) {
    pointers_[slot] = pointer;
  }
  // Raises where there is not enough memory. Where the queue does not run at once nothing is
  // enqueued by then, and no input is done. Every step runs, also after one that failed: what
  // depends on that holds anything.
  void execute();
  // Launches all steps, which are kernels, in a queue that records. False where it refuses one.
  bool record();
  // What failed. Where the queue does not run at once it is asked once the device has passed the
  // run: until then it holds memory of the host that the device uses. The plan outlives it. A
  // replay of the run is asked by the same function, which sets back what it has found.
  class Failures;
  Failures failures() const;
  // Where a slot lies now.
  void* address(size_t slot) const {
    return pointers_[slot];
  }

 private:
  struct Outcome;

  void place_constants();
  void allocate(size_t slot);
  void allocate_results(const CallStep& step);
  std::vector<void*> allocate_all();
  void run_steps();
  void run_step(const Step& step, size_t index);
  Next after(size_t index) const;
  void launch(const KernelStep& step, size_t index);
  size_t bytes_of(size_t slot) const;
  void call_at_once(const CallStep& step, size_t index);
  void call_on_device(const CallStep& step, size_t index);

  const PlanData& plan_;
  Queue& queue_;
  const bool at_once_;
  RunHost& host_;
  std::vector<void*> pointers_;   // by slot
  std::vector<void*> arguments_;  // of the kernel in progress
  std::vector<size_t> nbytes_;    // by argument; not where the queue runs at once
  std::shared_ptr<Outcome> outcome_;
  size_t next_status_ = 0;
  StackArena stack_;  // for small temporaries that the host reaches
};

class Run::Failures {
 public:
  Failures() = default;
  StepFailures operator()() const;

 private:
  friend class Run;
  Failures(const std::vector<Step>& steps, std::shared_ptr<Outcome> outcome)
      : steps_(&steps), outcome_(std::move(outcome)) {}

  const std::vector<Step>* steps_ = nullptr;
  std::shared_ptr<Outcome> outcome_;
};

// How many words the checks of a plan's kernels have.
size_t status_words(const PlanData& plan);

}  // namespace tenon
