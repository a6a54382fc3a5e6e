// Memory that somebody touches, as stretches of addresses that do not overlap.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tenon {

class TouchedMemory {
 public:
  // Null is no memory, and neither are no bytes.
  void add(const void* start, size_t nbytes) {
    if (start == nullptr || nbytes == 0)
      return;
    Stretch added{reinterpret_cast<uintptr_t>(start), reinterpret_cast<uintptr_t>(start) + nbytes};
    const auto first = first_that_ends_at(added.begin);
    auto last = first;
    for (; last != stretches_.end() && last->begin <= added.end; ++last)
      added = {std::min(added.begin, last->begin), std::max(added.end, last->end)};
    if (first == last) {
      stretches_.insert(first, added);
      return;
    }
    *first = added;
    stretches_.erase(first + 1, last);
  }

  template <class F>
  void for_each(F&& f) const {
    for (const auto& [begin, end] : stretches_)
      f(reinterpret_cast<const void*>(begin), end - begin);
  }

  bool overlaps(const void* start, size_t nbytes) const {
    if (start == nullptr || nbytes == 0)
      return false;
    const auto begin = reinterpret_cast<uintptr_t>(start);
    const auto found = const_cast<TouchedMemory*>(this)->first_that_ends_at(begin + 1);
    return found != stretches_.end() && found->begin < begin + nbytes;
  }

 private:
  struct Stretch {
    uintptr_t begin, end;
  };

  // ... or behind it.
  std::vector<Stretch>::iterator first_that_ends_at(uintptr_t address) {
    const auto ends_before = [](const Stretch& one, uintptr_t wanted) { return one.end < wanted; };
    return std::lower_bound(stretches_.begin(), stretches_.end(), address, ends_before);
  }

  std::vector<Stretch> stretches_;  // by where they are
};

}  // namespace tenon
