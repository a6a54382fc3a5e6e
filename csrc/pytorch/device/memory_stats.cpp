#include "device/memory_stats.h"

#include <c10/core/Allocator.h>

#include "device/blocks.h"
#include "device/target.h"

namespace tenon {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

StatType pool_of(size_t nbytes) {
  return nbytes <= kSmallLimit ? StatType::SMALL_POOL : StatType::LARGE_POOL;
}

void count(StatArray& array, size_t amount, int sign, StatType pool) {
  for (const auto type : {StatType::AGGREGATE, pool}) {
    auto& stat = array[static_cast<size_t>(type)];
    sign > 0 ? stat.increase(amount) : stat.decrease(amount);
  }
}

void set_current(StatArray& array, size_t amount, StatType pool) {
  const auto now = static_cast<size_t>(array[static_cast<size_t>(pool)].current);
  if (amount > now)
    count(array, amount - now, 1, pool);
  else if (amount < now)
    count(array, now - amount, -1, pool);
}

void count_block(
    c10::CachingDeviceAllocator::DeviceStats& stats,
    c10::DeviceIndex device,
    size_t nbytes,
    size_t requested,
    int sign,
    void* ptr) {
  const auto pool = pool_of(nbytes);
  count(stats.allocation, 1, sign, pool);
  count(stats.allocated_bytes, nbytes, sign, pool);
  count(stats.requested_bytes, requested, sign, pool);
  if (!c10::memoryProfilingEnabled())  // torch.profiler (profile_memory=True)
    return;
  constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
  c10::reportMemoryUsageToProfiler(
      ptr,
      sign * static_cast<int64_t>(nbytes),
      stats.allocated_bytes[kAll].current,
      stats.reserved_bytes[kAll].current,
      c10::Device(kTenon, device));
}

}  // namespace tenon
