// The target as the core sees it: the few functions through which memory is had and moved. Python's
// `Target` (torch_tenon/targets/target.py) is bound to this by bind.cpp.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tenon {

constexpr c10::DeviceType kTenon = c10::DeviceType::PrivateUse1;

enum class CopyKind : int { host_to_device = 0, device_to_host = 1, device_to_device = 2 };

struct Target {
  std::string name;
  bool host_memory = true;  // can the host dereference a device pointer?
  c10::DeviceIndex device_count = 0;
  // Addresses are integers, as Python has them.
  std::function<uintptr_t(size_t nbytes, c10::DeviceIndex)> allocate;  // 0: out of memory
  std::function<void(uintptr_t, c10::DeviceIndex)> free;
  std::function<void(uintptr_t dst, uintptr_t src, size_t nbytes, int kind, c10::DeviceIndex)> copy;
  std::function<void(c10::DeviceIndex)> synchronize;
  std::function<bool(c10::DeviceIndex)> idle;
  std::vector<size_t> total_memory;  // bytes, by device
};

// The target is set once, when the package is imported; it raises when none is set yet.
void set_target(Target target);
const Target& target();
bool has_target() noexcept;
c10::DeviceIndex device_count() noexcept;  // 0 without a target

// Raises when `index` is not one of the target's devices; -1 stands for the current device.
c10::DeviceIndex check_index(c10::DeviceIndex index);

// Copies `nbytes` with the target's own means, by a plain memcpy where the host can do it.
void copy_bytes(void* dst, const void* src, size_t nbytes, CopyKind kind, c10::DeviceIndex device);

}  // namespace tenon
