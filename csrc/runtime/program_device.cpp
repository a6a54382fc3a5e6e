// Plans of methods on a device whose memory the host does not reach: runs are enqueued.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/device_blocks.h"
#include "runtime/program_runner.h"

namespace tenon {
namespace {

bool has_kernels_alone(const PlanData& plan) {
  return std::ranges::all_of(
      plan.steps, [](const Step& step) { return std::holds_alternative<KernelStep>(step.work); });
}

class DeviceRunner final : public ProgramRunner {
 public:
  DeviceRunner(std::shared_ptr<TargetLibrary> library, int32_t device, bool commit_each)
      : library_(library),
        blocks_(std::move(library), device),
        queue_(library_->queue(
            device, [this](const void* address) { return blocks_.place_of(address); })),
        commit_each_(commit_each) {}

  void put(const ProgramFile& file) override;
  void reset() override;
  void run(
      const MethodPlan& plan,
      std::span<const void* const> inputs,
      std::span<void* const> outputs) override;
  size_t replays() const override {
    return replays_;
  }

 private:
  class DeviceRun;
  struct GiveBack {
    DeviceBlocks* blocks = nullptr;
    void operator()(void* block) const {
      blocks->give_back(block);
    }
  };
  using Memory = std::unique_ptr<void, GiveBack>;

  Memory take(size_t nbytes);
  void copy_in(void* to, const void* from, size_t nbytes);
  // Calls `work`, which enqueues. Where it raises, nothing of it is left in the queue.
  template <class Work>
  void enqueue(const Work& work);
  void first_state();

  const std::shared_ptr<TargetLibrary> library_;
  DeviceBlocks blocks_;  // what follows ends before it
  const std::unique_ptr<Queue> queue_;
  const bool commit_each_;
  std::atomic<size_t> replays_{0};
  std::mutex mutex_;  // of the queue, and of what follows; not of forks: a child has no device
  const ProgramFile* file_ = nullptr;
  std::vector<Memory> weights_, state_;
};

class DeviceRunner::DeviceRun final : public RunHost {
 public:
  DeviceRun(DeviceRunner& device, const MethodPlan& plan)
      : device_(device),
        plan_(plan.data),
        offsets_(plan.placement.offsets),
        slots_(plan_.slots.size()),
        piece_(device.take(plan.placement.nbytes)),
        taken{piece_.get()} {}

  void* arena(size_t) override {
    return piece_.get();
  }
  void* allocate(size_t slot, size_t nbytes) override {
    if (plan_.slots[slot].kind == Slot::Kind::block)
      return nbytes > 0 ? static_cast<char*>(piece_.get()) + offsets_[slot] : nullptr;
    auto& memory = slots_[slot];
    const bool is_output = plan_.slots[slot].kind == Slot::Kind::output;
    if (is_output && memory != nullptr)
      return memory.get();
    memory = device_.take(nbytes);
    void* const made = memory.get();
    taken.push_back(made);
    return made;
  }
  // An input may be copied to an output at the end.
  void release(size_t slot) override {
    if (plan_.slots[slot].kind != Slot::Kind::input)
      slots_[slot] = nullptr;
  }
  LaterCall call_later(size_t step) override {
    return [&call = *std::get_if<CallStep>(&plan_.steps[step].work)](
               std::span<void* const> tensors, std::span<void* const> results) {
      call.function(call, tensors, results);
    };
  }
  void wait(const char*, bool raises) override {
    device_.queue_->finish(raises);
  }
  void drain() noexcept override {
    device_.queue_->drain();
  }
  bool waits_for_each() const override {
    return device_.commit_each_;
  }

 private:
  DeviceRunner& device_;
  const PlanData& plan_;
  const std::vector<size_t>& offsets_;
  std::vector<Memory> slots_;
  const Memory piece_;  // the arena and the blocks

 public:
  std::vector<void*> taken;  // in order
};

DeviceRunner::Memory DeviceRunner::take(size_t nbytes) {
  return {blocks_.take(nbytes), {&blocks_}};
}

void DeviceRunner::copy_in(void* to, const void* from, size_t nbytes) {
  if (nbytes > 0)
    queue_->copy(to, from, nbytes, CopyKind::host_to_device);
}

template <class Work>
void DeviceRunner::enqueue(const Work& work) {
  try {
    work();
  } catch (...) {
    queue_->drain();
    throw;
  }
}

void DeviceRunner::put(const ProgramFile& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  file_ = &file;
  weights_ = std::vector<Memory>(file.weight_list.size());
  enqueue([&] {
    for (const auto& method : file.methods) {
      for (const auto& [kind, number] : method.plan_inputs) {
        if (kind != Source::Kind::weight || weights_[number] != nullptr)
          continue;
        const auto bytes = file.bytes_of(file.weight_list[number]);
        weights_[number] = take(bytes.size());
        copy_in(weights_[number].get(), bytes.data(), bytes.size());
      }
    }
    state_ = std::vector<Memory>(file.state_list.size());
    for (size_t k = 0; k < state_.size(); ++k)
      state_[k] = take(file.state_list[k].tensor.layout.nbytes);
  });
  first_state();
}

void DeviceRunner::reset() {
  library_->check_is_here();
  const std::lock_guard<std::mutex> lock(mutex_);
  first_state();
}

void DeviceRunner::first_state() {
  const auto& file = *file_;
  size_t most = 0;
  for (const auto& [tensor, weight] : file.state_list)
    most = std::max(most, weight < 0 ? tensor.layout.nbytes : 0);
  const std::vector<char> zeros(most);
  enqueue([&] {
    for (size_t k = 0; k < file.state_list.size(); ++k) {
      const auto& [tensor, weight] = file.state_list[k];
      const auto* from = weight < 0
                             ? zeros.data()
                             : file.bytes_of(file.weight_list[static_cast<size_t>(weight)]).data();
      copy_in(state_[k].get(), from, tensor.layout.nbytes);
    }
  });
  queue_->finish(/*raises=*/true);
}

void DeviceRunner::run(
    const MethodPlan& plan, std::span<const void* const> inputs, std::span<void* const> outputs) {
  using Kind = Source::Kind;
  const auto& method = *plan.method;
  library_->check_is_here();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& data = plan.data;
  const DeviceBlocks::Hold hold(blocks_);
  DeviceRun host(*this, plan);
  std::vector<void*> made(data.outputs.size());
  for (size_t k = 0; k < made.size(); ++k)
    made[k] = host.allocate(data.outputs[k], data.slots[data.outputs[k]].number);
  Run run(data, *queue_, /*at_once=*/false, host);
  std::vector<void*> placed(inputs.size());  // the method's inputs on the device
  auto last = std::exchange(plan.last_run, nullptr);
  enqueue([&] {
    for (size_t k = 0; k < data.inputs.size(); ++k) {
      const auto slot = data.inputs[k];
      const auto& [kind, number] = method.plan_inputs[k];
      if (kind == Kind::weight || kind == Kind::state) {
        run.place(slot, (kind == Kind::weight ? weights_ : state_)[number].get());
        continue;
      }
      const bool is_symbol = kind == Kind::symbol;
      const auto nbytes = is_symbol ? sizeof(int64_t) : plan.inputs[number].nbytes;
      void* const there = host.allocate(slot, nbytes);
      copy_in(there, is_symbol ? &plan.symbols[number] : inputs[number], nbytes);
      run.place(slot, there);
      if (!is_symbol)
        placed[number] = there;
    }
    if (last == nullptr || last->taken != host.taken || last->released != blocks_.released()) {
      last.reset(new LastRun{std::move(host.taken), blocks_.released()});
    } else if (!last->recording.is_there() && !last->is_refused) {
      if (!commit_each_ && has_kernels_alone(data))
        queue_->record(last->recording, [&] { return run.record(); });
      last->failures = run.failures();
      last->is_refused = !last->recording.is_there();
    }
    if (last->recording.is_there()) {
      queue_->replay(last->recording);
      ++replays_;
    } else {
      run.execute();
    }
    const auto copy_out = [&](void* to, const void* from, size_t nbytes) {
      if (nbytes > 0)
        queue_->copy(to, from, nbytes, CopyKind::device_to_host);
    };
    for (size_t k = 0; k < made.size(); ++k) {
      const auto output = method.plan_outputs[k];
      copy_out(outputs[output], made[k], data.slots[data.outputs[k]].number);
    }
    for (const auto& [output, source] : method.copies) {
      const auto nbytes = plan.outputs[output].nbytes;
      if (source.kind == Kind::state)
        copy_out(outputs[output], state_[source.number].get(), nbytes);
      else if (source.kind == Kind::input && placed[source.number] != nullptr)
        copy_out(outputs[output], placed[source.number], nbytes);
    }
  });
  queue_->finish(/*raises=*/true);
  plan.last_run = std::move(last);
  raise_first(plan.last_run->recording.is_there() ? plan.last_run->failures() : run.failures()());
  for (const auto& [output, source] : method.copies) {
    const void* from = nullptr;
    if (source.kind == Kind::weight)
      from = file_->bytes_of(file_->weight_list[source.number]).data();
    else if (source.kind == Kind::output)
      from = outputs[source.number];
    else if (source.kind == Kind::input && placed[source.number] == nullptr)
      from = inputs[source.number];
    if (from != nullptr && plan.outputs[output].nbytes > 0)
      std::memmove(outputs[output], from, plan.outputs[output].nbytes);
  }
}

}  // namespace

std::unique_ptr<ProgramRunner> device_runner(
    std::shared_ptr<TargetLibrary> library, int32_t device, bool commit_each) {
  return std::make_unique<DeviceRunner>(std::move(library), device, commit_each);
}

}  // namespace tenon
