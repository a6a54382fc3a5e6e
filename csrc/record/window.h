// The ops recorded since the last commit, and the storages that they read and write.
//
// A storage is a slot of the window, found by its block. What the window made itself and what died
// before the commit is a temporary: its block is free from then on, and no memory is written for it
// unless the plan needs some. The block of an older storage that dies is kept until the commit.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "record/op_cache.h"

namespace tenon {

struct WindowSlot {
  void* block = nullptr;  // nullptr: a storage without bytes
  size_t nbytes = 0;
  bool fresh = false;  // made in this window: what it held before is nobody's
  bool alive = true;
  bool used = false;  // a call reads or writes it
  bool written = false;

  bool is_temporary() const {
    return fresh && !alive;
  }
  // Whether it was older than the window and died in it, so that its block waits to be released.
  bool is_kept() const {
    return !fresh && !alive && used;
  }
};

struct RecordedCall {
  const OpEntry* entry = nullptr;
  uint32_t first_slot = 0;    // in `slots_of_calls`: of the tensors, then of the fresh results
  uint32_t first_scalar = 0;  // in `scalars`
};

struct BlockHash {
  using hash_policy = ska::fibonacci_hash_policy;
  size_t operator()(const void* block) const {
    return reinterpret_cast<size_t>(block);
  }
};

struct Window {
  std::vector<RecordedCall> calls;
  std::vector<int32_t> slots_of_calls;
  std::vector<int64_t> scalars;
  std::vector<WindowSlot> slots;
  std::vector<void*> kept;  // blocks whose storages died, to be released after the commit
  std::vector<std::pair<const OpEntry*, int32_t>> large;  // results, by their slots
  size_t kept_bytes = 0;
  size_t made_bytes = 0;  // of results that are alive
  ska::flat_hash_map<const void*, int32_t, BlockHash> by_block;

  // The slot of a block; -1 where the window does not know it.
  int32_t find(const void* block) const;
  // The slot of a storage; a new one where the window does not know it.
  int32_t slot_of(void* block, size_t nbytes);
  // A slot for a storage that was made now.
  int32_t fresh_slot(void* block, size_t nbytes);

  // Writes what tells windows of one plan: calls, how their slots connect, and which slots are new
  // and which outlive the window. Gives the slots that calls use, in the order of their first use:
  // by it they are numbered, so that those without a use (memory that was made and not written yet)
  // have no place in the plan.
  std::vector<int32_t> structure(std::vector<int64_t>& words) const;

  void clear();
};

}  // namespace tenon
