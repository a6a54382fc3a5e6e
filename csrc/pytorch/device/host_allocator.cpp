#include "device/host_allocator.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

#include "device/allocator.h"
#include "device/target.h"

namespace tenon {
namespace {

constexpr c10::DeviceIndex kHost = -1;

// On which device a host allocation of this thread is made.
thread_local c10::DeviceIndex t_place = kHost;
// Blocks that wait for an allocation of their size (bytes; 0 once it came).
thread_local Blocks t_places;
thread_local bool t_overflow = false;

bool is_place(const void* ptr) {
  for (const auto& [block, size] : t_places) {
    if (block == ptr)
      return true;
  }
  return false;
}

class HostAllocator final : public c10::Allocator {
 public:
  explicit HostAllocator(c10::Allocator* previous) : previous_(previous) {}

  c10::DataPtr allocate(size_t nbytes) override {
    if (t_place == kHost || nbytes == 0)
      return previous_->allocate(nbytes);
    for (auto& [block, size] : t_places) {
      if (std::exchange(size, size == nbytes ? 0 : size) == nbytes)
        return {block, block, [](void*) {}, c10::Device(c10::kCPU)};
    }
    return allocate_block(nbytes, t_place);
  }

  c10::DataPtr allocate_block(size_t nbytes, c10::DeviceIndex device) {
    try {
      void* ptr = device_allocator().allocate_block(nbytes, device);
      return {ptr, ptr, &release, c10::Device(c10::kCPU)};
    } catch (const c10::OutOfMemoryError&) {
      if (!t_overflow || !target().host_memory)
        throw;
      return previous_->allocate(nbytes);
    }
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    default_copy_data(dst, src, nbytes);
  }

  static bool has_given(const c10::DataPtr& memory) {
    return memory.get_deleter() == &release;
  }

 private:
  static void release(void* ptr);

  c10::Allocator* previous_;
};

// Leaked on purpose: host tensors may die after static destructors have run.
HostAllocator& instance() {
  static auto* allocator = [] {
    auto* made = new HostAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, /*priority=*/100);
    return made;
  }();
  return *allocator;
}

// Also called for what the previous allocator gave, when a caller frees through `raw_deleter`.
void HostAllocator::release(void* ptr) {
  if (is_place(ptr))
    return;  // scratch memory that was freed by hand; the block is not ours
  if (ptr != nullptr && !device_allocator().release_block(ptr))
    instance().previous_->raw_deleter()(ptr);
}

}  // namespace

HostAllocationScope::HostAllocationScope(c10::DeviceIndex device)
    : Exchanged(t_place, has_target() && target().host_memory ? device : t_place) {
  host_allocator();
}

HostPlacement::HostPlacement(Blocks blocks) : Exchanged(t_places, std::move(blocks)) {}

HostOverflow::HostOverflow() : Exchanged(t_overflow, true) {}

c10::DataPtr device_block(size_t nbytes, c10::DeviceIndex device) {
  return instance().allocate_block(nbytes, device);
}

bool is_device_block(const c10::DataPtr& memory) {
  return HostAllocator::has_given(memory);
}

c10::Allocator* host_allocator() {
  return &instance();
}

}  // namespace tenon
