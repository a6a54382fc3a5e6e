#include "runtime/program_device.h"

#include <algorithm>
#include <utility>

namespace tenon {
namespace {

bool has_kernels_alone(const PlanData& plan) {
  return std::all_of(plan.steps.begin(), plan.steps.end(), [](const Step& step) {
    return std::holds_alternative<KernelStep>(step.work);
  });
}

}  // namespace

class ProgramDevice::DeviceRun final : public RunHost {
 public:
  DeviceRun(ProgramDevice& device, const MethodPlan& plan)
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
    if (!is_output || memory == nullptr)
      taken.push_back((memory = device_.take(nbytes)).get());
    return memory.get();
  }
  // An input may be copied to an output at the end.
  void release(size_t slot) override {
    if (plan_.slots[slot].kind != Slot::Kind::input)
      slots_[slot] = nullptr;
  }
  LaterCall call_later(size_t step) override {
    return [&call = std::get<CallStep>(plan_.steps[step].work)](
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
  ProgramDevice& device_;
  const PlanData& plan_;
  const std::vector<size_t>& offsets_;
  std::vector<Memory> slots_;
  const Memory piece_;  // the arena and the blocks

 public:
  std::vector<void*> taken;  // in order
};

ProgramDevice::ProgramDevice(
    std::shared_ptr<TargetLibrary> library, int32_t device, bool commit_each)
    : library_(library),
      blocks_(std::make_shared<DeviceBlocks>(library, device)),
      queue_(library->queue(
          device, [blocks = blocks_](const void* address) { return blocks->place_of(address); })),
      commit_each_(commit_each) {}

ProgramDevice::Memory ProgramDevice::take(size_t nbytes) {
  return {blocks_->take(nbytes), [blocks = blocks_](void* block) { blocks->give_back(block); }};
}

void ProgramDevice::copy_in(void* to, const void* from, size_t nbytes) {
  if (nbytes > 0)
    queue_->copy(to, from, nbytes, CopyKind::host_to_device);
}

template <class Work>
void ProgramDevice::enqueue(const Work& work) {
  try {
    work();
  } catch (...) {
    queue_->drain();
    throw;
  }
}

void ProgramDevice::put(const ProgramFile& file) {
  const std::lock_guard<std::mutex> lock(mutex_);
  weights_.resize(file.weight_list.size());
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
    for (const auto& state : file.state_list)
      state_.push_back(take(state.tensor.layout.nbytes));
  });
  first_state(file);
}

void ProgramDevice::reset(const ProgramFile& file) {
  library_->check_is_here();
  const std::lock_guard<std::mutex> lock(mutex_);
  first_state(file);
}

void ProgramDevice::first_state(const ProgramFile& file) {
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

void ProgramDevice::run(
    const ProgramFile& file,
    const MethodPlan& plan,
    std::span<const void* const> inputs,
    std::span<void* const> outputs) {
  using Kind = Source::Kind;
  const auto& method = *plan.method;
  library_->check_is_here();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto& data = plan.data;
  const DeviceBlocks::Hold hold(*blocks_);
  DeviceRun host(*this, plan);
  std::vector<void*> made;
  for (const auto slot : data.outputs)
    made.push_back(host.allocate(slot, data.slots[slot].number));
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
    if (last == nullptr || last->taken != host.taken || last->released != blocks_->released()) {
      last = std::make_unique<LastRun>(std::move(host.taken), blocks_->released());
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
      from = file.bytes_of(file.weight_list[source.number]).data();
    else if (source.kind == Kind::output)
      from = outputs[source.number];
    else if (source.kind == Kind::input && placed[source.number] == nullptr)
      from = inputs[source.number];
    if (from != nullptr && plan.outputs[output].nbytes > 0)
      std::memmove(outputs[output], from, plan.outputs[output].nbytes);
  }
}

}  // namespace tenon
