// Memory for runs: the arena and the blocks of a plan in one piece, which the next run uses again.
#pragma once

#include "runtime/forked.h"
#include "runtime/plan.h"

namespace tenon {

// Where a plan's arena and blocks lie in one piece of memory: blocks that are not there at the same
// time share it. The arena is at its start.
struct Placement {
  size_t nbytes = 0;
  std::vector<size_t> offsets;  // by slot; what is no block has none
};
Placement place_blocks(const PlanData& plan);

// Memory that begins a cache line, for `std::free`. Raises where there is no more.
void* make_memory(size_t nbytes);
std::shared_ptr<void> aligned_memory(size_t nbytes);
// The same with every byte 0. A page that nobody writes costs nothing.
std::shared_ptr<void> memory_of_zeros(size_t nbytes);
// Whether elements of that dtype may lie there.
bool is_aligned(const void* address, DType dtype);

// Pieces of memory of the host: as many as there were runs at once, each as large as the largest
// that it was for.
class RunMemory {
 public:
  RunMemory() = default;
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  struct Piece {
    void* start = nullptr;
    size_t nbytes = 0;
  };
  // At least so many bytes. Raises where there is no more.
  Piece take(size_t nbytes);
  void give_back(Piece piece);

 private:
  TakingTurns<std::vector<Piece>> unused_;
};

}  // namespace tenon
