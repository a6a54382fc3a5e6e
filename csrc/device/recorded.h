// What the device has to know of calls that were recorded and did not run yet: whoever touches
// memory other than by a recorded call asks here first. The recorder (record/record.cpp) answers.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

namespace tenon {

// Why a window was committed; the names are those of the report.
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
  count_
};

// Runs what was recorded for a device. Does nothing inside of a commit.
void commit(c10::DeviceIndex device, CommitReason reason);

// Runs what uses the storage.
void settle(const c10::StorageImpl& storage);

// A block is about to be released. True: it is kept, and the recorder releases it later.
bool keep_block(void* block, c10::DeviceIndex device);

// A storage was made now and holds nothing yet.
void note_fresh(const c10::StorageImpl& storage);

}  // namespace tenon
