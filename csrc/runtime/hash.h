// A hash over words, the same in every process.
#pragma once

#include <cstdint>

namespace tenon {

// One step of a hash over words.
inline uint64_t mixed(uint64_t hash, int64_t word) {
  hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

}  // namespace tenon
