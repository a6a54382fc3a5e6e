#include "execute/kineto_ranges.h"

#include <algorithm>
#include <tuple>

namespace tenon {

void DeviceRanges::note(int32_t device, uint64_t range, int64_t begin, int64_t end) {
  while (range != 0) {
    auto& extent = found_[device][range];
    extent.begin = std::min(extent.begin, begin);
    extent.end = std::max(extent.end, end);
    const auto outer = outer_.find(range);
    range = outer != outer_.end() ? outer->second : 0;
  }
}

bool DeviceRanges::is_around(uint64_t outer, uint64_t inner) const {
  for (auto at = outer_.find(inner); at != outer_.end(); at = outer_.find(at->second)) {
    if (at->second == outer)
      return true;
  }
  return false;
}

size_t DeviceRanges::depth(uint64_t range) const {
  size_t depth = 0;
  for (auto at = outer_.find(range); at != outer_.end(); at = outer_.find(at->second))
    ++depth;
  return depth;
}

std::vector<DeviceRanges::Placed> DeviceRanges::place(int32_t device) const {
  std::vector<Placed> placed;
  const auto found = found_.find(device);
  if (found == found_.end())
    return placed;
  for (const auto& [range, extent] : found->second)
    placed.push_back({range, extent.begin, extent.end, 0});
  // Of those that begin together the outer one comes first.
  const auto order = [&](const Placed& x) {
    return std::tuple(x.begin, -x.end, depth(x.range), x.range);
  };
  std::sort(placed.begin(), placed.end(), [&](const Placed& a, const Placed& b) {
    return order(a) < order(b);
  });
  std::vector<std::vector<Placed>> open;  // by track: those that are not over, each within the last
  for (auto& next : placed) {
    for (size_t track = 0;; ++track) {
      if (track == open.size())
        open.emplace_back();
      auto& around = open[track];
      while (!around.empty() && around.back().end <= next.begin)
        around.pop_back();
      if (!around.empty() && !is_around(around.back().range, next.range))
        continue;
      next.track = static_cast<int32_t>(track);
      around.push_back(next);
      break;
    }
  }
  return placed;
}

}  // namespace tenon
