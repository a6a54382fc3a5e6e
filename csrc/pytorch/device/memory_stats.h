// The statistics of device memory that `torch.accelerator.memory_stats` tells.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace tenon {

// How the statistics name the pool that a block or a segment is of.
c10::CachingAllocator::StatType pool_of(size_t nbytes);

// Adds an amount (sign 1) or takes it away (-1), of a pool and of all together.
void count(
    c10::CachingAllocator::StatArray& array,
    size_t amount,
    int sign,
    c10::CachingAllocator::StatType pool);

// Makes an amount the current one of a pool.
void set_current(
    c10::CachingAllocator::StatArray& array, size_t amount, c10::CachingAllocator::StatType pool);

// A block of that many bytes that a tensor has from now on (sign 1) or no longer (-1); it asked for
// `requested`. A profiler that follows memory hears of it.
void count_block(
    c10::CachingDeviceAllocator::DeviceStats& stats,
    c10::DeviceIndex device,
    size_t nbytes,
    size_t requested,
    int sign,
    void* ptr);

}  // namespace tenon
