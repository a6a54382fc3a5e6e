// Storages of the device.
#pragma once

#include <c10/core/Storage.h>

namespace tenon {

// An empty storage of `nbytes` on `device`, resizable.
c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device);

// Gives a storage another size; what fits of its content is kept.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);

}  // namespace tenon
