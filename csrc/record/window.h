// The ops recorded since the last commit, and the storages that they read and write.
//
// A storage is a slot of the window, found by its block. What the window made itself and what died
// before the commit is a temporary: its block is free from then on, and no memory is written for it
// unless the plan needs some. The block of an older storage that dies is kept until the commit.
#pragma once

#include <c10/core/Device.h>

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

// Blocks to slots: open addressing, emptied by a new generation.
class SlotTable {
 public:
  SlotTable() : entries_(256) {}
  int32_t find(const void* block) const;
  void insert(const void* block, int32_t slot);
  void erase(const void* block);
  void clear();

 private:
  struct Entry {
    const void* block = nullptr;
    int32_t slot = -1;
    uint32_t generation = 0;
  };
  size_t position(const void* block) const;
  void grow();

  std::vector<Entry> entries_;
  size_t count_ = 0;
  uint32_t generation_ = 1;
};

struct Window {
  std::vector<RecordedCall> calls;
  std::vector<int32_t> slots_of_calls;
  std::vector<int64_t> scalars;
  std::vector<WindowSlot> slots;
  std::vector<void*> kept;  // blocks whose storages died, to be released after the commit
  size_t kept_bytes = 0;
  size_t made_bytes = 0;  // of results that are alive
  SlotTable table;

  // The slot of a storage; a new one where the window does not know it.
  int32_t slot_of(void* block, size_t nbytes);
  // A slot for a storage that was made now.
  int32_t fresh_slot(void* block, size_t nbytes);

  // What tells windows of one plan: calls, how their slots connect, and which slots are new and
  // which outlive the window.
  void structure(std::vector<int64_t>& words) const;

  // The slots that calls use, in the order of their first use.
  std::vector<int32_t> used_slots() const;

  void clear();
};

}  // namespace tenon
