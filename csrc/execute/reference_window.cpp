#include <ATen/ops/full.h>
#include <omp.h>

#include <cstring>

#include "device/allocator.h"
#include "device/target.h"
#include "execute/host_allocator.h"
#include "execute/host_call.h"
#include "execute/reference.h"
#include "record/window.h"

namespace tenon {
namespace {

using c10::IValue;
using torch::jit::Stack;

double as_double(int64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

IValue number_like(const IValue& like, int64_t bits) {
  if (like.isDouble())
    return as_double(bits);
  const auto& t = like.toTensor();
  at::Tensor made = number_kind(t) == kDouble ? at::full({}, as_double(bits), t.options())
                                              : at::full({}, bits, t.options());
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// One thread for the loops that this one starts, while it lives.
class OneThread {
 public:
  explicit OneThread(bool wanted) : before_(wanted ? omp_get_max_threads() : 0) {
    if (wanted)
      omp_set_num_threads(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ > 0)
      omp_set_num_threads(before_);
  }

 private:
  int before_;
};

class Runner {
 public:
  Runner(
      const Window& window,
      c10::DeviceIndex device,
      const std::function<void(const WindowSlot&)>& release)
      : window_(window),
        device_(device),
        release_(release),
        storages_(window.slots.size()),
        uses_left_(window.slots.size()) {
    for (const auto slot : window.slots_of_calls)
      ++uses_left_[slot];
  }

  void run() {
    try {
      for (const auto& call : window_.calls)
        run_call(call);
    } catch (...) {
      write_back();
      throw;
    }
    write_back();
  }

 private:
  void run_call(const RecordedCall& call) {
    const auto& entry = *call.entry;
    const auto* slots = &window_.slots_of_calls[call.first_slot];
    const auto* fresh_slots = slots + entry.tensors.size();
    try {
      run_entry(entry, slots, fresh_slots, window_.scalars.data() + call.first_scalar);
    } catch (c10::Error& error) {
      // Raised at another line than the call's: the op tells which call it was.
      error.add_context("in " + entry.op->name + ", recorded before");
      throw;
    }
    for (const auto* slot = slots; slot != fresh_slots + entry.fresh.size(); ++slot) {
      const auto& known = window_.slots[*slot];
      if (--uses_left_[*slot] > 0)
        continue;
      if (known.is_temporary() || known.is_kept())
        storages_[*slot] = c10::Storage();
      if (release_ && known.is_kept())
        release_(known);
    }
  }

  void run_entry(
      const OpEntry& entry,
      const int32_t* slots,
      const int32_t* fresh_slots,
      const int64_t* next_scalar) {
    auto layout = entry.tensors.begin();
    const auto tensor = [&] { return host_tensor(*slots++, *layout++); };
    const auto number = [&](const IValue& like) { return number_like(like, *next_scalar++); };
    Stack stack;
    stack.reserve(entry.arguments.size());
    for (const auto& argument : entry.arguments)
      stack.push_back(host_argument(argument, tensor, number));
    // Results land in the blocks that they have; a temporary takes what it gets.
    std::vector<Promise> promises;
    for (size_t k = 0; k < entry.fresh.size(); ++k) {
      const auto& slot = window_.slots[fresh_slots[k]];
      const bool has_place = host_memory_ && !slot.is_temporary();
      promises.push_back({&entry.fresh[k], has_place ? slot.block : nullptr});
    }
    {
      const CountedCall counted(*entry.op->reference);
      const OneThread alone(entry.small);
      call_on_host(entry.op->op, stack, device_, promises);
    }
    auto results = fresh_results(entry, stack);
    stack.clear();
    keep_promises(entry.op->op, results, device_, promises);
    for (size_t k = 0; k < promises.size(); ++k) {
      if (promises[k].place == nullptr)
        storages_[fresh_slots[k]] = results[k].storage();
    }
  }

  const c10::Storage& storage_of(int32_t index) {
    auto& storage = storages_[index];
    if (storage)
      return storage;
    const auto& slot = window_.slots[index];
    c10::DataPtr data;
    if (host_memory_ && !slot.is_temporary()) {
      data = c10::DataPtr(slot.block, c10::Device(c10::kCPU));  // borrowed
    } else {
      const HostAllocationScope on_device(device_);
      data = host_allocator()->allocate(slot.nbytes);
      if (!slot.fresh)
        copy_bytes(data.get(), slot.block, slot.nbytes, CopyKind::device_to_host, device_);
    }
    storage = c10::Storage(
        c10::Storage::use_byte_size_t{},
        slot.nbytes,
        std::move(data),
        host_allocator(),
        /*resizable=*/false);
    return storage;
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

  // On a target without host memory: what was written goes to the device.
  void write_back() {
    if (host_memory_)
      return;
    for (size_t k = 0; k < storages_.size(); ++k) {
      const auto& slot = window_.slots[k];
      if (slot.written && slot.alive && storages_[k])
        copy_bytes(slot.block, storages_[k].data(), slot.nbytes, CopyKind::host_to_device, device_);
    }
  }

  const Window& window_;
  c10::DeviceIndex device_;
  const std::function<void(const WindowSlot&)>& release_;
  const bool host_memory_ = target().host_memory;
  std::vector<c10::Storage> storages_;  // by slot, on the host
  std::vector<size_t> uses_left_;       // by slot: by how many arguments and results of calls
};

}  // namespace

void run_window_by_reference(
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release) {
  Runner(window, device, release).run();
}

}  // namespace tenon
