// A device's memory for a program that has no allocator of its own: blocks of the target, kept for
// the next that asks for as much.
#pragma once

#include <mutex>
#include <vector>

#include "runtime/target_library.h"

namespace tenon {

class DeviceBlocks {
 public:
  DeviceBlocks(std::shared_ptr<TargetLibrary> library, int32_t device)
      : library_(std::move(library)), device_(device) {}
  ~DeviceBlocks();
  DeviceBlocks(const DeviceBlocks&) = delete;
  DeviceBlocks& operator=(const DeviceBlocks&) = delete;

  // At least so many bytes; null for none. Raises where the device has no more. The address
  // is one of a reservation without access rights.
  void* take(size_t nbytes);
  void give_back(void* block);
  Place place_of(const void* address);
  // How often blocks were released to the target: an address from before may have another place.
  size_t released() const {
    return released_;
  }

  // While one lives, what is given back may be taken again, and the target keeps it: something in
  // the queue may still use it. It ends when the device has passed that. One at a time.
  class Hold {
   public:
    explicit Hold(DeviceBlocks& blocks);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    DeviceBlocks& blocks_;
  };

 private:
  struct Block {
    const char* start;
    size_t nbytes;
    uintptr_t handle;
  };
  // The last one that begins there or before; the end: there is none.
  std::vector<Block>::iterator block_at(const void* address);
  void* make(size_t nbytes);
  void* take_unused(size_t nbytes);
  void release_unused();

  const std::shared_ptr<TargetLibrary> library_;
  const int32_t device_;
  std::mutex mutex_;           // of what follows; not of forks: a child has no device
  std::vector<Block> blocks_;  // by address, the highest first
  std::vector<void*> unused_;
  size_t released_ = 0;
  bool holds_ = false;
  std::vector<void*> held_;  // what was given back since then
};

}  // namespace tenon
