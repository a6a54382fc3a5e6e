#include "runtime/run_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

namespace tenon {
namespace {

constexpr size_t kLine = 64;

size_t rounded(size_t nbytes) {
  return (nbytes + kLine - 1) / kLine * kLine;
}

struct Block {
  size_t slot, nbytes, first, last;  // the steps that it is there for
  size_t offset = 0;
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
  auto blocks = blocks_of(plan);
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
    return a.nbytes != b.nbytes ? a.nbytes > b.nbytes : a.slot < b.slot;
  });
  const auto start = rounded(plan.arena_bytes);
  found.nbytes = start;
  std::vector<const Block*> placed;  // by offset
  for (auto& block : blocks) {
    block.offset = start;
    for (const auto* other : placed) {
      if (other->last < block.first || block.last < other->first)
        continue;
      if (block.offset + block.nbytes <= other->offset)
        break;
      block.offset = std::max(block.offset, other->offset + other->nbytes);
    }
    const auto place =
        std::upper_bound(placed.begin(), placed.end(), &block, [](const Block* a, const Block* b) {
          return a->offset < b->offset;
        });
    placed.insert(place, &block);
    found.offsets[block.slot] = block.offset;
    found.nbytes = std::max(found.nbytes, block.offset + block.nbytes);
  }
  return found;
}

void* make_memory(size_t nbytes) {
  void* made = nbytes < SIZE_MAX - kLine
                   ? std::aligned_alloc(kLine, (nbytes + kLine) / kLine * kLine)
                   : nullptr;
  if (made == nullptr)
    fail(ErrorKind::out_of_memory, "the host has no ", nbytes, " bytes left");
  return made;
}

std::shared_ptr<void> aligned_memory(size_t nbytes) {
  return {make_memory(nbytes), &std::free};
}

bool is_aligned(const void* address, DType dtype) {
  // A complex number is two of a real type.
  const auto alignment = std::clamp<size_t>(item_size(dtype), 1, alignof(int64_t));
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

RunMemory::~RunMemory() {
  for (const auto& piece : unused_)
    munmap(piece.start, piece.nbytes);
}

RunMemory::Piece RunMemory::take(size_t nbytes) {
  if (nbytes == 0)
    return {};
  constexpr size_t kPage = 4096;
  nbytes = (nbytes + kPage - 1) / kPage * kPage;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto smaller = [](const Piece& a, const Piece& b) { return a.nbytes < b.nbytes; };
    auto found = std::lower_bound(unused_.begin(), unused_.end(), Piece{nullptr, nbytes}, smaller);
    if (found != unused_.end()) {
      const auto piece = *found;
      unused_.erase(found);
      return piece;
    }
    if (!unused_.empty()) {  // a larger one takes its place
      munmap(unused_.back().start, unused_.back().nbytes);
      unused_.pop_back();
    }
  }
  void* start = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED)
    fail(ErrorKind::out_of_memory, "the host has no ", nbytes, " bytes left");
  constexpr size_t kHugePage = size_t{2} << 20;
  if (nbytes >= 2 * kHugePage)
    madvise(start, nbytes, MADV_HUGEPAGE);
  return {start, nbytes};
}

void RunMemory::give_back(Piece piece) {
  if (piece.start == nullptr)
    return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto smaller = [](const Piece& a, const Piece& b) { return a.nbytes < b.nbytes; };
  unused_.insert(std::upper_bound(unused_.begin(), unused_.end(), piece, smaller), piece);
}

}  // namespace tenon
