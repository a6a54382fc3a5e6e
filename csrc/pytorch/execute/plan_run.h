// One run of a plan by the device: its memory is tensors' and blocks', its calls are PyTorch's.
#pragma once

#include <optional>

#include "execute/plan.h"
#include "runtime/run.h"

namespace tenon {

class PlanRun final : public RunHost {
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
  PlanRun(const PlanRun&) = delete;
  PlanRun& operator=(const PlanRun&) = delete;

  // Before `execute`: where an input lies, and, for a tensor, what keeps it.
  void place(size_t slot, void* pointer, c10::Storage memory = {});
  // Raises c10::OutOfMemoryError; on an asynchronous target nothing is enqueued by then, and no
  // input was released.
  void execute(const std::function<void(size_t)>& released);
  // As `Run::failures`.
  std::function<StepFailures()> failures() const {
    return run_->failures();
  }
  at::Tensor result(const SlotTensor& spec);

  void* arena(size_t nbytes) override;
  void* allocate(size_t slot, size_t nbytes) override;
  void release(size_t slot) override;
  void input_done(size_t slot) override;
  std::shared_ptr<void> staging(size_t nbytes) override;
  void call(size_t step, std::span<void* const> tensors, std::span<void*> results) override;
  LaterCall call_later(size_t step) override;
  void wait(const char* reason, bool raises) override;
  void drain() noexcept override;
  bool watches() const override;
  void watch(size_t step, const std::function<void()>& run) override;
  bool waits_for_each() const override;

 private:
  c10::DataPtr temporary(size_t nbytes) const;
  void* take(size_t slot, size_t nbytes, c10::DataPtr memory);
  double bytes_made() const;
  const CallStep& call_step(size_t step) const {
    return std::get<CallStep>(data_.steps[step].work);
  }

  const Plan& plan_;
  const PlanData& data_;
  std::function<void*(size_t)> output_;
  const std::function<void(size_t)>* released_ = nullptr;
  c10::Device device_;
  bool host_memory_;
  c10::DataPtr arena_;
  // By slot: blocks, what calls made, and what came or goes as a tensor.
  std::vector<c10::Storage> memory_;
  uint32_t window_;
  c10::ArrayRef<int64_t> worlds_;
  std::optional<Run> run_;
};

}  // namespace tenon
