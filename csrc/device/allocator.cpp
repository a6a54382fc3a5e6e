#include "device/allocator.h"

#include <c10/util/ScopeExit.h>
#include <sys/mman.h>

#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "device/guard.h"
#include "device/recorded.h"
#include "device/target.h"

namespace tenon {
namespace {

using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;

constexpr size_t kAlignment = 512;  // bytes; a block's size and address are multiples of it
constexpr size_t kSmallLimit = size_t{1} << 20;  // up to here a block comes from a small segment
constexpr size_t kSmallSegment = size_t{2} << 20;
constexpr size_t kLargeSegment = size_t{20} << 20;  // for blocks under half of it
constexpr size_t kSegmentRounding = size_t{2} << 20;
constexpr size_t kPage = 4096;
// Addresses for blocks that are promised and, as expected, never written; they cost nothing.
constexpr size_t kAddresses = size_t{1} << 38;

size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct Block {
  c10::DeviceIndex device;
  bool small;
  void* ptr;
  size_t size;
  size_t requested = 0;
  bool allocated = false;
  bool waiting = false;       // free, and in `Pool::waiting`
  bool of_addresses = false;  // from `promise_block`
  bool promised = false;      // ... and without memory
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;

  bool whole_segment() const {
    return previous == nullptr && next == nullptr;
  }
};

// A stretch of memory, by its start.
struct Range {
  size_t size;
  c10::DeviceIndex device = -1;
};
using Ranges = std::map<const void*, Range>;

// The range that `ptr` lies in, also inside of it.
const Range* find(const Ranges& ranges, const void* ptr) {
  const auto after = ranges.upper_bound(ptr);
  if (after == ranges.begin())
    return nullptr;
  const auto& [start, range] = *std::prev(after);
  const auto* end = static_cast<const char*>(start) + range.size;
  return static_cast<const char*>(ptr) < end ? &range : nullptr;
}

using FreeBlocks = std::map<std::pair<size_t, void*>, Block*>;  // by size, then address

struct Pool {
  FreeBlocks free[2];  // large blocks, small ones
  // Small blocks that were just freed, by size in units of the alignment: the next request is most
  // often for one of these, and what is neither merged nor split costs next to nothing.
  std::array<std::vector<Block*>, kSmallLimit / kAlignment + 1> waiting;
  std::unordered_map<size_t, std::vector<Block*>> promised;  // free ones, by size
  DeviceStats stats;
  std::optional<size_t> limit;
  size_t reserved = 0;  // bytes had from the target, those being asked for included
};

class CachingAllocator final : public DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override {
    const auto device = current_device();
    return data_ptr_of_block(allocate_block(nbytes, device), device);
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release_untyped;
  }

  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    copy_bytes(dst, src, nbytes, CopyKind::device_to_device, current_device());
  }

  void* allocate_block(size_t nbytes, c10::DeviceIndex device) override {
    if (nbytes == 0)
      return nullptr;
    check_index(device);
    const size_t size = round_up(std::max(nbytes, kAlignment), kAlignment);
    const bool small = size <= kSmallLimit;
    std::unique_lock<std::mutex> lock(mutex_);
    Block* block = small ? take_waiting(device, size) : nullptr;
    if (block == nullptr) {
      block = take_free(device, size, small);
      if (block == nullptr && small && merge_waiting(device))
        block = take_free(device, size, small);
      if (block == nullptr)
        block = new_segment(lock, device, size, small, nbytes);
      split(block, size);
      allocated_[block->ptr] = block;
    }
    block->allocated = true;
    block->requested = nbytes;
    count_allocated(*block, 1);
    return block->ptr;
  }

  void* promise_block(size_t nbytes, c10::DeviceIndex device) override {
    if (!target().host_memory || nbytes == 0)
      return nullptr;
    const size_t size = round_up(nbytes, kPage);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& free = pool(check_index(device)).promised[size];
    if (free.empty()) {
      void* address = take_addresses(size);
      if (address == nullptr)
        return nullptr;
      auto* made = new Block{device, /*small=*/false, address, size};
      made->of_addresses = true;
      segments_[address] = {size, device};
      allocated_[address] = made;
      free.push_back(made);
    }
    Block* block = free.back();
    free.pop_back();
    block->allocated = block->promised = true;
    block->requested = nbytes;
    return block->ptr;
  }

  void back_block(void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = allocated_.find(ptr);
    if (found != allocated_.end() && std::exchange(found->second->promised, false))
      count_allocated(*found->second, 1);
  }

  bool release_block(void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = allocated_.find(ptr);
    if (found == allocated_.end() || !found->second->allocated)
      return false;
    Block* block = found->second;
    if (keep_block(ptr, block->device))
      return true;
    block->allocated = false;
    if (!block->promised)
      count_allocated(*block, -1);
    if (block->of_addresses)
      forget_contents(block);
    else if (block->small)
      make_wait(block);
    else
      make_free(block);
    return true;
  }

  std::optional<c10::DeviceIndex> device_of(const void* ptr) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto* segment = find(segments_, ptr);
    return segment != nullptr ? std::optional(segment->device) : std::nullopt;
  }

  void set_limit(c10::DeviceIndex device, std::optional<size_t> nbytes) override {
    std::lock_guard<std::mutex> lock(mutex_);
    pool(check_index(device)).limit = nbytes;
  }

  size_t limit(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return limit_of(check_index(device));
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
    return pool(check_index(device)).stats;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = pool(device).stats;
    stats.num_alloc_retries = stats.num_ooms = 0;
    stats.num_device_alloc = stats.num_device_free = 0;
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }

  // It overrides since PyTorch 2.13.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto total = limit_of(check_index(device));
    const auto reserved = pool(device).reserved;
    return {total > reserved ? total - reserved : 0, total};
  }

 private:
  static void release_untyped(void* ptr) {
    device_allocator().release_block(ptr);
  }

  Pool& pool(c10::DeviceIndex device) {
    if (pools_.size() <= static_cast<size_t>(device))
      pools_.resize(device + 1);
    return pools_[device];
  }

  size_t limit_of(c10::DeviceIndex device) {
    auto& limit = pool(device).limit;
    return limit.has_value() ? *limit : target().total_memory.at(device);
  }

  // The next addresses; nullptr when the process may not have so many.
  void* take_addresses(size_t size) {
    if (addresses_ == nullptr) {
      void* got = mmap(
          nullptr,
          kAddresses,
          PROT_READ | PROT_WRITE,
          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
          /*fd=*/-1,
          /*offset=*/0);
      addresses_left_ = got != MAP_FAILED ? kAddresses : 0;
      addresses_ = static_cast<char*>(got);
    }
    if (addresses_left_ < size)
      return nullptr;
    addresses_left_ -= size;
    return std::exchange(addresses_, addresses_ + size);
  }

  // What the host's system did not give memory for yet, or gives none any more, needs none.
  void forget_contents(Block* block) {
    if (!block->promised)
      madvise(block->ptr, block->size, MADV_DONTNEED);
    pool(block->device).promised[block->size].push_back(block);
  }

  // A block that waits for a request of its size.
  Block* take_waiting(c10::DeviceIndex device, size_t size) {
    auto& blocks = pool(device).waiting[size / kAlignment];
    if (blocks.empty())
      return nullptr;
    Block* block = blocks.back();
    blocks.pop_back();
    block->waiting = false;
    count_inactive_split(*block, -1);
    return block;
  }

  // Makes the blocks that wait free ones, merged with their neighbours. False: none waits.
  bool merge_waiting(c10::DeviceIndex device) {
    bool any = false;
    for (auto& blocks : pool(device).waiting) {
      for (Block* block : blocks) {
        block->waiting = false;
        count_inactive_split(*block, -1);
        make_free(block);
        any = true;
      }
      blocks.clear();
    }
    return any;
  }

  Block* take_free(c10::DeviceIndex device, size_t size, bool small) {
    auto& free = pool(device).free[small];
    const auto found = free.lower_bound({size, nullptr});
    if (found == free.end())
      return nullptr;
    Block* block = found->second;
    leave_free(block);
    return block;
  }

  // Gets memory from the target. The lock is open while the target works: it may be Python, and
  // another thread may hold the interpreter and wait for this lock.
  Block* new_segment(
      std::unique_lock<std::mutex>& lock,
      c10::DeviceIndex device,
      size_t size,
      bool small,
      size_t requested) {
    const size_t roomy = small                      ? kSmallSegment
                         : size < kLargeSegment / 2 ? kLargeSegment
                                                    : round_up(size, kSegmentRounding);
    for (const bool retry : {false, true}) {
      // Near the limit a segment is no larger than the block.
      for (const size_t segment_size : {roomy, size}) {
        if (pool(device).reserved + segment_size > limit_of(device))
          continue;
        pool(device).reserved += segment_size;
        void* ptr = nullptr;
        {
          const auto asked = c10::make_scope_exit([&] {
            lock.lock();
            if (ptr == nullptr)
              pool(device).reserved -= segment_size;
          });
          lock.unlock();
          ptr = reinterpret_cast<void*>(target().allocate(segment_size, device));
        }
        if (ptr != nullptr)
          return add_segment(ptr, segment_size, device, small);
      }
      if (!retry) {
        ++pool(device).stats.num_alloc_retries;
        lock.unlock();
        commit(device, CommitReason::memory);
        lock.lock();
        release_cached(lock, device);
        if (Block* block = take_free(device, size, small))  // another thread freed one meanwhile
          return block;
      }
    }
    auto& stats = pool(device).stats;
    ++stats.num_ooms;
    const auto allocated = stats.allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)].current;
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
        c10::CachingAllocator::format_size(pool(device).reserved - allocated),
        " is cached or split. Free tensors, or raise the limit (TENON_MEMORY_LIMIT, "
        "torch.tenon.set_memory_limit).");
    lock.unlock();
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }

  Block* add_segment(void* ptr, size_t size, c10::DeviceIndex device, bool small) {
    auto* block = new Block{device, small, ptr, size};
    segments_[ptr] = {size, device};
    ++pool(device).stats.num_device_alloc;
    count_segment(*block, 1);
    return block;
  }

  // Gives the segments that are wholly free back to the target.
  void release_cached(std::unique_lock<std::mutex>& lock, c10::DeviceIndex device) {
    merge_waiting(device);
    std::vector<void*> free_segments;
    for (auto& free : pool(device).free) {
      std::erase_if(free, [&](const auto& entry) {
        Block* block = entry.second;
        if (!block->whole_segment())
          return false;
        free_segments.push_back(block->ptr);
        segments_.erase(block->ptr);
        ++pool(device).stats.num_device_free;
        count_segment(*block, -1);
        pool(device).reserved -= block->size;
        delete block;
        return true;
      });
    }
    if (free_segments.empty())
      return;
    lock.unlock();
    target().synchronize(device);  // work in flight may still use them
    for (void* ptr : free_segments)
      target().free(reinterpret_cast<uintptr_t>(ptr), device);
    lock.lock();
  }

  // Cuts what `block` has beyond `size` off it, where the rest is worth keeping.
  void split(Block* block, size_t size) {
    const size_t rest_size = block->size - size;
    if (block->small ? rest_size < kAlignment : rest_size <= kSmallLimit)
      return;
    auto* rest =
        new Block{block->device, block->small, static_cast<char*>(block->ptr) + size, rest_size};
    rest->previous = block;
    rest->next = block->next;
    if (rest->next != nullptr)
      rest->next->previous = rest;
    block->next = rest;
    block->size = size;
    enter_free(rest);
  }

  void make_wait(Block* block) {
    block->waiting = true;
    pool(block->device).waiting[block->size / kAlignment].push_back(block);
    count_inactive_split(*block, 1);
  }

  void make_free(Block* block) {
    allocated_.erase(block->ptr);
    block = absorb(block, block->previous);
    enter_free(absorb(block, block->next));
  }

  void enter_free(Block* block) {
    pool(block->device).free[block->small].emplace(std::pair(block->size, block->ptr), block);
    count_inactive_split(*block, 1);
  }

  void leave_free(Block* block) {
    pool(block->device).free[block->small].erase({block->size, block->ptr});
    count_inactive_split(*block, -1);
  }

  // Joins `block`, which is in no free list, with a neighbour if that is free.
  Block* absorb(Block* block, Block* neighbour) {
    if (neighbour == nullptr || neighbour->allocated || neighbour->waiting)
      return block;
    leave_free(neighbour);
    const bool before = block->previous == neighbour;
    Block* left = before ? neighbour : block;
    Block* right = before ? block : neighbour;
    left->size += right->size;
    left->next = right->next;
    if (left->next != nullptr)
      left->next->previous = left;
    delete right;
    return left;
  }

  // Counts a block in statistics of its device, each with the amount that it adds; with the sign -1
  // no longer.
  static void count(
      const Block& block, int sign, std::initializer_list<std::pair<StatArray&, size_t>> stats) {
    for (const auto& [array, amount] : stats) {
      for (const auto type :
           {StatType::AGGREGATE, block.small ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
        auto& stat = array[static_cast<size_t>(type)];
        sign > 0 ? stat.increase(amount) : stat.decrease(amount);
      }
    }
  }

  void count_segment(const Block& block, int sign) {
    auto& stats = pool(block.device).stats;
    count(block, sign, {{stats.segment, 1}, {stats.reserved_bytes, block.size}});
  }

  void count_inactive_split(const Block& block, int sign) {
    if (block.whole_segment())
      return;
    auto& stats = pool(block.device).stats;
    count(block, sign, {{stats.inactive_split, 1}, {stats.inactive_split_bytes, block.size}});
  }

  void count_allocated(const Block& block, int sign) {
    auto& stats = pool(block.device).stats;
    count(
        block,
        sign,
        {{stats.allocation, 1},
         {stats.active, 1},
         {stats.allocated_bytes, block.size},
         {stats.active_bytes, block.size},
         {stats.requested_bytes, block.requested}});
    if (!c10::memoryProfilingEnabled())  // torch.profiler (profile_memory=True)
      return;
    constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
    c10::reportMemoryUsageToProfiler(
        block.ptr,
        sign * static_cast<int64_t>(block.size),
        stats.allocated_bytes[kAll].current,
        stats.reserved_bytes[kAll].current,
        c10::Device(kTenon, block.device));
  }

  template <class F>
  void each_stat(c10::DeviceIndex device, F&& f) {
    check_index(device);
    std::lock_guard<std::mutex> lock(mutex_);
    auto& s = pool(device).stats;
    for (auto* array :
         {&s.allocation,
          &s.segment,
          &s.active,
          &s.inactive_split,
          &s.allocated_bytes,
          &s.reserved_bytes,
          &s.active_bytes,
          &s.inactive_split_bytes,
          &s.requested_bytes}) {
      for (auto& stat : *array)
        f(stat);
    }
  }

  std::mutex mutex_;
  std::vector<Pool> pools_;
  std::unordered_map<void*, Block*> allocated_;
  Ranges segments_;
  char* addresses_ = nullptr;  // the next one
  size_t addresses_left_ = 0;
};

class PinnedAllocator final : public c10::Allocator {
 public:
  // Leaked on purpose: tensors may die after static destructors have run.
  static PinnedAllocator& instance() {
    static auto* allocator = new PinnedAllocator();
    return *allocator;
  }

  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0)
      return {nullptr, c10::Device(c10::kCPU)};
    void* ptr = nullptr;
    TORCH_CHECK(
        posix_memalign(&ptr, kPage, round_up(nbytes, kPage)) == 0,
        "Could not allocate ",
        nbytes,
        " bytes of pinned host memory");
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_[ptr] = {nbytes};
    return {ptr, ptr, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &release;
  }

  void copy_data(void* dst, const void* src, size_t nbytes) const override {
    default_copy_data(dst, src, nbytes);
  }

  bool contains(const void* ptr) {
    std::lock_guard<std::mutex> lock(mutex_);
    return find(blocks_, ptr) != nullptr;
  }

 private:
  static void release(void* ptr) {
    std::lock_guard<std::mutex> lock(instance().mutex_);
    instance().blocks_.erase(ptr);
    std::free(ptr);
  }

  std::mutex mutex_;
  Ranges blocks_;
};

// Leaked on purpose, as above.
CachingAllocator& caching() {
  static auto* allocator = new CachingAllocator();
  return *allocator;
}

REGISTER_ALLOCATOR(kTenon, &caching());

}  // namespace

DeviceAllocator& device_allocator() {
  return caching();
}

c10::DataPtr data_ptr_of_block(void* ptr, c10::DeviceIndex device) {
  return {ptr, ptr, caching().raw_deleter(), c10::Device(kTenon, device)};
}

c10::Allocator* pinned_allocator() {
  return &PinnedAllocator::instance();
}

bool is_pinned(const void* ptr) {
  return PinnedAllocator::instance().contains(ptr);
}

}  // namespace tenon
