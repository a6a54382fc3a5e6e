// What the device has to know of calls that were recorded and not submitted yet. The recorder
// (record/commit.cpp) answers.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <string_view>

#include "device/exchanged.h"

namespace tenon {

class Buffer;

// Why a window was committed.
enum class CommitReason : int {
  host_read,     // the host needs a value
  host_write,    // the host writes memory that the window uses
  first_call,    // a call whose results' layouts are not known yet
  not_recorded,  // an op that runs at once
  synchronize,
  boundary,  // a place chosen by the content of the window
  length,    // the window is as long as it may be
  memory,    // it keeps as much memory as it may
  request,   // torch_tenon.commit(), fork
  handover,  // another thread or stream uses what the window writes
  shared,    // somebody outside has the address of memory that it uses
  launch,    // a kernel is launched over what it writes
  count_
};
// As the report has it.
const char* name_of(CommitReason reason);

// Submits every window of a device, of all threads and streams; of one stream, of the calling
// thread. Inside of a run on the device this does nothing.
void commit(c10::DeviceIndex device, CommitReason reason);
void commit_stream(c10::Stream stream, CommitReason reason);

// Whether the calling thread captures a graph on that stream.
bool is_capturing(c10::Stream stream);
// Raises where the calling thread captures a graph, of which `what` can be no part.
void refuse_in_capture(std::string_view what);

// Submits the windows that use a buffer, or those alone that write it; false: there were none.
bool commit_uses(Buffer& buffer, bool writes_alone, CommitReason reason);

// The host reads what no window writes; the calling thread's window ends all the same. So a loop
// that reads at its end has windows of whole rounds. Without that its windows would go on from
// wherever a first call had ended one. The next process has no first calls: it would have other
// windows, and find none of the plans.
void end_window_at_read(c10::DeviceIndex device);

// Enqueues a copy from the host to a buffer's memory, behind everything else that touches it.
// `replaces`: all that it held, so an error that it had is gone. `keeps` is what the host's memory
// lives by until then.
void enqueue_upload(
    Buffer& buffer,
    void* address,
    const void* host,
    size_t nbytes,
    bool replaces,
    std::function<void()> keeps);

// The last storage of a buffer died: see `Buffer`.
void storage_died(Buffer& buffer);

// Waits for all that was submitted to a device, and sees to what came of it.
void wait_until_idle(c10::DeviceIndex device);

// Whether a device has run all that was submitted to it. Sees to what came of that.
bool is_idle(c10::DeviceIndex device);

// All that was submitted to a device so far, by the number of the last.
uint64_t last_submission(c10::DeviceIndex device);
// Raises what a device itself failed with first in these, if nobody has seen that yet. They are
// over.
void raise_unseen_fault(c10::DeviceIndex device, uint64_t last);

// Raises the first error of this thread's windows on the device that nobody has seen yet.
void raise_unseen(c10::DeviceIndex device);

// Why the calling thread commits when it touches a buffer, in this scope.
struct Touching : Exchanged<CommitReason> {
  explicit Touching(CommitReason reason);
  static CommitReason reason();
};

}  // namespace tenon
