// Blocks of memory, cut from segments: best fit, split when much is left over, merged with free
// neighbours. One pool for each device; the allocator (device/allocator.cpp) holds its lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace tenon {

constexpr size_t kAlignment = 512;  // bytes; a block's size and address are multiples of it
constexpr size_t kSmallLimit = size_t{1} << 20;    // up to here a block comes from a small segment
constexpr size_t kSmallSegment = size_t{2} << 20;  // its bytes

inline size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

struct Block {
  bool small;
  void* ptr;
  size_t size;
  size_t requested = 0;  // bytes that were asked for
  bool allocated = false;
  bool waiting = false;       // free, and in `BlockPool::waiting_`
  Block* previous = nullptr;  // neighbours in the segment
  Block* next = nullptr;

  bool whole_segment() const {
    return previous == nullptr && next == nullptr;
  }
};

class BlockPool {
 public:
  // A free block of at least `size` bytes, a multiple of the alignment; nullptr where there is
  // none.
  Block* take(size_t size);
  // A new segment as a block, cut to `size` bytes.
  Block* add_segment(void* ptr, size_t segment_size, size_t size);
  void give_back(Block* block);
  // How many bytes are free in pieces of `size`.
  size_t free_bytes(size_t size);
  // All that are free, by address.
  void add_free(std::map<uintptr_t, const Block*>& found) const;
  // Takes out the segments that are wholly free, and in which none of the held addresses lies:
  // their own addresses and sizes.
  std::vector<std::pair<void*, size_t>> remove_free_segments(const std::vector<void*>& held);

  // Free blocks that share their segment with others: how many, and their bytes.
  struct Split {
    size_t count = 0, bytes = 0;
  };
  const Split& split_blocks(bool small) const {
    return split_blocks_[small];
  }

 private:
  Block* take_free(size_t size, bool small);
  Block* split(Block* block, size_t size);
  bool merge_waiting();
  void make_free(Block* block);
  void enter_free(Block* block);
  void leave_free(Block* block);
  Block* absorb(Block* block, Block* neighbour);
  void count_split(const Block& block, int sign);

  using FreeBlocks = std::map<std::pair<size_t, void*>, Block*>;  // by size, then address
  FreeBlocks free_[2];                                            // large blocks, small ones
  // Small blocks that were just freed, by size in units of the alignment: the next request is most
  // often for one of these. What is neither merged nor split costs next to nothing.
  std::array<std::vector<Block*>, kSmallLimit / kAlignment + 1> waiting_;
  Split split_blocks_[2];
};

}  // namespace tenon
