#include "device/allocator.h"

#include <c10/util/ScopeExit.h>
#include <c10/util/flat_hash_map.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <vector>

#include "device/blocks.h"
#include "device/fork.h"
#include "device/memory_history.h"
#include "device/pending.h"
#include "device/ranges.h"
#include "device/storage.h"
#include "device/target.h"

namespace tenon {
namespace {

using c10::CachingAllocator::StatType;

constexpr size_t kLargeSegment = size_t{20} << 20;  // for blocks under half of it
constexpr size_t kSegmentRounding = size_t{2} << 20;

size_t block_size(size_t nbytes) {
  return round_up(std::max(nbytes, kAlignment), kAlignment);
}

struct AddressHash {
  using hash_policy = ska::fibonacci_hash_policy;
  size_t operator()(const void* ptr) const {
    return reinterpret_cast<size_t>(ptr);
  }
};

struct Allocated {
  Block* block;
  c10::DeviceIndex device;
};

struct Segment {
  c10::DeviceIndex device;
  uintptr_t handle;
};

struct DeviceMemory {
  BlockPool blocks;
  MemoryStats stats;
  std::optional<size_t> limit;
  // Bytes had from the target, those being asked for included, and bytes that tensors without
  // memory yet will need.
  size_t reserved = 0, expected = 0;
  size_t most_reserved = 0;  // of both, since the peak was reset
  int holds = 0;             // `SegmentsStay` that live
  std::vector<void*> held;   // blocks that were given back since then
};

class CachingAllocator final : public DeviceAllocator {
 public:
  // PyTorch asks for memory that somebody may write at once.
  c10::DataPtr allocate(size_t nbytes) override {
    return data_ptr_with_memory(nbytes, current_device());
  }

  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    copy_bytes(dst, src, nbytes, CopyKind::device_to_device, current_device());
  }

  void* allocate_block(size_t nbytes, c10::DeviceIndex device) override {
    if (nbytes == 0)
      return nullptr;
    const size_t size = block_size(nbytes);
    std::unique_lock<std::mutex> lock(mutex_);
    Block* block = take_unpromised(device, size);
    if (block == nullptr)
      block = new_segment(lock, device, size, nbytes);
    allocated_[block->ptr] = {block, device};
    block->allocated = true;
    block->requested = nbytes;
    memory(device).stats.count_block(device, block->size, nbytes, 1, block->ptr);
    note_memory(device, MemoryAction::alloc, block->ptr, block->size);
    return block->ptr;
  }

  bool release_block(void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = allocated_.find(ptr);
    if (found == allocated_.end())
      return false;
    const auto [block, device] = found->second;
    allocated_.erase(found);
    block->allocated = false;
    auto& m = memory(device);
    m.stats.count_block(device, block->size, block->requested, -1, ptr);
    note_memory(device, MemoryAction::free_requested, ptr, block->size);
    note_memory(device, MemoryAction::free_completed, ptr, block->size);
    m.blocks.give_back(block);
    if (m.holds > 0)
      m.held.push_back(ptr);
    return true;
  }

  void expect(size_t nbytes, c10::DeviceIndex device) override {
    const size_t size = block_size(nbytes);
    std::unique_lock<std::mutex> lock(mutex_);
    if (memory(device).reserved + memory(device).expected + size > limit_of(device))
      make_room(lock, device, size, nbytes);
    add_expected(memory(device), size);
  }

  void count_overflow(size_t nbytes, c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    add_expected(memory(device), block_size(nbytes));
  }

  void stop_expecting(size_t nbytes, c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    memory(device).expected -= block_size(nbytes);
  }

  void hold_segments(c10::DeviceIndex device, int change) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& m = memory(device);
    m.holds += change;
    if (m.holds == 0)
      m.held.clear();
  }

  std::optional<c10::DeviceIndex> device_of(const void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* segment = segments_.find(ptr).first;
    return segment != nullptr ? std::optional(segment->device) : std::nullopt;
  }

  Place place_of(const void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [segment, offset] = segments_.find(ptr);
    TORCH_INTERNAL_ASSERT(segment != nullptr, ptr, " is not in the memory of tenon");
    return {segment->handle, offset};
  }

  void set_limit(c10::DeviceIndex device, std::optional<size_t> nbytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    memory(check_index(device)).limit = nbytes;
  }

  size_t limit(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return limit_of(check_index(device));
  }

  std::vector<SegmentState> segments(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    std::map<uintptr_t, const Block*> blocks;
    memory(check_index(device)).blocks.add_free(blocks);
    for (const auto& [ptr, allocated] : allocated_) {
      if (allocated.device == device)
        blocks.emplace(reinterpret_cast<uintptr_t>(ptr), allocated.block);
    }
    std::vector<SegmentState> found;
    segments_.each([&](const char* start, size_t size, const Segment& segment) {
      if (segment.device != device)
        return;
      auto& made = found.emplace_back(SegmentState{reinterpret_cast<uintptr_t>(start), size, {}});
      const auto end = blocks.lower_bound(made.address + size);
      for (auto at = blocks.lower_bound(made.address); at != end; ++at) {
        const auto& block = *at->second;
        made.blocks.push_back({at->first, block.size, block.allocated ? block.requested : 0});
      }
    });
    return found;
  }

  bool initialized() override {
    return has_target();
  }

  void emptyCache(c10::MempoolId_t) override {
    std::unique_lock<std::mutex> lock(mutex_);
    for (c10::DeviceIndex device = 0; device < target().device_count; ++device)
      release_cached(lock, device);
  }

  void recordStream(const c10::DataPtr&, c10::Stream) override {
    // One in-order queue per device: a block that is handed out again is written by later work.
  }

  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& m = memory(check_index(device));
    for (const bool small : {false, true}) {
      const auto& split = m.blocks.split_blocks(small);
      m.stats.set_split(small, split.count, split.bytes);
    }
    // What tensors without memory yet will need is spoken for.
    DeviceStats stats = m.stats;
    stats.active = stats.allocation;
    stats.active_bytes = stats.allocated_bytes;
    auto& reserved = stats.reserved_bytes[static_cast<size_t>(StatType::AGGREGATE)];
    reserved.current = static_cast<int64_t>(committed(m));
    reserved.peak = static_cast<int64_t>(m.most_reserved);
    return stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    memory(check_index(device)).stats.reset_accumulated();
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& m = memory(check_index(device));
    m.stats.reset_peak();
    m.most_reserved = committed(m);
  }

  // It overrides since PyTorch 2.13.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    device = check_index(device);
    const auto total = limit_of(device);
    const auto used = committed(memory(device));
    return {total > used ? total - used : 0, total};
  }

 private:
  DeviceMemory& memory(c10::DeviceIndex device) {
    if (memory_.size() <= static_cast<size_t>(device))
      memory_.resize(device + 1);
    return memory_[device];
  }

  size_t limit_of(c10::DeviceIndex device) {
    auto& limit = memory(device).limit;
    return limit.has_value() ? *limit : target().total_memory.at(device);
  }

  static void add_expected(DeviceMemory& memory, size_t size) {
    memory.expected += size;
    memory.most_reserved = std::max(memory.most_reserved, committed(memory));
  }

  // What is had from the target, or will be: tensors without memory yet may get what is free.
  static size_t committed(const DeviceMemory& memory) {
    return std::max(memory.reserved, memory.stats.bytes_of_blocks() + memory.expected);
  }

  // A free block that tensors without memory yet do not need; nullptr where there is none.
  Block* take_unpromised(c10::DeviceIndex device, size_t size) {
    auto& m = memory(device);
    const bool spare = m.stats.bytes_of_blocks() + m.expected + size <= limit_of(device);
    return spare ? m.blocks.take(size) : nullptr;
  }

  // Before more memory is promised than the limit allows: what is cached goes back, then what was
  // recorded runs, so that what it keeps is free. Raises where tensors themselves need too much.
  void make_room(
      std::unique_lock<std::mutex>& lock, c10::DeviceIndex device, size_t size, size_t requested) {
    const auto fits = [&] {
      return memory(device).reserved + memory(device).expected + size <= limit_of(device);
    };
    release_cached(lock, device);
    if (fits())
      return;
    ++memory(device).stats.num_alloc_retries;
    lock.unlock();
    commit(device, CommitReason::memory);
    lock.lock();
    release_cached(lock, device);
    // What is left of segments in use may serve.
    auto& m = memory(device);
    if (!fits() && m.reserved + m.expected + size > limit_of(device) + m.blocks.free_bytes(size))
      raise_out_of_memory(lock, device, requested);
  }

  // Gets memory from the target. The lock is open while the target works: it may be Python, and
  // another thread may hold the interpreter and wait for this lock.
  Block* new_segment(
      std::unique_lock<std::mutex>& lock, c10::DeviceIndex device, size_t size, size_t requested) {
    const size_t roomy = size <= kSmallLimit        ? kSmallSegment
                         : size < kLargeSegment / 2 ? kLargeSegment
                                                    : round_up(size, kSegmentRounding);
    for (const bool retry : {false, true}) {
      // Near the limit a segment is no larger than the block.
      for (const size_t segment_size : {roomy, size}) {
        if (memory(device).reserved + memory(device).expected + segment_size > limit_of(device))
          continue;
        if (void* ptr = ask_target(lock, device, segment_size)) {
          auto& m = memory(device);
          m.stats.count_segment(segment_size, 1);
          m.most_reserved = std::max(m.most_reserved, committed(m));
          note_memory(device, MemoryAction::segment_alloc, ptr, segment_size);
          return m.blocks.add_segment(ptr, segment_size, size);
        }
      }
      if (!retry) {
        ++memory(device).stats.num_alloc_retries;
        lock.unlock();
        commit(device, CommitReason::memory);
        lock.lock();
        release_cached(lock, device);
        if (Block* block = take_unpromised(device, size))  // another thread freed one meanwhile
          return block;
      }
    }
    raise_out_of_memory(lock, device, requested);
  }

  [[noreturn]] void raise_out_of_memory(
      std::unique_lock<std::mutex>& lock, c10::DeviceIndex device, size_t requested) {
    ++memory(device).stats.num_ooms;
    note_memory(device, MemoryAction::oom, nullptr, requested);
    const auto allocated = memory(device).stats.bytes_of_blocks();
    const auto reserved = committed(memory(device));
    const auto message = c10::str(
        "tenon out of memory. Tried to allocate ",
        c10::CachingAllocator::format_size(requested),
        ". ",
        c10::Device(kTenon, device),
        " may hold ",
        c10::CachingAllocator::format_size(limit_of(device)),
        ", of which ",
        c10::CachingAllocator::format_size(allocated),
        " is allocated and ",
        c10::CachingAllocator::format_size(reserved > allocated ? reserved - allocated : 0),
        " is cached or split. Free tensors, or raise the limit (TENON_MEMORY_LIMIT, "
        "torch.tenon.set_memory_limit).");
    lock.unlock();
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }

  // The address of a new segment; nullptr when the target has no more.
  void* ask_target(
      std::unique_lock<std::mutex>& lock, c10::DeviceIndex device, size_t segment_size) {
    memory(device).reserved += segment_size;
    uintptr_t handle = 0;
    void* ptr = nullptr;
    const auto asked = c10::make_scope_exit([&] {
      lock.lock();
      if (ptr == nullptr)
        memory(device).reserved -= segment_size;
      else
        segments_.add(ptr, segment_size, {device, handle});
    });
    lock.unlock();
    handle = target().allocate(segment_size, device);
    if (handle == 0 || target().host_memory)
      return ptr = reinterpret_cast<void*>(handle);
    ptr = mmap(
        nullptr,
        segment_size,
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        /*fd=*/-1,
        /*offset=*/0);
    if (ptr == MAP_FAILED) {
      target().free(handle, device);
      ptr = nullptr;
    }
    return ptr;
  }

  // Gives the segments that are wholly free back to the target. They count until it has them: the
  // next thread that needs memory waits for the queue, and finds it.
  void release_cached(std::unique_lock<std::mutex>& lock, c10::DeviceIndex device) {
    lock.unlock();
    std::optional<QueueTurn> alone(std::in_place, device);
    lock.lock();
    const auto free_segments = memory(device).blocks.remove_free_segments(memory(device).held);
    std::vector<uintptr_t> handles;
    for (const auto& [ptr, size] : free_segments) {
      handles.push_back(segments_.find(ptr).first->handle);
      segments_.remove(ptr);
    }
    lock.unlock();
    if (!free_segments.empty() && !target().host_memory)
      wait_for(device, commit_part(device), "memory");  // work in flight may still use them
    for (size_t k = 0; k < handles.size(); ++k) {
      target().free(handles[k], device);
      if (!target().host_memory)
        munmap(free_segments[k].first, free_segments[k].second);
    }
    lock.lock();
    for (const auto& [ptr, size] : free_segments) {
      auto& m = memory(device);
      m.stats.count_segment(size, -1);
      m.reserved -= size;
      note_memory(device, MemoryAction::segment_free, ptr, size);
    }
    lock.unlock();
    alone.reset();
    is_idle(device);  // what is over lets go of more
    lock.lock();
  }

  MutexAtFork<ForkOrder::blocks> mutex_;
  std::vector<DeviceMemory> memory_;
  ska::flat_hash_map<void*, Allocated, AddressHash> allocated_;
  Ranges<Segment> segments_;
};

CachingAllocator& caching() {
  return OnlyOne<CachingAllocator>::get();
}

REGISTER_ALLOCATOR(kTenon, &caching());

}  // namespace

DeviceAllocator& device_allocator() {
  return caching();
}

c10::DataPtr new_block(size_t nbytes, c10::DeviceIndex device) {
  void* ptr = caching().allocate_block(nbytes, device);
  const auto release = [](void* block) { caching().release_block(block); };
  return {ptr, ptr, release, c10::Device(kTenon, device)};
}

}  // namespace tenon
