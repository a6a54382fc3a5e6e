// What the allocator did, and the lines of Python that it was for: snapshots of memory have both.
//
// A tensor's memory comes when its window runs, long after the line that made the tensor. So the
// buffer's line is kept with the buffer, and becomes that of the memory that it gets.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace tenon {

class Buffer;

// As torch_tenon/api/memory_snapshots.py has them.
enum class MemoryAction : int {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  oom
};

using Where = std::shared_ptr<torch::CapturedTraceback>;

struct MemoryEvent {
  MemoryAction action;
  uintptr_t address;
  size_t nbytes;
  int64_t time;  // microseconds since 1970
  Where where;   // null: nobody asked
};

struct MemoryHistorySettings {
  bool on = false;
  bool events = false;  // not only what is allocated now
  bool where = false;   // lines of Python
  size_t most = 0;      // events of a device that are kept, the latest ones
};

// What was noted before is forgotten where the new settings do not keep it, or `clear` is set.
void set_memory_history(const MemoryHistorySettings& settings, bool clear);

// The latest events of each device, in order, and where what is allocated now was asked for.
std::vector<std::vector<MemoryEvent>> memory_events();
std::unordered_map<uintptr_t, Where> allocated_where();

// Under the allocator's lock, so that events are in the order of what happened.
void note_memory(c10::DeviceIndex device, MemoryAction action, const void* ptr, size_t nbytes);
// A buffer was made on this line. Takes the interpreter's lock: with no lock that its holders wait
// for.
void note_made(const Buffer& buffer);
// The buffer has that memory from now on.
void note_memory_of(const Buffer& buffer, const void* ptr);
// It ends.
void forget_made(const Buffer& buffer);

}  // namespace tenon
