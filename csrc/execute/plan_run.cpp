#include "execute/plan_run.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <unordered_map>

#include "device/guard.h"
#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/builder.h"
#include "execute/call_step.h"
#include "execute/failed_check.h"
#include "record/op_rules.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

std::atomic<bool> g_timing{false};
std::atomic<bool> g_commit_each{false};

std::shared_ptr<Failure> as_failure(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (...) {
    return Failure::current("");
  }
}

// Graphs of the host's tensors run on the host, whatever the target.
Queue& queue_for(c10::Device device) {
  static auto* host = host_queue().release();
  return device.is_cpu() ? *host : queue_of(device.index());
}

c10::DataPtr allocate_temporary(size_t nbytes, c10::Device device) {
  // On a target whose memory the host can reach, graphs of the host's tensors share its blocks:
  // they are used again between runs and plans, where fresh pages would cost more than the work.
  if (device.is_cpu() && !(has_target() && target().host_memory))
    return c10::GetCPUAllocator()->allocate(nbytes);
  return device_block(nbytes, device.is_cpu() ? current_device() : device.index());
}

// The slots that get memory for a step.
template <class F>
void for_each_made(const Step& step, F&& f) {
  for (const auto slot : step.allocated)
    f(slot);
  if (const auto* call = std::get_if<CallStep>(&step.work)) {
    for (const auto& result : call->results) {
      if (result)
        f(result->slot);
    }
  }
}

}  // namespace

bool set_timing(bool on) {
  return g_timing.exchange(on);
}

void set_commit_each(bool on) {
  g_commit_each = on;
}

// What outlives a run on an asynchronous target: memory of the host that its steps use.
struct PlanRun::Outcome {
  std::vector<int64_t> status;                                      // of all kernels' checks
  std::vector<std::pair<size_t, std::shared_ptr<Failure>>> raised;  // by the calls of those steps
  // Of `raised`. Not of forks: a child has no device that others run calls on.
  std::mutex mutex;
  std::vector<c10::DataPtr> staging;

  void note(size_t step) {
    auto failure = Failure::current("");
    std::lock_guard<std::mutex> lock(mutex);
    raised.emplace_back(step, std::move(failure));
  }
};

PlanRun::PlanRun(
    const Plan& plan,
    c10::Device device,
    std::function<void*(size_t)> output,
    uint32_t window,
    c10::ArrayRef<int64_t> worlds)
    : plan_(plan),
      data_(plan.data()),
      output_(std::move(output)),
      device_(device.is_cpu() ? device : c10::Device(kTenon, check_index(device.index()))),
      queue_(queue_for(device_)),
      host_memory_(device_.is_cpu() || target().host_memory),
      outcome_(std::make_shared<Outcome>()),
      window_(window),
      worlds_(worlds) {
  outcome_->status.resize(plan.status_words());
  char* start = host_memory_ ? stack_.take(data_.arena_bytes) : nullptr;
  if (start == nullptr)
    start = static_cast<char*>((arena_ = allocate_temporary(data_.arena_bytes, device_)).get());
  memory_.resize(data_.slots.size());
  pointers_.resize(data_.slots.size());
  arguments_.reserve(data_.slots.size());
  for (size_t k = 0; k < data_.slots.size(); ++k) {
    const auto& slot = data_.slots[k];
    if (slot.kind == Slot::Kind::temporary) {
      pointers_[k] = start + slot.number;
    } else if (slot.kind == Slot::Kind::constant) {
      pointers_[k] = slot.tensor.data_ptr();
      if (host_memory_)
        continue;
      const auto nbytes = slot.tensor.storage().nbytes();
      memory_[k] = {c10::Storage::use_byte_size_t{}, nbytes, allocate_temporary(nbytes, device_)};
      queue_.copy(
          memory_[k].mutable_data(), slot.tensor.data_ptr(), nbytes, CopyKind::host_to_device);
      pointers_[k] = memory_[k].mutable_data();
    }
  }
}

void PlanRun::place(size_t slot, void* pointer, c10::Storage memory) {
  pointers_[slot] = pointer;
  memory_[slot] = std::move(memory);
}

void PlanRun::allocate(size_t slot) {
  const auto kind = data_.slots[slot].kind;
  if (kind == Slot::Kind::output && output_) {
    pointers_[slot] = output_(slot);
    return;
  }
  constexpr c10::Storage::use_byte_size_t in_bytes;
  const auto nbytes = data_.slots[slot].number;
  auto& memory = memory_[slot];
  if (kind == Slot::Kind::block) {
    pointers_[slot] = host_memory_ ? stack_.take(nbytes) : nullptr;
    if (pointers_[slot] != nullptr)
      return;
    memory = c10::Storage(in_bytes, nbytes, allocate_temporary(nbytes, device_));
    pointers_[slot] = memory.mutable_data();
  } else if (device_.is_cpu()) {
    memory = c10::Storage(in_bytes, nbytes, c10::GetCPUAllocator(), /*resizable=*/true);
    pointers_[slot] = memory.mutable_data();
  } else {
    memory = new_storage(nbytes, device_.index());
    if (auto* buffer = own_buffer(*memory.unsafeGetStorageImpl())) {
      pointers_[slot] = buffer->memory();
      buffer->has_contents = true;
    }
  }
}

void PlanRun::release(size_t slot) {
  memory_[slot] = c10::Storage();
  pointers_[slot] = nullptr;  // a later step may have memory there once more
}

// What a call makes lies where an asynchronous device knows it.
void PlanRun::allocate_results(const CallStep& step) {
  for (const auto& result : step.results) {
    if (!result || data_.slots[result->slot].kind != Slot::Kind::external)
      continue;
    const auto nbytes = result->layout.nbytes;
    memory_[result->slot] = {
        c10::Storage::use_byte_size_t{}, nbytes, allocate_temporary(nbytes, device_)};
    pointers_[result->slot] = memory_[result->slot].mutable_data();
  }
}

// All memory of the run at once: for each step where its slots lie that get memory there. The queue
// is in order, so what one step lets go of may be another one's before either runs.
std::vector<void*> PlanRun::allocate_all() {
  std::vector<void*> found;
  const auto before = pointers_;
  for (const auto& step : data_.steps) {
    for (const auto slot : step.allocated)
      allocate(slot);
    if (const auto* call = std::get_if<CallStep>(&step.work))
      allocate_results(*call);
    for_each_made(step, [&](size_t slot) { found.push_back(pointers_[slot]); });
    for (const auto slot : step.released)
      release(slot);
  }
  pointers_ = before;
  return found;
}

// What comes after a step.
Next PlanRun::after(size_t index) const {
  if (index + 1 == data_.steps.size())
    return Next::nothing;
  const auto* call = std::get_if<CallStep>(&data_.steps[index + 1].work);
  const bool on_device = call == nullptr || (queue_.runs_calls() && !is_foreign(call->op));
  return on_device ? Next::device : Next::host;
}

void PlanRun::launch(const KernelStep& step) {
  arguments_.clear();
  for (const auto slot : step.slots)
    arguments_.push_back(pointers_[slot]);
  auto* status = step.checks.empty() ? nullptr : &outcome_->status[next_status_];
  next_status_ += step.checks.size() * kStatusWords;
  queue_.launch(step.function, arguments_, step.sizes, status);
}

// What a step is in the profile.
Activity activity_of(const Step& step) {
  const auto* call = std::get_if<CallStep>(&step.work);
  if (call == nullptr)
    return Activity::kernel;
  return call->counter->route == "library" ? Activity::library : Activity::fallback;
}

void PlanRun::run_step(const Step& step, size_t index) {
  const uint32_t subject = C10_UNLIKELY(profiles()) ? plan_.subject(index) : 0;
  Profiled profiled(Activity::kernel, device_.is_cpu() ? -1 : device_.index(), subject);
  if (profiled) {
    profiled->activity = activity_of(step);
    profiled->window = window_;
  }
  if (const auto* kernel = std::get_if<KernelStep>(&step.work)) {
    std::optional<CountedCall> timed;
    if (C10_UNLIKELY(g_timing.load(std::memory_order_relaxed)))
      timed.emplace(*step.counter);
    if (!host_memory_)
      queue_.expect(after(index));
    launch(*kernel);
  } else {
    call(std::get<CallStep>(step.work), index);
  }
  profiled.enqueued();
}

void PlanRun::call(const CallStep& step, size_t index) {
  const CountedCall counted(*step.counter);
  std::optional<AsRecorded> as_recorded;
  if (step.call >= 0 && !worlds_.empty())
    as_recorded.emplace(worlds_[step.call]);
  if (host_memory_)
    call_from_host(step, index);
  else
    call_on_device(step, index);
}

void PlanRun::call_from_host(const CallStep& step, size_t index) {
  const auto is_external = [&](const SlotTensor& result) {
    return data_.slots[result.slot].kind == Slot::Kind::external;
  };
  std::vector<void*> tensors;
  std::vector<c10::Storage> keepers;
  for (const auto& [slot, layout] : step.tensors) {
    tensors.push_back(pointers_[slot]);
    if (plan_.lends_inputs())
      keepers.push_back(
          data_.slots[slot].kind == Slot::Kind::input ? memory_[slot] : c10::Storage());
  }
  std::vector<ResultPlace> places;
  for (const auto& result : step.results) {
    auto& place = places.emplace_back();
    if (result)
      place = {&result->layout, is_external(*result) ? nullptr : pointers_[result->slot]};
  }
  std::vector<at::Tensor> results;
  try {
    results = call_over(
        step, tensors, places, device_.is_cpu() ? c10::DeviceIndex{-1} : device_.index(), keepers);
  } catch (...) {
    outcome_->note(index);
  }
  for (size_t k = 0; k < places.size(); ++k) {
    if (!step.results[k] || !is_external(*step.results[k]))
      continue;
    const auto& [slot, layout] = *step.results[k];
    if (k < results.size())
      memory_[slot] = results[k].storage();
    else  // it failed: later steps have something to work on
      memory_[slot] = {
          c10::Storage::use_byte_size_t{},
          layout.nbytes,
          allocate_temporary(layout.nbytes, device_)};
    pointers_[slot] = memory_[slot].mutable_data();
  }
}

// Either in the device's queue, on its own memory, or by the host on copies of what the call needs,
// after waiting for that.
void PlanRun::call_on_device(const CallStep& step, size_t index) {
  std::vector<void*> pointers;
  std::vector<size_t> sizes;
  for (const auto& [slot, layout] : step.tensors) {
    pointers.push_back(pointers_[slot]);
    sizes.push_back(layout.nbytes);
  }
  const auto inputs = pointers.size();
  for (const auto& result : step.results) {
    pointers.push_back(result ? pointers_[result->slot] : nullptr);
    sizes.push_back(result ? result->layout.nbytes : 0);
  }
  auto work = [&step, index, inputs, outcome = outcome_, world = surroundings()](
                  c10::ArrayRef<void*> memory) {
    const NeutralThread neutral;
    const AsRecorded as_recorded(world);
    std::vector<ResultPlace> places;
    for (size_t k = 0; k < step.results.size(); ++k) {
      auto& place = places.emplace_back();
      if (step.results[k])
        place = {&step.results[k]->layout, memory[inputs + k]};
    }
    try {
      call_over(step, memory.slice(0, inputs), places, /*device=*/-1);
    } catch (...) {
      outcome->note(index);
    }
  };
  // A kernel of somebody else's may use the device itself, which its own thread could not wait for.
  if (queue_.runs_calls() && !is_foreign(step.op))
    return queue_.call(std::move(work), pointers);
  // Tensors of one storage have one copy, or what is written to one of them would be lost.
  struct Copy {
    void* host = nullptr;
    size_t nbytes = 0;
    bool read = false, written = false;
  };
  std::unordered_map<void*, Copy> copies;
  const auto written = written_tensors(step);
  for (size_t k = 0; k < pointers.size(); ++k) {
    auto& copy = copies[pointers[k]];
    copy.nbytes = std::max(copy.nbytes, sizes[k]);
    copy.read = copy.read || k < inputs;
    copy.written = copy.written || k >= inputs || written[k];
  }
  for (auto& [pointer, copy] : copies) {
    auto& staged = outcome_->staging.emplace_back(c10::GetCPUAllocator()->allocate(copy.nbytes));
    copy.host = staged.get();
    if (copy.read && copy.nbytes > 0)
      queue_.copy(copy.host, pointer, copy.nbytes, CopyKind::device_to_host);
  }
  wait_for_success(device_.index(), commit_part(device_.index()), "an op that runs on the host");
  std::vector<void*> memory;
  for (void* pointer : pointers)
    memory.push_back(copies.at(pointer).host);
  work(memory);
  for (const auto& [pointer, copy] : copies) {
    if (copy.written && copy.nbytes > 0)
      queue_.copy(pointer, copy.host, copy.nbytes, CopyKind::host_to_device);
  }
}

// A measure of how much a run has to do.
double PlanRun::bytes_made() const {
  auto bytes = static_cast<double>(data_.arena_bytes);
  for (const auto& slot : data_.slots) {
    if (slot.kind == Slot::Kind::output || slot.kind == Slot::Kind::block)
      bytes += static_cast<double>(slot.number);
  }
  return bytes;
}

void PlanRun::execute(const std::function<void(size_t)>& released) {
  if (!host_memory_) {
    try {
      return run_steps(released);
    } catch (...) {
      drain(device_.index());  // of memory that ends with this run
      throw;
    }
  }
  PacedRun paced(plan_.pace(), bytes_made(), builder_works());
  run_steps(released);
  paced.finish();
}

void PlanRun::run_steps(const std::function<void(size_t)>& released) {
  std::vector<void*> made;
  if (!host_memory_)
    made = allocate_all();
  auto next = made.begin();
  for (size_t index = 0; index < data_.steps.size(); ++index) {
    const auto& step = data_.steps[index];
    if (host_memory_) {
      for (const auto slot : step.allocated)
        allocate(slot);
    } else {
      for_each_made(step, [&](size_t slot) { pointers_[slot] = *next++; });
    }
    run_step(step, index);
    if (C10_UNLIKELY(g_commit_each.load(std::memory_order_relaxed)) && !host_memory_)
      wait_for(device_.index(), commit_part(device_.index()), "each step");
    for (const auto slot : step.released) {
      if (host_memory_)
        release(slot);
      if (released && data_.slots[slot].kind == Slot::Kind::input)
        released(slot);
    }
  }
}

std::function<CallFailures()> PlanRun::failures() {
  return [&steps = data_.steps, outcome = outcome_] {
    CallFailures found;
    const int64_t* status = outcome->status.data();
    auto raised = outcome->raised.begin();
    for (size_t index = 0; index < steps.size(); ++index) {
      const auto& step = steps[index];
      if (const auto* kernel = std::get_if<KernelStep>(&step.work)) {
        for (const auto& calls : kernel->checks) {
          if (C10_UNLIKELY(status[0] != 0))
            found.push_back({calls, as_failure(failed_check(status, step.name))});
          status += kStatusWords;
        }
      } else if (raised != outcome->raised.end() && raised->first == index) {
        found.push_back({{std::get<CallStep>(step.work).call}, (raised++)->second});
      }
    }
    return found;
  };
}

}  // namespace tenon
