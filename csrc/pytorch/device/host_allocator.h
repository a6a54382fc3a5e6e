// Lets the host's kernels allocate on the device.
//
// A CPU kernel makes its results with PyTorch's CPU allocator. Within a `HostAllocationScope` that
// allocator hands out blocks of the device instead. So the results of reference execution are
// device memory from the start: nothing is copied, the statistics and the limit hold, and blocks
// are reused. Only on targets whose memory the host can reach.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <utility>
#include <vector>

#include "device/exchanged.h"

namespace tenon {

using Blocks = std::vector<std::pair<void*, size_t>>;  // with their bytes

// Does nothing when the target's memory is out of the host's reach.
struct HostAllocationScope : Exchanged<c10::DeviceIndex> {
  explicit HostAllocationScope(c10::DeviceIndex device);
};

// Within it, on this thread, an allocation of exactly a given block's bytes is that block, once.
// The blocks stay the caller's.
struct HostPlacement : Exchanged<Blocks> {
  explicit HostPlacement(Blocks blocks);
};

// Within it, on this thread, what the device has no memory for comes from the host: the work of
// calls that were recorded before is not lost for want of memory in between. What they make has its
// memory already.
struct HostOverflow : Exchanged<bool> {
  HostOverflow();
};

// A block of `device`, or, within a `HostOverflow` and where the host's memory is the device's,
// memory of the host.
c10::DataPtr device_block(size_t nbytes, c10::DeviceIndex device);

// Whether it is a block of the device that the host's allocator has given out.
bool is_device_block(const c10::DataPtr& memory);

// The allocator that does so. It becomes PyTorch's CPU allocator on first use. Outside of a scope
// it hands every request on to the one that was there.
c10::Allocator* host_allocator();

}  // namespace tenon
