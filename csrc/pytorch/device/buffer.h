// A buffer is what a storage's memory is to the device: the target's memory, from the time when
// something writes it; the windows that use it and were not submitted yet; the submission that uses
// it last; and the error that its contents ended with.
//
//     new_storage ──▶ expected ──▶ used by a window ──▶ in flight ──▶ has contents, or failed
//                    (no memory)    (calls recorded)    (submitted)         │
//          storage dies: what no window and no submission needs is freed ◀──┘
//
// What was made and died inside of one window never gets memory here: it is the plan's temporary.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "device/queue.h"
#include "runtime/failure.h"

namespace tenon {

struct Window;

// What was handed to a device's queue together, by its number: a device's are numbered from 1, and
// finish in that order. 0: none.
using Submission = uint64_t;

class Buffer : public c10::intrusive_ptr_target {
 public:
  Buffer(size_t nbytes, c10::DeviceIndex device) : nbytes(nbytes), device(device) {}
  ~Buffer() override;

  // Buffers come and go with every call: those that went last are used again.
  static void* operator new(size_t size);
  static void operator delete(void* ptr);

  // Where the memory is; had now if there was none. Under the device's queue lock.
  void* memory();
  // The same where nothing is pending; nullptr: it has none yet.
  void* address() const {
    return memory_.get();
  }
  // Takes over memory with what it holds: a block, or what keeps some. `is_block`: it is known to
  // be the device's.
  void take(c10::DataPtr memory, bool is_block = false);
  // It will have memory, which is reserved from now on; raises c10::OutOfMemoryError.
  void expect();
  // ... but a kernel brings it, or nobody does.
  void stop_expecting();
  // It needs none any more: nobody reads it after what is enqueued.
  void free_memory();

  const size_t nbytes;
  const c10::DeviceIndex device;

  // What follows is guarded by `record_mutex`.
  struct Use {
    Window* window;
    int32_t slot;
  };
  c10::SmallVector<Use, 1> uses;  // by windows that are open
  Submission last_use = 0, last_write = 0;
  std::shared_ptr<Failure> failure;  // of its contents
  bool alive = true;                 // it has a storage
  bool has_contents = false;         // or calls that write some
  bool shared = false;               // somebody outside has its address for good
  uint32_t graphs = 0;               // windows of graphs that have it: its memory stays
  bool registered = false;           // its address was given to somebody: found by `buffer_at`
  const void* shown_to = nullptr;    // the thread that its storage shows its address to, by a mark
  // Read without the lock: nothing is pending for it, nor has been since somebody saw that its
  // contents are there and no error.
  std::atomic<bool> quiet{false};

 private:
  c10::DataPtr memory_;
  bool expected_ = false;  // reserved with the allocator, and without memory of the device
};
using BufferRef = c10::intrusive_ptr<Buffer>;

// Held for a record, never for a run: it guards buffers and open windows.
std::mutex& record_mutex();

// An update reads what is there, and writes.
enum class Access { read, write, update };

// Before the host or an op that runs at once touches a buffer: submits what is pending, waits for
// it, and raises the error of what is to be read.
void settle(Buffer& buffer, Access access);

// Waits until a device's submission has run, and sees to what came of it; within the run that
// enqueues it this raises.
void wait_for_submission(c10::DeviceIndex device, Submission submission, const char* reason);

// A buffer whose address was given away, by an address inside of it, and how far from its start.
std::pair<BufferRef, size_t> buffer_at(const void* ptr);
void register_address(Buffer& buffer);

}  // namespace tenon
