// One run of a plan: what it has of its own.
#pragma once

#include <memory>

#include "device/queue.h"
#include "execute/plan.h"
#include "execute/stack_arena.h"

namespace tenon {

class PlanRun {
 public:
  // `output` gives the memory of an output, by its slot, when a step is to write it; without it
  // outputs are tensors of the run's own. `window`: whose run it is, in the profile. `worlds`: as
  // `Plan::enqueue` takes them; they outlive the run.
  PlanRun(
      const Plan& plan,
      c10::Device device,
      std::function<void*(size_t)> output = {},
      uint32_t window = 0,
      c10::ArrayRef<int64_t> worlds = {});

  // Before `execute`: where an input lies, and, for a tensor, what keeps it.
  void place(size_t slot, void* pointer, c10::Storage memory = {});
  // Raises c10::OutOfMemoryError; on an asynchronous target nothing is enqueued by then, and no
  // input was released.
  void execute(const std::function<void(size_t)>& released);
  // What failed. On an asynchronous target to be asked once the queue has passed the run; it is
  // what the run still needs of the host's memory, and outlives it.
  std::function<CallFailures()> failures();
  at::Tensor result(const SlotTensor& spec);

 private:
  struct Outcome;

  void allocate(size_t slot);
  void allocate_results(const CallStep& step);
  std::vector<void*> allocate_all();
  void release(size_t slot);
  Next after(size_t index) const;
  double bytes_made() const;
  void run_steps(const std::function<void(size_t)>& released);
  void run_step(const Step& step, size_t index);
  void launch(const KernelStep& step);
  void call(const CallStep& step, size_t index);
  void call_from_host(const CallStep& step, size_t index);
  void call_on_device(const CallStep& step, size_t index);
  void* address_of(const SlotTensor& tensor) const;

  const Plan& plan_;
  const PlanData& data_;
  std::function<void*(size_t)> output_;
  c10::Device device_;
  Queue& queue_;
  bool host_memory_;
  c10::DataPtr arena_;
  // By slot: blocks, what calls made, and what came or goes as a tensor.
  std::vector<c10::Storage> memory_;
  std::vector<void*> pointers_;   // by slot
  std::vector<void*> arguments_;  // of the kernel in progress
  std::shared_ptr<Outcome> outcome_;
  size_t next_status_ = 0;
  uint32_t window_;
  c10::ArrayRef<int64_t> worlds_;
  StackArena stack_;  // for small temporaries that the host reaches
};

}  // namespace tenon
