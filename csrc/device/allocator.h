// The caching allocator of device memory, and the pinned host memory beside it.
//
// Memory is had from the target in segments and handed out in blocks: best fit, split when much is
// left over, merged with free neighbours. Segments return to the target when it has nothing more
// to give or when asked (`empty_cache`).
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <optional>

namespace tenon {

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

class DeviceAllocator : public c10::DeviceAllocator {
 public:
  // A block of at least `nbytes` on `device`, nullptr for none; raises c10::OutOfMemoryError.
  virtual void* allocate_block(size_t nbytes, c10::DeviceIndex device) = 0;
  // The same for contents that are not expected to be written: an address, whose memory is neither
  // counted nor there until `back_block`. nullptr where there is no such thing.
  virtual void* promise_block(size_t nbytes, c10::DeviceIndex device) = 0;
  // A block is about to be written, whatever was expected of it.
  virtual void back_block(void* ptr) = 0;
  // Takes back what these gave; false for a pointer that it did not give.
  virtual bool release_block(void* ptr) = 0;
  // The device on whose memory `ptr` lies, also inside of a block.
  virtual std::optional<c10::DeviceIndex> device_of(const void* ptr) = 0;
  // Most bytes to hold from the target at once; none: all that the target has.
  virtual void set_limit(c10::DeviceIndex device, std::optional<size_t> nbytes) = 0;
  virtual size_t limit(c10::DeviceIndex device) = 0;
};

DeviceAllocator& device_allocator();

// A DataPtr of `device` over a block.
c10::DataPtr data_ptr_of_block(void* ptr, c10::DeviceIndex device);

// Page-aligned host memory; a target whose transfers need more registers it in `copy`.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* ptr);

}  // namespace tenon
