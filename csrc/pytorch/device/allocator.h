// The caching allocator of device memory.
//
// Memory is had from the target in segments and handed out in blocks (device/blocks.h). Segments
// return to the target when it has nothing more to give or when asked (`empty_cache`). An address
// is the target's handle plus an offset where the host can dereference it. On another target it is
// one of a reservation without access rights, which `place_of` translates. So a driver's opaque
// handles fit, and a slip of the host's is a crash and no wrong number.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/memory_stats.h"
#include "device/target.h"

namespace tenon {

// A segment of a device's memory, and its blocks in the order of their addresses.
struct SegmentState {
  uintptr_t address;
  size_t nbytes;
  struct BlockState {
    uintptr_t address;
    size_t nbytes, requested;  // 0 requested: it is free
  };
  std::vector<BlockState> blocks;
};

class DeviceAllocator : public c10::DeviceAllocator {
 public:
  // A block of at least `nbytes` on `device`, nullptr for none; raises c10::OutOfMemoryError.
  virtual void* allocate_block(size_t nbytes, c10::DeviceIndex device) = 0;
  // Takes a block back; false for a pointer that is none.
  virtual bool release_block(void* ptr) = 0;
  // A tensor was made whose memory comes when it is written: it is reserved from now on. Raises
  // c10::OutOfMemoryError where the device could not give it.
  virtual void expect(size_t nbytes, c10::DeviceIndex device) = 0;
  // The same for one that lies in memory of the host meanwhile, since the device had none left.
  virtual void count_overflow(size_t nbytes, c10::DeviceIndex device) = 0;
  // It has its memory now, or needs none any more.
  virtual void stop_expecting(size_t nbytes, c10::DeviceIndex device) = 0;
  // See `SegmentsStay`: 1 where one begins, -1 where it ends.
  virtual void hold_segments(c10::DeviceIndex device, int change) = 0;
  // The device on whose memory `ptr` lies, also inside of a block.
  virtual std::optional<c10::DeviceIndex> device_of(const void* ptr) = 0;
  virtual Place place_of(const void* ptr) = 0;
  // Most bytes to hold from the target at once; none: all that the target has.
  virtual void set_limit(c10::DeviceIndex device, std::optional<size_t> nbytes) = 0;
  virtual size_t limit(c10::DeviceIndex device) = 0;
  virtual std::vector<SegmentState> segments(c10::DeviceIndex device) = 0;
};

DeviceAllocator& device_allocator();

// While one lives, a block that is given back may be taken again, and its segment stays: a plan has
// its memory before its steps are enqueued, and one that will be enqueued may use the block.
class SegmentsStay {
 public:
  explicit SegmentsStay(c10::DeviceIndex device) : device_(device) {
    device_allocator().hold_segments(device_, 1);
  }
  ~SegmentsStay() {
    device_allocator().hold_segments(device_, -1);
  }
  SegmentsStay(const SegmentsStay&) = delete;
  SegmentsStay& operator=(const SegmentsStay&) = delete;

 private:
  const c10::DeviceIndex device_;
};

// A DataPtr of `device` over a new block; raises c10::OutOfMemoryError.
c10::DataPtr new_block(size_t nbytes, c10::DeviceIndex device);

}  // namespace tenon
