// Lets the host's kernels allocate on the device.
//
// A CPU kernel makes its results with PyTorch's CPU allocator. Within a `HostAllocationScope` that
// allocator hands out blocks of the device instead, so the results of reference execution are
// device memory from the start: nothing is copied, the statistics and the limit hold, and blocks
// are reused. Only on targets whose memory the host can reach.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <utility>
#include <vector>

namespace tenon {

class HostAllocationScope {
 public:
  // Does nothing when the target's memory is out of the host's reach.
  explicit HostAllocationScope(c10::DeviceIndex device);
  ~HostAllocationScope();
  HostAllocationScope(const HostAllocationScope&) = delete;
  HostAllocationScope& operator=(const HostAllocationScope&) = delete;

 private:
  c10::DeviceIndex previous_;
};

// Within it, on this thread, an allocation of exactly as many bytes as one of the given blocks has
// is that block, once. The blocks stay the caller's.
class HostPlacement {
 public:
  explicit HostPlacement(std::vector<std::pair<void*, size_t>> blocks);
  ~HostPlacement();
  HostPlacement(const HostPlacement&) = delete;
  HostPlacement& operator=(const HostPlacement&) = delete;

 private:
  std::vector<std::pair<void*, size_t>> previous_;
};

// Within it, on this thread, what the device has no memory for comes from the host: the work of
// calls that were recorded before is not lost for want of memory in between. What they make has its
// memory already.
class HostOverflow {
 public:
  HostOverflow();
  ~HostOverflow();
  HostOverflow(const HostOverflow&) = delete;
  HostOverflow& operator=(const HostOverflow&) = delete;

 private:
  bool previous_;
};

// Host memory that is a block of `device`, or the host's own within a `HostOverflow`.
c10::DataPtr allocate_on(size_t nbytes, c10::DeviceIndex device);

// The allocator that does so. It becomes PyTorch's CPU allocator on first use, and outside of a
// scope hands every request on to the one that was there.
c10::Allocator* host_allocator();

// Is the host storage's memory a block of `device`?
bool is_device_block(const c10::Storage& host, c10::DeviceIndex device);

// A storage of `device` with what the host storage holds: over the same memory where that is a
// block of the device, which then lives as long as both do, else a copy.
c10::Storage to_device_storage(const c10::Storage& host, c10::DeviceIndex device);

}  // namespace tenon
