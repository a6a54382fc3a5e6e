// The statistics of a device's memory that `torch.accelerator.memory_stats` tells.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace tenon {

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

struct MemoryStats : DeviceStats {
  // A block of that many bytes that a tensor has from now on (sign 1) or no longer (-1); it asked
  // for `requested`. A profiler that follows memory hears of it.
  void count_block(c10::DeviceIndex device, size_t nbytes, size_t requested, int sign, void* ptr);
  // A segment that was had from the target (sign 1) or went back (-1).
  void count_segment(size_t nbytes, int sign);
  // The free blocks of a pool that share their segment with others.
  void set_split(bool small, size_t blocks, size_t nbytes);

  size_t bytes_of_blocks() const;
  void reset_accumulated();
  void reset_peak();
};

}  // namespace tenon
