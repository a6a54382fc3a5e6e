// Numbers in the order of a key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace tenon {

struct Keyed {
  uint64_t key;
  int64_t number;
};

// Puts the first `count` in order: by their keys, and those of one key by their numbers.
void sort_first(std::span<Keyed> all, size_t count);

}  // namespace tenon
