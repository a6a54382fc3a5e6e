// The calls recorded since the last commit, in order, and the buffers that they read and write.
//
// A buffer is a slot of the window. What the window made itself and what died before the commit is
// a temporary: no memory is had for it unless the plan needs some. An older buffer that dies is
// held until the last call that uses it has run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/buffer.h"
#include "record/op_cache.h"

namespace tenon {

struct WindowSlot {
  BufferRef buffer;  // null: a storage without bytes
  size_t nbytes = 0;
  bool fresh = false;  // what it held before is nobody's
  bool alive = true;   // it has a storage
  bool written = false;

  bool is_temporary() const {
    return fresh && !alive;
  }
  // Older than the window, and nobody needs it after its last call.
  bool ends_here() const {
    return !fresh && !alive;
  }
};

struct RecordedCall {
  const OpEntry* entry = nullptr;
  uint32_t first_slot = 0;    // in `slots_of_calls`: of the tensors, then of the fresh results
  uint32_t first_number = 0;  // in `numbers`
};

struct Recorder;

struct Window {
  Recorder* recorder = nullptr;
  std::vector<RecordedCall> calls;
  std::vector<std::shared_ptr<const OpEntry>> by_rule;  // entries of calls that are theirs alone
  std::vector<int32_t> slots_of_calls;
  std::vector<int64_t> numbers;    // run-time values of the calls
  std::vector<std::string> lines;  // where in Python the calls came from; empty: not asked for
  std::vector<WindowSlot> slots;
  size_t held_bytes = 0;
  bool uses_shared = false;  // memory that somebody outside may read at any time
  bool uses_failed = false;  // a buffer whose contents are an error
  bool replayed = false;     // a graph's: its buffers keep their memory
  uint32_t profiled = 0;     // its number in the profile; 0: nobody asked

  // The slot of a buffer that this window uses, -1 where it does not.
  int32_t find(const Buffer& buffer) const;
  // The slot of a buffer (null: of a storage without bytes); a new one where it has none.
  int32_t slot_of(Buffer* buffer, size_t nbytes);
  // A slot for the result of a call.
  int32_t add_result(Buffer* buffer, size_t nbytes);
  // The last storage of a slot's buffer died.
  void storage_died(int32_t slot);
  // It takes no more calls: its buffers no longer know it.
  void close();

  // The slots in the order of their first use, by which a plan numbers them.
  std::vector<int32_t> order() const;
  // Of each slot its place in such an order.
  std::vector<int32_t> places(const std::vector<int32_t>& order) const;
  // Writes what tells windows of one plan: calls, how their slots connect, and which slots are new
  // and which outlive the window.
  void structure(const std::vector<int32_t>& order, std::vector<int64_t>& words) const;

  // It has run: its calls' entries may go. Under `record_mutex`.
  void let_entries_go();
  void clear();

  // The line that recorded a call, or nothing.
  const std::string& line_of(size_t call) const;
};

}  // namespace tenon
