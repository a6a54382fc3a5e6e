// Storages of the device.
#pragma once

#include <c10/core/Storage.h>

namespace tenon {

// An empty storage of `nbytes` on `device`, resizable; `brief`: it is expected to die unwritten.
c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device, bool brief = false);

// Gives a storage another size; what fits of its content is kept.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

// A storage of `device` with what the host storage holds: over the same memory where that is a
// block of the device, which then lives as long as both do, else a copy.
c10::Storage to_device_storage(const c10::Storage& host, c10::DeviceIndex device);

// Does the storage tell the device's allocator when it dies?
bool is_device_storage(const c10::Storage& storage);

}  // namespace tenon
