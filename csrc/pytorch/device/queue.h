// The devices' queues, and who may enqueue. Addresses of a device are those that the allocator
// gives (device/allocator.h), whether the host can dereference them or not.
#pragma once

#include <c10/core/Device.h>

#include <mutex>
#include <optional>
#include <vector>

#include "device/interpreter.h"
#include "device/interrupts.h"
#include "runtime/queue.h"

namespace tenon {

// Before the first device is used: forks take the devices' locks from then on.
void take_queues_at_fork(c10::DeviceIndex count);

// The right to enqueue on a device, held by one thread at a time: what a window enqueues stays
// together, and is enqueued in the order in which windows were closed. Never taken while holding
// the interpreter's lock or the record's.
class QueueLock {
 public:
  explicit QueueLock(c10::DeviceIndex device);
  ~QueueLock();
  QueueLock(const QueueLock&) = delete;
  QueueLock& operator=(const QueueLock&) = delete;

  // Whether this thread holds it, so that it is inside of a run.
  static bool held(c10::DeviceIndex device);
  // ... of any device.
  static bool held();
  // Whether that is the lock of a device whose queue this thread holds.
  static bool holds(const std::mutex* mutex);
  // The commits of a device since its lock was taken, by who holds it.
  static std::vector<Ticket>& commits(c10::DeviceIndex device);

 private:
  c10::DeviceIndex device_;
  std::optional<DeferredInterrupts> deferred_;  // where the queue is Python's
};

// The lock of a device's queue, or the one that this thread has already, without the interpreter's.
class QueueTurn {
 public:
  explicit QueueTurn(c10::DeviceIndex device) {
    if (!QueueLock::held(device))
      lock_.emplace(device);
  }
  // What follows needs no lock.
  void end() {
    lock_.reset();
  }

 private:
  const WithoutInterpreter no_gil_;
  std::optional<QueueLock> lock_;
};

}  // namespace tenon
