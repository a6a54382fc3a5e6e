// What a run of a compiled graph gives back: tensors over the memory of its slots.

#include "device/storage.h"
#include "device/target.h"
#include "execute/plan_run.h"

namespace tenon {

at::Tensor PlanRun::result(const SlotTensor& spec) {
  const auto& [slot, layout] = spec;
  const auto kind = data_.slots[slot].kind;
  auto& memory = memory_[slot];
  if (kind == Slot::Kind::constant)
    return tensor_over(data_.slots[slot].tensor.storage(), layout).to(device_);
  if (kind == Slot::Kind::output && !memory)  // no step writes it: it has no elements
    allocate(slot);
  TORCH_INTERNAL_ASSERT(memory, "a plan's result has no memory");
  // What a call made comes to the device once, as several results may share it.
  if (kind == Slot::Kind::external && !device_.is_cpu() && memory.device_type() != kTenon) {
    const auto* before = static_cast<const char*>(memory.data());
    const auto start = static_cast<const char*>(pointers_[slot]) - before;
    memory = host_memory_
                 ? to_device_storage(memory, device_.index())
                 : storage_over(
                       std::move(memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()),
                       memory.nbytes(),
                       device_.index());
    pointers_[slot] = static_cast<char*>(raw_address(*memory.unsafeGetStorageImpl())) + start;
  }
  const auto* first = static_cast<const char*>(pointers_[slot]);
  const auto start =
      first != nullptr
          ? first - static_cast<const char*>(raw_address(*memory.unsafeGetStorageImpl()))
          : 0;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(layout.dtype));
  TORCH_CHECK(
      start % itemsize == 0,
      c10::str("a result of dtype ", layout.dtype, " does not start at one of its elements: "),
      "the tensor that it is a view of begins at byte ",
      start);
  return tensor_over(memory, layout, start / itemsize);
}

}  // namespace tenon
