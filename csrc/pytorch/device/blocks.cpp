#include "device/blocks.h"

#include <algorithm>

namespace tenon {

Block* BlockPool::take(size_t size) {
  const bool small = size <= kSmallLimit;
  if (small && !waiting_[size / kAlignment].empty()) {
    auto& blocks = waiting_[size / kAlignment];
    Block* block = blocks.back();
    blocks.pop_back();
    block->waiting = false;
    count_split(*block, -1);
    return block;
  }
  Block* block = take_free(size, small);
  if (block == nullptr && small && merge_waiting())
    block = take_free(size, small);
  return block != nullptr ? split(block, size) : nullptr;
}

Block* BlockPool::add_segment(void* ptr, size_t segment_size, size_t size) {
  return split(new Block{size <= kSmallLimit, ptr, segment_size}, size);
}

void BlockPool::give_back(Block* block) {
  if (!block->small)
    return make_free(block);
  block->waiting = true;
  waiting_[block->size / kAlignment].push_back(block);
  count_split(*block, 1);
}

size_t BlockPool::free_bytes(size_t size) {
  merge_waiting();
  const auto& free = free_[size <= kSmallLimit];
  size_t bytes = 0;
  for (auto found = free.lower_bound({size, nullptr}); found != free.end(); ++found)
    bytes += found->first.first / size * size;
  return bytes;
}

void BlockPool::add_free(std::map<uintptr_t, const Block*>& found) const {
  const auto add = [&](const Block* block) {
    found.emplace(reinterpret_cast<uintptr_t>(block->ptr), block);
  };
  for (const auto& free : free_) {
    for (const auto& entry : free)
      add(entry.second);
  }
  for (const auto& blocks : waiting_) {
    for (const Block* block : blocks)
      add(block);
  }
}

std::vector<std::pair<void*, size_t>> BlockPool::remove_free_segments(
    const std::vector<void*>& held) {
  merge_waiting();
  std::vector<std::pair<void*, size_t>> segments;
  for (auto& free : free_) {
    std::erase_if(free, [&](const auto& entry) {
      Block* block = entry.second;
      const auto* start = static_cast<const char*>(block->ptr);
      const auto is_in_it = [&](const void* address) {
        return address >= start && address < start + block->size;
      };
      if (!block->whole_segment() || std::any_of(held.begin(), held.end(), is_in_it))
        return false;
      segments.emplace_back(block->ptr, block->size);
      delete block;
      return true;
    });
  }
  return segments;
}

// Makes the blocks that wait free ones, merged with their neighbours. False: none waits.
bool BlockPool::merge_waiting() {
  bool any = false;
  for (auto& blocks : waiting_) {
    for (Block* block : blocks) {
      block->waiting = false;
      count_split(*block, -1);
      make_free(block);
      any = true;
    }
    blocks.clear();
  }
  return any;
}

Block* BlockPool::take_free(size_t size, bool small) {
  auto& free = free_[small];
  const auto found = free.lower_bound({size, nullptr});
  if (found == free.end())
    return nullptr;
  Block* block = found->second;
  leave_free(block);
  return block;
}

// Cuts what `block` has beyond `size` off it, where the rest is worth keeping.
Block* BlockPool::split(Block* block, size_t size) {
  const size_t rest_size = block->size - size;
  if (block->small ? rest_size < kAlignment : rest_size <= kSmallLimit)
    return block;
  auto* rest = new Block{block->small, static_cast<char*>(block->ptr) + size, rest_size};
  rest->previous = block;
  rest->next = block->next;
  if (rest->next != nullptr)
    rest->next->previous = rest;
  block->next = rest;
  block->size = size;
  enter_free(rest);
  return block;
}

void BlockPool::make_free(Block* block) {
  block = absorb(block, block->previous);
  enter_free(absorb(block, block->next));
}

void BlockPool::enter_free(Block* block) {
  free_[block->small].emplace(std::pair(block->size, block->ptr), block);
  count_split(*block, 1);
}

void BlockPool::leave_free(Block* block) {
  free_[block->small].erase({block->size, block->ptr});
  count_split(*block, -1);
}

// Joins `block`, which is in no free list, with a neighbour if that is free.
Block* BlockPool::absorb(Block* block, Block* neighbour) {
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

void BlockPool::count_split(const Block& block, int sign) {
  if (block.whole_segment())
    return;
  auto& split = split_blocks_[block.small];
  split.count += sign;
  split.bytes += sign * block.size;
}

}  // namespace tenon
