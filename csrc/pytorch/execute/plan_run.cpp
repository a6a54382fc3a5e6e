#include "execute/plan_run.h"

#include <c10/core/CPUAllocator.h>

#include "device/allocator.h"
#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

std::atomic<bool> g_timing{false};
std::atomic<bool> g_commit_each{false};

constexpr c10::Storage::use_byte_size_t kInBytes;

// Graphs of the host's tensors run on the host, whatever the target.
Queue& queue_for(c10::Device device) {
  static auto* host = host_queue().release();
  return device.is_cpu() ? *host : queue_of(device.index());
}

// What a step is in the profile.
Activity activity_of(const Step& step) {
  const auto* call = std::get_if<CallStep>(&step.work);
  if (call == nullptr)
    return Activity::kernel;
  return call->route == "library" ? Activity::library : Activity::fallback;
}

}  // namespace

bool set_timing(bool on) {
  return g_timing.exchange(on);
}

bool times_kernels() {
  return g_timing.load(std::memory_order_relaxed);
}

void set_commit_each(bool on) {
  g_commit_each = on;
}

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
      host_memory_(device_.is_cpu() || target().host_memory),
      memory_(data_.slots.size()),
      window_(window),
      worlds_(worlds) {
  run_.emplace(data_, queue_for(device_), host_memory_, *this);
}

void PlanRun::place(size_t slot, void* pointer, c10::Storage memory) {
  run_->place(slot, pointer);
  memory_[slot] = std::move(memory);
}

c10::DataPtr PlanRun::temporary(size_t nbytes) const {
  // On a target whose memory the host can reach, graphs of the host's tensors share its blocks:
  // they are used again between runs and plans, where fresh pages would cost more than the work.
  if (device_.is_cpu() && !(has_target() && target().host_memory))
    return c10::GetCPUAllocator()->allocate(nbytes);
  return device_block(nbytes, device_.is_cpu() ? current_device() : device_.index());
}

void* PlanRun::take(size_t slot, size_t nbytes, c10::DataPtr memory) {
  memory_[slot] = c10::Storage(kInBytes, nbytes, std::move(memory));
  return memory_[slot].mutable_data();
}

void* PlanRun::arena(size_t nbytes) {
  arena_ = temporary(nbytes);
  return arena_.get();
}

void* PlanRun::allocate(size_t slot, size_t nbytes) {
  if (data_.slots[slot].kind != Slot::Kind::output)
    return take(slot, nbytes, temporary(nbytes));
  if (output_)
    return output_(slot);
  auto& memory = memory_[slot];
  if (device_.is_cpu()) {
    memory = c10::Storage(kInBytes, nbytes, c10::GetCPUAllocator(), /*resizable=*/true);
    return memory.mutable_data();
  }
  memory = new_storage(nbytes, device_.index());
  auto* buffer = own_buffer(*memory.unsafeGetStorageImpl());
  if (buffer == nullptr)
    return nullptr;
  buffer->has_contents = true;
  return buffer->memory();
}

void PlanRun::release(size_t slot) {
  memory_[slot] = c10::Storage();
}

void PlanRun::input_done(size_t slot) {
  if (released_ != nullptr && *released_)
    (*released_)(slot);
}

std::shared_ptr<void> PlanRun::staging(size_t nbytes) {
  auto memory = std::make_shared<c10::DataPtr>(c10::GetCPUAllocator()->allocate(nbytes));
  return {memory, memory->get()};
}

void PlanRun::call(size_t step, std::span<void* const> tensors, std::span<void*> results) {
  const auto& call = call_step(step);
  const CountedCall counted(plan_.counter(step));
  std::optional<AsRecorded> as_recorded;
  if (call.call >= 0 && !worlds_.empty())
    as_recorded.emplace(worlds_[call.call]);
  std::vector<c10::Storage> keepers;
  if (plan_.lends_inputs()) {
    for (const auto& [slot, layout] : call.tensors)
      keepers.push_back(
          data_.slots[slot].kind == Slot::Kind::input ? memory_[slot] : c10::Storage());
  }
  const auto made = call_over(
      call, tensors, results, device_.is_cpu() ? c10::DeviceIndex{-1} : device_.index(), keepers);
  for (size_t k = 0; k < results.size(); ++k) {
    if (!call.results[k] || results[k] != nullptr)
      continue;
    auto& memory = memory_[call.results[k]->slot];
    memory = made[k].storage();
    results[k] = memory.mutable_data();
  }
}

RunHost::LaterCall PlanRun::call_later(size_t step) {
  const auto& call = call_step(step);
  auto world = surroundings();
  if (call.call >= 0 && !worlds_.empty())
    world = worlds_[call.call];
  return [&call, world, &counter = plan_.counter(step)](
             std::span<void* const> tensors, std::span<void* const> results) {
    const CountedCall counted(counter);
    const NeutralThread neutral;
    const AsRecorded as_recorded(world);
    call_over(call, tensors, results, /*device=*/-1);
  };
}

void PlanRun::wait(const char* reason, bool raises) {
  const auto ticket = commit_part(device_.index());
  if (raises)
    wait_for_success(device_.index(), ticket, reason);
  else
    wait_for(device_.index(), ticket, reason);
}

void PlanRun::drain() noexcept {
  tenon::drain(device_.index());
}

bool PlanRun::watches() const {
  return profiles() || times_kernels();
}

void PlanRun::watch(size_t index, const std::function<void()>& run) {
  const auto& step = data_.steps[index];
  const uint32_t subject = profiles() ? plan_.subject(index) : 0;
  Profiled profiled(Activity::kernel, device_.is_cpu() ? -1 : device_.index(), subject);
  if (profiled) {
    profiled->activity = activity_of(step);
    profiled->window = window_;
  }
  std::optional<CountedCall> timed;
  if (times_kernels() && std::holds_alternative<KernelStep>(step.work))
    timed.emplace(plan_.counter(index));
  run();
  profiled.enqueued();
}

bool PlanRun::waits_for_each() const {
  return g_commit_each.load(std::memory_order_relaxed);
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
  released_ = &released;
  if (!host_memory_) {
    const SegmentsStay until_all_is_enqueued(device_.index());
    return run_->execute();
  }
  TimedRun timed(&plan_.pace());
  run_->execute();
  timed.finish(bytes_made());
}

// What a run of a compiled graph gives back: tensors over the memory of its slots.
at::Tensor PlanRun::result(const SlotTensor& spec) {
  const auto& [slot, layout] = spec;
  const auto kind = data_.slots[slot].kind;
  auto& memory = memory_[slot];
  if (kind == Slot::Kind::constant) {
    const auto& [of, data, keeper] = data_.constants[data_.slots[slot].number];
    return tensor_over({kInBytes, of.nbytes, kept_by(keeper, data)}, layout).to(device_);
  }
  if (kind == Slot::Kind::output && !memory)  // no step writes it: it has no elements
    run_->place(slot, allocate(slot, data_.slots[slot].number));
  TORCH_INTERNAL_ASSERT(memory, "a plan's result has no memory");
  // What a call made comes to the device once, as several results may share it.
  if (kind == Slot::Kind::external && !device_.is_cpu() && memory.device_type() != kTenon) {
    const auto* before = static_cast<const char*>(memory.data());
    const auto start = static_cast<const char*>(run_->address(slot)) - before;
    memory = host_memory_
                 ? to_device_storage(memory, device_.index())
                 : storage_over(
                       std::move(memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()),
                       memory.nbytes(),
                       device_.index());
    run_->place(slot, static_cast<char*>(raw_address(*memory.unsafeGetStorageImpl())) + start);
  }
  const auto* first = static_cast<const char*>(run_->address(slot));
  const auto start =
      first != nullptr
          ? first - static_cast<const char*>(raw_address(*memory.unsafeGetStorageImpl()))
          : 0;
  const auto itemsize = static_cast<int64_t>(item_size(layout.dtype));
  TORCH_CHECK(
      start % itemsize == 0,
      c10::str("a result of dtype ", scalar_type(layout), " does not start at one of its elements"),
      ": the tensor that it is a view of begins at byte ",
      start);
  return tensor_over(memory, layout, start / itemsize);
}

}  // namespace tenon
