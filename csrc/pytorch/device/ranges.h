// Stretches of memory, found by an address inside of them.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

namespace tenon {

template <class Value>
class Ranges {
 public:
  void add(const void* start, size_t size, Value value) {
    ranges_[static_cast<const char*>(start)] = {size, std::move(value)};
  }
  void remove(const void* start) {
    ranges_.erase(static_cast<const char*>(start));
  }
  // The value of the range that `ptr` lies in, and how far from its start; nullptr: none.
  std::pair<const Value*, size_t> find(const void* ptr) const {
    const auto* address = static_cast<const char*>(ptr);
    const auto after = ranges_.upper_bound(address);
    if (after == ranges_.begin())
      return {nullptr, 0};
    const auto& [start, range] = *std::prev(after);
    const auto offset = static_cast<size_t>(address - start);
    if (offset >= range.first)
      return {nullptr, 0};
    return {&range.second, offset};
  }

  // Calls `f(start, size, value)` for each, by address.
  template <class F>
  void each(F&& f) const {
    for (const auto& [start, range] : ranges_)
      f(start, range.first, range.second);
  }

 private:
  std::map<const char*, std::pair<size_t, Value>> ranges_;
};

}  // namespace tenon
