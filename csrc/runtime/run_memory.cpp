#include "runtime/run_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "runtime/keyed.h"

namespace tenon {
namespace {

constexpr size_t kCacheLine = 64;

size_t rounded(size_t nbytes) {
  return (nbytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

struct Block {
  size_t slot, nbytes;
  size_t first, last;  // the steps that it is there for
};

std::vector<Block> blocks_of(const PlanData& plan) {
  std::vector<Block> blocks;
  std::vector<size_t> which(plan.slots.size(), SIZE_MAX);
  for (size_t index = 0; index < plan.steps.size(); ++index) {
    const auto& step = plan.steps[index];
    for (const auto slot : step.allocated) {
      if (plan.slots[slot].kind != Slot::Kind::block)
        continue;
      if (which[slot] == SIZE_MAX) {
        which[slot] = blocks.size();
        blocks.push_back({slot, rounded(plan.slots[slot].number), index, plan.steps.size()});
      } else {
        blocks[which[slot]].last = plan.steps.size();
      }
    }
    for (const auto slot : step.released) {
      if (which[slot] != SIZE_MAX)
        blocks[which[slot]].last = index;
    }
  }
  return blocks;
}

}  // namespace

// The largest blocks first, each in the lowest place that is free as long as it is there.
Placement place_blocks(const PlanData& plan) {
  Placement found{0, std::vector<size_t>(plan.slots.size())};
  const auto blocks = blocks_of(plan);
  std::vector<Keyed> by_size(blocks.size()), by_offset;
  for (size_t k = 0; k < blocks.size(); ++k)
    by_size[k] = {~uint64_t{blocks[k].nbytes}, static_cast<int64_t>(k)};
  sort_first(by_size, by_size.size());
  const auto start = rounded(plan.arena_bytes);
  found.nbytes = start;
  for (const auto& [key, number] : by_size) {
    const auto& block = blocks[static_cast<size_t>(number)];
    auto offset = start;
    for (const auto& [where, placed] : by_offset) {
      const auto& other = blocks[static_cast<size_t>(placed)];
      if (other.last < block.first || block.last < other.first)
        continue;
      if (offset + block.nbytes <= where)
        break;
      offset = std::max(offset, where + other.nbytes);
    }
    const auto behind = std::ranges::upper_bound(by_offset, offset, {}, &Keyed::key);
    by_offset.insert(behind, Keyed{offset, number});
    found.offsets[block.slot] = offset;
    found.nbytes = std::max(found.nbytes, offset + block.nbytes);
  }
  return found;
}

void* make_memory(size_t nbytes) {
  void* made = nbytes < SIZE_MAX - kCacheLine
                   ? std::aligned_alloc(kCacheLine, (nbytes + kCacheLine) / kCacheLine * kCacheLine)
                   : nullptr;
  if (made == nullptr)
    fail(ErrorKind::out_of_memory, "the host has no {} bytes left", nbytes);
  return made;
}

std::shared_ptr<void> aligned_memory(size_t nbytes) {
  return {make_memory(nbytes), static_cast<void (*)(void*)>(&std::free)};
}

std::shared_ptr<void> memory_of_zeros(size_t nbytes) {
  std::shared_ptr<void> made(
      std::calloc(1, nbytes + kCacheLine), static_cast<void (*)(void*)>(&std::free));
  if (made == nullptr)
    fail(ErrorKind::out_of_memory, "the host has no {} bytes left", nbytes);
  auto* const line = reinterpret_cast<void*>(rounded(reinterpret_cast<uintptr_t>(made.get())));
  return {std::move(made), line};
}

bool is_aligned(const void* address, DType dtype) {
  // A complex number is two of a real type.
  const auto alignment = std::clamp<size_t>(item_size(dtype), 1, alignof(int64_t));
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

RunMemory::~RunMemory() {
  unused_.use([](const auto& unused) {
    for (const auto& piece : unused)
      munmap(piece.start, piece.nbytes);
  });
}

RunMemory::Piece RunMemory::take(size_t nbytes) {
  if (nbytes == 0)
    return {};
  constexpr size_t kPage = 4096;
  nbytes = (nbytes + kPage - 1) / kPage * kPage;
  const auto found = unused_.use([&](auto& unused) -> Piece {
    if (unused.empty())
      return {};
    // The smallest one that is large enough. Where there is none, a larger one takes the place of
    // the largest.
    auto* best = &unused.front();
    for (auto& piece : unused) {
      const bool fits = piece.nbytes >= nbytes, best_fits = best->nbytes >= nbytes;
      if (fits != best_fits ? fits : (piece.nbytes < best->nbytes) == fits)
        best = &piece;
    }
    Piece taken = std::exchange(*best, unused.back());
    unused.pop_back();
    if (taken.nbytes >= nbytes)
      return taken;
    munmap(taken.start, taken.nbytes);
    return {};
  });
  if (found.start != nullptr)
    return found;
  void* start = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    fail(ErrorKind::out_of_memory, "the host has no {} bytes left", nbytes);
  constexpr size_t kHugePage = size_t{2} << 20;
  if (nbytes >= 2 * kHugePage)
    madvise(start, nbytes, MADV_HUGEPAGE);
  return {start, nbytes};
}

void RunMemory::give_back(Piece piece) {
  if (piece.start != nullptr)
    unused_.use([&](auto& unused) { unused.push_back(piece); });
}

}  // namespace tenon
