// Current device and current stream of a thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace tenon {

c10::DeviceIndex current_device() noexcept;
// Returns the device that was current; raises for a device that does not exist.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
// The same for a device that exists.
c10::StreamId current_stream_id(c10::DeviceIndex index) noexcept;
// Waits for everything enqueued on the device.
void synchronize(c10::DeviceIndex index);

}  // namespace tenon
