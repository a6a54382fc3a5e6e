// The target as the core sees it: where memory comes from, and a queue for each device. Python's
// `Target` (torch_tenon/targets/target.py) is bound to this by csrc/python/target.cpp.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/queue.h"

namespace tenon {

constexpr c10::DeviceType kTenon = c10::DeviceType::PrivateUse1;
constexpr size_t kMostDevices = 128;  // of a c10::DeviceIndex

struct Target {
  std::string name;
  // Whether a handle is an address that the host may dereference. Then the queue runs what it is
  // given at once.
  bool host_memory = true;
  bool python_queue = true;    // the queues are Python's: signals wait while they are used
  bool runs_plans = true;      // it has a backend, which makes plans, and a queue for kernels
  bool runs_attention = true;  // its library runs `tenon::attention` in plans
  c10::DeviceIndex device_count = 0;
  std::function<uintptr_t(size_t nbytes, c10::DeviceIndex)> allocate;  // 0: out of memory
  std::function<void(uintptr_t, c10::DeviceIndex)> free;
  std::vector<size_t> total_memory;            // bytes, by device
  std::vector<std::unique_ptr<Queue>> queues;  // by device
};

// The target is set once, when the package is imported; it raises when none is set yet.
void set_target(Target target);
const Target& target();
bool has_target() noexcept;
c10::DeviceIndex device_count() noexcept;  // 0 without a target
Queue& queue_of(c10::DeviceIndex device);

// Raises when `index` is not one of the target's devices; -1 stands for the current device.
c10::DeviceIndex check_index(c10::DeviceIndex index);

// A thread's current device and current stream (device/guard.cpp).
c10::DeviceIndex current_device() noexcept;
// Returns the device that was current; raises for a device that does not exist.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
c10::Stream current_stream(c10::DeviceIndex index);
// The same for a device that exists.
c10::StreamId current_stream_id(c10::DeviceIndex index) noexcept;
// Waits for everything enqueued on the device.
void synchronize(c10::DeviceIndex index);

// Commits what a device was given so far, as a part of what the holder of its queue lock enqueues.
Ticket commit_part(c10::DeviceIndex device);
// Commits the rest. Where one of the parts failed, all of it did.
Ticket commit_whole(c10::DeviceIndex device);
// An error comes while something is enqueued: waits until the device uses nothing of the host's any
// more that it was given so far. The first error is the one that counts.
void drain(c10::DeviceIndex device) noexcept;

// Waits until a device has passed a commit, whatever came of it. The host's waits are counted, by
// what they are for.
void wait_for(c10::DeviceIndex device, const Ticket& ticket, const char* reason);
// ... and raises what it failed with.
void wait_for_success(c10::DeviceIndex device, const Ticket& ticket, const char* reason);

// The threads that wait for a device now: for whoever looks why a program does not go on.
struct Waiting {
  c10::DeviceIndex device;
  const char* reason;
  double since;    // seconds of the host's clock
  int64_t thread;  // the system's number
};
std::vector<Waiting> all_waiting();

// Copies bytes behind everything that is enqueued, and waits until the host may touch both sides.
void copy_bytes(void* dst, const void* src, size_t nbytes, CopyKind kind, c10::DeviceIndex device);
// The same from another device, `from`, which has passed all that touches the bytes. For a queue
// that `copies_from_devices`.
void copy_bytes_between(
    void* dst, c10::DeviceIndex device, const void* src, c10::DeviceIndex from, size_t nbytes);

}  // namespace tenon
