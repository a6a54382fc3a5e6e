#include "device/memory_stats.h"

#include <c10/core/Allocator.h>

#include "device/blocks.h"
#include "device/target.h"

namespace tenon {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);

StatType pool_of(size_t nbytes) {
  return nbytes <= kSmallLimit ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

// Adds an amount (sign 1) or takes it away (-1), of a pool and of all together.
void count(StatArray& array, size_t amount, int sign, StatType pool) {
  for (const auto type : {StatType::AGGREGATE, pool}) {
    auto& stat = array[static_cast<size_t>(type)];
    sign > 0 ? stat.increase(amount) : stat.decrease(amount);
  }
}

// Makes an amount the current one of a pool.
void set_current(StatArray& array, size_t amount, StatType pool) {
  const auto now = static_cast<size_t>(array[static_cast<size_t>(pool)].current);
  if (amount > now)
    count(array, amount - now, 1, pool);
  else if (amount < now)
    count(array, now - amount, -1, pool);
}

template <class F>
void each_stat(DeviceStats& s, F&& f) {
  for (auto* array :
       {&s.allocation,
        &s.segment,
        &s.inactive_split,
        &s.allocated_bytes,
        &s.reserved_bytes,
        &s.inactive_split_bytes,
        &s.requested_bytes}) {
    for (auto& stat : *array)
      f(stat);
  }
}

}  // namespace

void MemoryStats::count_block(
    c10::DeviceIndex device, size_t nbytes, size_t requested, int sign, void* ptr) {
  const auto pool = pool_of(nbytes);
  count(allocation, 1, sign, pool);
  count(allocated_bytes, nbytes, sign, pool);
  count(requested_bytes, requested, sign, pool);
  if (!c10::memoryProfilingEnabled())  // torch.profiler (profile_memory=True)
    return;
  c10::reportMemoryUsageToProfiler(
      ptr,
      sign * static_cast<int64_t>(nbytes),
      allocated_bytes[kAll].current,
      reserved_bytes[kAll].current,
      c10::Device(kTenon, device));
}

void MemoryStats::count_segment(size_t nbytes, int sign) {
  ++(sign > 0 ? num_device_alloc : num_device_free);
  count(segment, 1, sign, pool_of(nbytes));
  count(reserved_bytes, nbytes, sign, pool_of(nbytes));
}

void MemoryStats::set_split(bool small, size_t blocks, size_t nbytes) {
  const auto pool = small ? StatType::SMALL_POOL : StatType::LARGE_POOL;
  set_current(inactive_split, blocks, pool);
  set_current(inactive_split_bytes, nbytes, pool);
}

size_t MemoryStats::bytes_of_blocks() const {
  return allocated_bytes[kAll].current;
}

void MemoryStats::reset_accumulated() {
  each_stat(*this, [](auto& stat) { stat.reset_accumulated(); });
  num_alloc_retries = num_ooms = 0;
  num_device_alloc = num_device_free = 0;
}

void MemoryStats::reset_peak() {
  each_stat(*this, [](auto& stat) { stat.reset_peak(); });
}

}  // namespace tenon
