#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <cstring>

#include "device/allocator.h"
#include "device/target.h"
#include "execute/host_allocator.h"
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

IValue number(const IValue& like, int64_t bits) {
  if (like.isDouble())
    return as_double(bits);
  const auto& t = like.toTensor();
  at::Tensor made = number_kind(t) == kDouble ? at::full({}, as_double(bits), t.options())
                                              : at::full({}, bits, t.options());
  if (t.unsafeGetTensorImpl()->is_wrapped_number())
    made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

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
        last_use_(window.slots.size()) {
    for (size_t c = 0; c < window.calls.size(); ++c) {
      const auto& call = window.calls[c];
      const auto count = call.entry->tensors.size() + call.entry->fresh.size();
      for (size_t k = 0; k < count; ++k)
        last_use_[window.slots_of_calls[call.first_slot + k]] = c;
    }
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    size_t c = 0;
    try {
      for (; c < window_.calls.size(); ++c)
        run_call(c);
    } catch (c10::Error& error) {
      // Raised at another line than the call's: the op tells which call it was.
      error.add_context("in " + window_.calls[c].entry->op->name + ", recorded before");
      write_back();
      throw;
    } catch (...) {
      write_back();
      throw;
    }
    write_back();
  }

 private:
  void run_call(size_t number_of_call) {
    const auto& call = window_.calls[number_of_call];
    const auto& entry = *call.entry;
    const auto* slots = &window_.slots_of_calls[call.first_slot];
    const auto* fresh_slots = slots + entry.tensors.size();
    next_tensor_ = 0;
    next_scalar_ = call.first_scalar;
    Stack stack;
    stack.reserve(entry.arguments.size());
    for (const auto& argument : entry.arguments)
      stack.push_back(value_of(argument, entry, slots));
    {
      const CountedCall counted(*entry.op->reference);
      const HostAllocationScope on_device(device_);
      const HostPlacement placement(places(entry, fresh_slots));
      entry.op->op.callBoxed(&stack);
    }
    auto results = fresh_results(entry, stack);
    stack.clear();
    move_misplaced(results, fresh_slots);
    for (size_t k = 0; k < results.size(); ++k)
      take(entry, entry.fresh[k], results[k], fresh_slots[k]);
    for (const auto* slot = slots; slot != fresh_slots + entry.fresh.size(); ++slot) {
      const auto& known = window_.slots[*slot];
      if (last_use_[*slot] != number_of_call)
        continue;
      if (known.is_temporary() || known.is_kept())
        storages_[*slot] = c10::Storage();
      if (release_ && known.is_kept())
        release_(known);
    }
  }

  IValue value_of(const ArgumentPlan& plan, const OpEntry& entry, const int32_t* slots) {
    switch (plan.kind) {
      case ArgumentPlan::constant:
        return plan.value.isDevice() && plan.value.toDevice().type() == kTenon
                   ? IValue(c10::Device(c10::kCPU))
                   : plan.value;
      case ArgumentPlan::number:
        return number(plan.value, window_.scalars[next_scalar_++]);
      case ArgumentPlan::tensor: {
        const auto k = next_tensor_++;
        return host_tensor(slots[k], entry.tensors[k]);
      }
      case ArgumentPlan::list:
        break;
    }
    c10::impl::GenericList list(plan.value.toList().elementType());
    for (const auto& element : plan.elements)
      list.push_back(value_of(element, entry, slots));
    return list;
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
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage_of(slot)),
        c10::DispatchKeySet(c10::DispatchKey::CPU),
        c10::scalarTypeToTypeMeta(layout.dtype));
    auto* impl = tensor.unsafeGetTensorImpl();
    impl->set_sizes_and_strides(layout.sizes, layout.strides, layout.offset);
    if (layout.wrapped_number)
      impl->set_wrapped_number(true);
    if (layout.differentiable)
      impl->set_requires_grad(true);
    return tensor;
  }

  // Where the host's allocator puts results: into the blocks that they have.
  Blocks places(const OpEntry& entry, const int32_t* fresh_slots) const {
    Blocks found;
    for (size_t k = 0; host_memory_ && k < entry.fresh.size(); ++k) {
      const auto& slot = window_.slots[fresh_slots[k]];
      if (!slot.is_temporary() && slot.block != nullptr)
        found.emplace_back(slot.block, slot.nbytes);
    }
    return found;
  }

  // The fresh tensors among a call's results.
  static std::vector<at::Tensor> fresh_results(const OpEntry& entry, const Stack& stack) {
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < entry.results.size(); ++i) {
      const auto& plan = entry.results[i];
      if (plan.argument >= 0)
        continue;
      const auto tensors = tensors_of(stack[i]);
      for (size_t k = 0; k < plan.defined.size(); ++k) {
        if (plan.defined[k])
          found.push_back(tensors.at(k));
      }
    }
    return found;
  }

  // A kernel may put one result where another one's place is: out of the way with it, before the
  // places are filled.
  void move_misplaced(std::vector<at::Tensor>& results, const int32_t* fresh_slots) const {
    for (size_t k = 0; host_memory_ && k < results.size(); ++k) {
      const void* data = results[k].defined() ? results[k].storage().data() : nullptr;
      for (size_t other = 0; data != nullptr && other < results.size(); ++other) {
        if (other != k && data == window_.slots[fresh_slots[other]].block) {
          results[k] = results[k].clone();
          break;
        }
      }
    }
  }

  void take(const OpEntry& entry, const TensorLayout& want, const at::Tensor& got, int32_t index) {
    TORCH_CHECK(
        got.defined() && got.scalar_type() == want.dtype && got.sizes() == want.sizes,
        "tenon: ",
        entry.op->name,
        " gave a result of dtype ",
        got.scalar_type(),
        " and sizes ",
        got.sizes(),
        " where one of ",
        want.dtype,
        " and ",
        want.sizes,
        " was expected: its shape depends on data. Report it, and set TENON_EXECUTE=reference");
    const auto& slot = window_.slots[index];
    if (slot.block == nullptr)
      return;
    const bool in_place = got.strides() == want.strides && got.storage_offset() == 0 &&
                          !got.is_conj() && !got.is_neg();
    if (in_place && (slot.is_temporary() || !host_memory_) && got.storage().use_count() == 1 &&
        got.storage().nbytes() >= slot.nbytes) {
      storages_[index] = got.storage();
    } else if (!(in_place && got.storage().data() == slot.block)) {
      host_tensor(index, want).copy_(got);
    }
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
  std::vector<size_t> last_use_;        // by slot: the last call that uses it
  size_t next_tensor_ = 0, next_scalar_ = 0;
};

}  // namespace

void run_window_by_reference(
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release) {
  Runner(window, device, release).run();
}

}  // namespace tenon
