#include <ATen/ops/full.h>
#include <c10/util/ScopeExit.h>

#include <bit>

#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_call.h"
#include "record/surroundings.h"
#include "windows/failure_flow.h"
#include "windows/window_run.h"

namespace tenon {
namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr int64_t kEmpty[] = {0};  // sizes

IValue number_like(const IValue& like, int64_t bits) {
  if (like.isDouble())
    return std::bit_cast<double>(bits);
  if (like.isInt())
    return bits;
  const auto& t = like.toTensor();
  at::Tensor made = number_kind(t) == kDouble
                        ? at::full({}, std::bit_cast<double>(bits), t.options())
                        : at::full({}, bits, t.options());
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

std::vector<size_t> sizes_of_slots(const Window& window) {
  std::vector<size_t> nbytes;
  for (const auto& slot : window.slots)
    nbytes.push_back(slot.nbytes);
  return nbytes;
}

class Runner {
 public:
  Runner(Window& window, c10::DeviceIndex device, bool keeps_slots)
      : window_(window),
        device_(device),
        keeps_slots_(keeps_slots),
        storages_(window.slots.size()),
        uses_left_(window.slots.size()),
        flow_(initial_failures(window), sizes_of_slots(window)) {
    for (const auto slot : window.slots_of_calls)
      ++uses_left_[slot];
  }

  WindowRun run() {
    const NeutralThread neutral;
    for (size_t k = 0; k < window_.calls.size(); ++k)
      run_call(k);
    WindowRun ran;
    ran.failures = flow_.take();
    ran.library_seconds = library_seconds_;
    if (!host_memory_) {
      write_back(ran.failures);
      // What is being copied to the device stays until it is there.
      ran.later = [failures = std::move(ran.failures), sources = std::move(storages_)] {
        return failures;
      };
    }
    return ran;
  }

 private:
  static std::vector<std::shared_ptr<Failure>> initial_failures(const Window& window) {
    std::vector<std::shared_ptr<Failure>> found(window.slots.size());
    std::lock_guard<std::mutex> lock(record_mutex());
    for (size_t k = 0; k < found.size(); ++k) {
      if (window.slots[k].buffer)
        found[k] = window.slots[k].buffer->failure;
    }
    return found;
  }

  void run_call(size_t index) {
    const auto& call = window_.calls[index];
    const auto& entry = *call.entry;
    const auto* slots = &window_.slots_of_calls[call.first_slot];
    const auto* fresh_slots = slots + entry.tensors.size();
    if (const auto inherited = flow_.of_arguments(entry, slots)) {
      flow_.note(entry, slots, inherited);
    } else {
      try {
        Profiled profiled(Activity::reference, device_);
        if (profiled)
          note_call(profiled, index);
        run_entry(entry, slots, fresh_slots, window_.numbers.data() + call.first_number);
        flow_.note(entry, slots, nullptr);
      } catch (...) {
        flow_.raised(entry, slots, Failure::current(lost(entry, window_.line_of(index))));
      }
    }
    for (const auto* slot = slots; slot != fresh_slots + entry.fresh.size(); ++slot) {
      auto& known = window_.slots[*slot];
      if (--uses_left_[*slot] > 0)
        continue;
      if (known.is_temporary() || known.ends_here())
        storages_[*slot] = c10::Storage();
      if (!keeps_slots_ && known.ends_here())
        known.buffer.reset();
    }
  }

  // Says in the profile what runs.
  void note_call(Profiled& profiled, size_t index) {
    const auto& entry = *window_.calls[index].entry;
    profiled->subject = entry.op->subject;
    profiled->window = window_.profiled;
    profiled->call = static_cast<int32_t>(index);
    if (!window_.line_of(index).empty())
      profiled->line = subject_of({window_.line_of(index)});
    for (const auto* layouts : {&entry.tensors, &entry.fresh}) {
      for (const auto& layout : *layouts)
        profiled->amount += static_cast<int64_t>(layout.nbytes);
    }
  }

  void run_entry(
      const OpEntry& entry,
      const int32_t* slots,
      const int32_t* fresh_slots,
      const int64_t* next_number) {
    size_t next_tensor = 0;
    std::vector<std::pair<at::Tensor, size_t>> written;
    const auto tensor = [&] {
      const auto k = next_tensor++;
      auto made = host_tensor(slots[k], entry.tensors[k]);
      // Empty, as the program gave it: kernels look at the sizes of what they write.
      if (std::count(entry.resized.begin(), entry.resized.end(), k) > 0)
        made.unsafeGetTensorImpl()->set_sizes_contiguous(kEmpty);
      if (entry.written[k])
        written.emplace_back(made, k);
      return made;
    };
    const auto number = [&](const IValue& like) { return number_like(like, *next_number++); };
    Stack stack;
    stack.reserve(entry.arguments.size());
    for (const auto& argument : entry.arguments)
      stack.push_back(host_argument(argument, tensor, number));
    std::vector<ResultPlace> places;
    for (size_t k = 0; k < entry.fresh.size(); ++k) {
      auto& place = places.emplace_back(ResultPlace{&entry.fresh[k]});
      const auto& slot = window_.slots[fresh_slots[k]];
      if (!host_memory_ || !slot.buffer || !slot.alive)
        continue;
      // The kernel brings the memory.
      if (keeps_slots_)
        place.place = slot.buffer->memory();
      else
        slot.buffer->stop_expecting();
    }
    const AsRecorded as_recorded(entry.surroundings());
    {
      const CountedCall counted(*entry.op->reference);
      const Threads alone(entry.small && !is_deterministic(entry.surroundings()) ? 1 : 0);
      // A plan calls such a kernel as well, or one that is little faster.
      const auto start = entry.op->starts_from_memory ? host_seconds() : 0;
      const auto forget = c10::make_scope_exit([&] {
        for (const auto& [ignored, k] : written)
          forget_larger(slots[k]);
      });
      call_on_host(entry.op->op, stack, device_, places);
      for (const auto& [made, k] : written) {
        if (is_of_buffer(slots[k]))
          put_back(made, entry.tensors[k], window_.slots[slots[k]].buffer->memory());
      }
      library_seconds_ += entry.op->starts_from_memory ? host_seconds() - start : 0;
    }
    auto results = fresh_results(entry, stack);
    stack.clear();
    place_results(entry.op->op, results, device_, places);
    for (size_t k = 0; k < places.size(); ++k)
      keep_result(fresh_slots[k], results[k].storage());
  }

  // Whether the slot's memory on the host is the buffer's own.
  bool is_of_buffer(int32_t index) const {
    const auto& slot = window_.slots[index];
    return host_memory_ && slot.buffer && !slot.is_temporary();
  }

  // A kernel may have put an argument into larger memory; the buffer keeps what it has.
  void forget_larger(int32_t index) {
    if (is_of_buffer(index) && storages_[index].nbytes() != window_.slots[index].nbytes)
      storages_[index] = c10::Storage();
  }

  void keep_result(int32_t index, const c10::Storage& result) {
    const auto& slot = window_.slots[index];
    storages_[index] = result;
    if (host_memory_ && slot.alive && slot.buffer && !keeps_slots_)
      slot.buffer->take(
          data_ptr_keeping(result),
          is_device_block(result.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
  }

  const c10::Storage& storage_of(int32_t index) {
    auto& storage = storages_[index];
    if (storage)
      return storage;
    const auto& slot = window_.slots[index];
    c10::DataPtr data;
    if (is_of_buffer(index)) {
      slot.buffer->memory();
      data = host_data_ptr(slot.buffer);
    } else {
      const HostAllocationScope on_device(device_);
      data = host_allocator()->allocate(slot.nbytes);
      if (!slot.fresh && slot.nbytes > 0)
        copy_to_host(data.get(), slot);
    }
    storage = c10::Storage(
        c10::Storage::use_byte_size_t{},
        slot.nbytes,
        std::move(data),
        host_allocator(),
        /*resizable=*/true);
    return storage;
  }

  void copy_to_host(void* host, const WindowSlot& slot) {
    auto& queue = queue_of(device_);
    queue.copy(host, slot.buffer->memory(), slot.nbytes, CopyKind::device_to_host);
    wait_for_success(device_, commit_part(device_), "an op that runs on the host");
  }

  at::Tensor host_tensor(int32_t slot, const TensorLayout& layout) {
    auto tensor = tensor_over(storage_of(slot), layout);
    auto* impl = tensor.unsafeGetTensorImpl();
    if (layout.wrapped_number)
      impl->set_wrapped_number(true);
    if (layout.differentiable)
      impl->set_requires_grad(true);
    return tensor;
  }

  // The fresh tensors among a call's results.
  static std::vector<at::Tensor> fresh_results(const OpEntry& entry, const Stack& stack) {
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < entry.results.size(); ++i) {
      if (entry.results[i].argument >= 0)
        continue;
      for (const auto& tensor : tensors_of(stack[i])) {
        if (tensor.defined())
          found.push_back(tensor);
      }
    }
    return found;
  }

  // On a target whose memory the host cannot reach: what was written goes to the device. A result
  // that does not get there is lost, and nothing else.
  void write_back(Failures& failures) {
    auto& queue = queue_of(device_);
    for (size_t k = 0; k < storages_.size(); ++k) {
      const auto& slot = window_.slots[k];
      if (!slot.written || !slot.alive || !slot.buffer || !storages_[k])
        continue;
      try {
        void* address = slot.buffer->memory();
        queue.copy(address, storages_[k].data(), slot.nbytes, CopyKind::host_to_device);
      } catch (...) {
        failures.by_slot.resize(storages_.size());
        auto& failure = failures.by_slot[k];
        if (!failure)
          failure = Failure::current("for a result of a call that was recorded before");
        if (!failures.first)
          failures.first = failure;
      }
    }
  }

  Window& window_;
  c10::DeviceIndex device_;
  bool keeps_slots_;
  const bool host_memory_ = target().host_memory;
  std::vector<c10::Storage> storages_;  // by slot, on the host
  std::vector<size_t> uses_left_;       // by slot: by how many arguments and results of calls
  FailureFlow flow_;
  double library_seconds_ = 0;
};

}  // namespace

WindowRun run_window_by_reference(Window& window, c10::DeviceIndex device, bool keeps_slots) {
  Profiled profiled(Activity::reference_run, device);
  if (profiled) {
    profiled->window = window.profiled;
    profiled->amount = static_cast<int64_t>(window.calls.size());
  }
  return Runner(window, device, keeps_slots).run();
}

}  // namespace tenon
