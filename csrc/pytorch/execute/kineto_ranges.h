// Ranges of `record_function` on a device: from the first to the last work for what was recorded
// within them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tenon {

// The range around a range, by torch.profiler's numbers.
using OuterRanges = std::unordered_map<uint64_t, uint64_t>;

class DeviceRanges {
 public:
  explicit DeviceRanges(const OuterRanges& outer) : outer_(outer) {}

  // A device worked for a call that was recorded within a range (0: none), and so for those around
  // it.
  void note(int32_t device, uint64_t range, int64_t begin, int64_t end);

  struct Placed {
    uint64_t range;
    int64_t begin, end;
    int32_t track;  // from 0 on
  };
  // A device's ranges in the order of their begin. Those of a track lie within each other as they
  // do in the program, or apart; one that overlaps another that is not around it, since a kernel
  // computes for both or kernels change places, is on the next track.
  std::vector<Placed> place(int32_t device) const;

 private:
  struct Extent {
    int64_t begin = INT64_MAX, end = 0;
  };
  bool is_around(uint64_t outer, uint64_t inner) const;
  // How many are around it.
  size_t depth(uint64_t range) const;

  const OuterRanges& outer_;
  std::map<int32_t, std::map<uint64_t, Extent>> found_;
};

}  // namespace tenon
