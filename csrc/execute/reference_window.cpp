#include "execute/reference_window.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "device/allocator.h"
#include "device/target.h"
#include "execute/host_allocator.h"

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
        host_memory_(target().host_memory),
        storages_(window.slots.size()),
        last_use_(window.slots.size(), -1) {
    for (size_t c = 0; c < window.calls.size(); ++c) {
      const auto& call = window.calls[c];
      const auto count = call.entry->tensors.size() + call.entry->fresh;
      for (size_t k = 0; k < count; ++k)
        last_use_[window.slots_of_calls[call.first_slot + k]] = static_cast<int64_t>(c);
    }
  }

  void run() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    for (size_t c = 0; c < window_.calls.size(); ++c) {
      try {
        run_call(window_.calls[c], static_cast<int64_t>(c));
      } catch (c10::Error& error) {
        // Raised at another line than the call's: the op tells which call it was.
        error.add_context("in " + window_.calls[c].entry->op->name + ", recorded before");
        write_back();
        throw;
      } catch (...) {
        write_back();
        throw;
      }
    }
    write_back();
  }

 private:
  void run_call(const RecordedCall& call, int64_t number_of_call) {
    const auto& entry = *call.entry;
    next_tensor_ = 0;
    next_slot_ = call.first_slot;
    next_scalar_ = call.first_scalar;
    Stack stack;
    stack.reserve(entry.arguments.size());
    for (const auto& argument : entry.arguments)
      stack.push_back(value_of(argument, entry));
    const auto first_result = next_slot_;
    {
      const CountedCall counted(*entry.op->reference);
      const HostAllocationScope on_device(device_);
      const HostPlacement placement(places(entry, first_result));
      entry.op->op.callBoxed(&stack);
    }
    next_slot_ = first_result;
    move_misplaced(entry, first_result, stack);
    for (size_t i = 0; i < entry.results.size(); ++i) {
      const auto& plan = entry.results[i];
      if (plan.argument >= 0)
        continue;
      if (!plan.list) {
        take(plan, stack[i], entry);
        continue;
      }
      const auto list = stack[i].toListRef();
      for (size_t k = 0; k < plan.elements.size(); ++k)
        take(plan.elements[k], list[k], entry);
    }
    for (auto k = call.first_slot; k < next_slot_; ++k) {
      const auto slot = window_.slots_of_calls[k];
      if (last_use_[slot] != number_of_call)
        continue;
      if (is_temporary(slot) || window_.slots[slot].is_kept())
        storages_[slot] = c10::Storage();
      if (release_ && window_.slots[slot].is_kept())
        release_(window_.slots[slot]);
    }
  }

  bool is_temporary(int32_t slot) const {
    return window_.slots[slot].fresh && !window_.slots[slot].alive;
  }

  IValue value_of(const ArgumentPlan& plan, const OpEntry& entry) {
    switch (plan.kind) {
      case ArgumentPlan::constant:
        return plan.value.isDevice() && plan.value.toDevice().type() == kTenon
                   ? IValue(c10::Device(c10::kCPU))
                   : plan.value;
      case ArgumentPlan::number:
        return number(plan.value, window_.scalars[next_scalar_++]);
      case ArgumentPlan::tensor:
        return host_tensor(window_.slots_of_calls[next_slot_++], entry.tensors[next_tensor_++]);
      case ArgumentPlan::list:
        break;
    }
    c10::impl::GenericList list(plan.value.toList().elementType());
    for (const auto& element : plan.elements)
      list.push_back(value_of(element, entry));
    return list;
  }

  const c10::Storage& storage_of(int32_t index) {
    auto& storage = storages_[index];
    if (storage)
      return storage;
    const auto& slot = window_.slots[index];
    c10::DataPtr data;
    if (host_memory_ && !is_temporary(index)) {
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
  std::vector<std::pair<void*, size_t>> places(const OpEntry& entry, size_t first_result) const {
    std::vector<std::pair<void*, size_t>> found;
    for (int64_t k = 0; host_memory_ && k < entry.fresh; ++k) {
      const auto index = window_.slots_of_calls[first_result + k];
      const auto& slot = window_.slots[index];
      if (!is_temporary(index) && slot.block != nullptr)
        found.emplace_back(slot.block, slot.nbytes);
    }
    return found;
  }

  // A kernel may put one result where another one's place is: out of the way with it, before the
  // places are filled.
  void move_misplaced(const OpEntry& entry, size_t first_result, Stack& stack) const {
    std::vector<void*> blocks;
    for (int64_t k = 0; k < entry.fresh; ++k)
      blocks.push_back(window_.slots[window_.slots_of_calls[first_result + k]].block);
    size_t next = 0;
    const auto moved = [&](const at::Tensor& t) {
      const void* own = blocks[next++];
      const void* data = t.storage().data();
      const bool misplaced = data != own && data != nullptr &&
                             std::find(blocks.begin(), blocks.end(), data) != blocks.end();
      return misplaced ? t.clone() : t;
    };
    for (size_t i = 0; host_memory_ && entry.fresh > 1 && i < entry.results.size(); ++i) {
      const auto& plan = entry.results[i];
      if (plan.argument >= 0 || (!plan.list && !plan.defined))
        continue;
      if (!plan.list) {
        stack[i] = moved(stack[i].toTensor());
        continue;
      }
      auto list = stack[i].toTensorVector();
      for (size_t k = 0; k < list.size(); ++k) {
        if (plan.elements[k].defined)
          list[k] = moved(list[k]);
      }
      stack[i] = c10::List<at::Tensor>(list);
    }
  }

  void take(const ResultPlan& plan, const IValue& value, const OpEntry& entry) {
    if (!plan.defined)
      return;
    const auto index = window_.slots_of_calls[next_slot_++];
    const auto& got = value.toTensor();
    const auto& want = plan.layout;
    TORCH_CHECK(
        got.defined() && got.scalar_type() == want.dtype && got.sizes().vec() == want.sizes,
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
    const bool in_place = got.strides().vec() == want.strides && got.storage_offset() == 0 &&
                          !got.is_conj() && !got.is_neg();
    if (in_place && (is_temporary(index) || !host_memory_) && got.storage().use_count() == 1 &&
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
  bool host_memory_;
  std::vector<c10::Storage> storages_;  // by slot, on the host
  std::vector<int64_t> last_use_;       // by slot: the last call that uses it
  size_t next_tensor_ = 0, next_slot_ = 0, next_scalar_ = 0;
};

}  // namespace

void run_window_by_reference(
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release) {
  Runner(window, device, release).run();
}

}  // namespace tenon
