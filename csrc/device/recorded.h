// What the device has to know of calls that were recorded and did not run yet: whoever touches
// memory other than by a recorded call asks here first. The recorder (record/record.cpp) answers.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

namespace tenon {

struct Recorded {
  // A block is about to be released. True: it is kept, and the recorder releases it later.
  bool (*keep_block)(void* block, c10::DeviceIndex device);
  // Runs what uses the storage.
  void (*settle)(const c10::StorageImpl& storage);
  // Runs all that was recorded for the device.
  void (*commit)(c10::DeviceIndex device);
  // As `commit`, because memory ran out.
  void (*make_room)(c10::DeviceIndex device);
};

// Of a recorder that records nothing, until there is one.
const Recorded& recorded();
void set_recorded(const Recorded& recorded);

}  // namespace tenon
