// One device's queue: copies, kernels and host code, run in the order in which they were enqueued.
//
// Addresses of the device are those that the allocator gives (device/allocator.h), whether the host
// can dereference them or not. What is enqueued starts at the next `commit`, which does not wait.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/failure.h"
#include "device/interrupts.h"

namespace tenon {

enum class CopyKind : int { host_to_device = 0, device_to_host = 1, device_to_device = 2 };

// A generated kernel. It runs to its end whatever fails; each of its checks leaves its number, the
// value and the size in four words of `status`.
using KernelFunction = void (*)(void* const* pointers, const int64_t* numbers, int64_t* status);

// A commit: what was enqueued since the one before it. Any thread may ask.
class Commit {
 public:
  virtual ~Commit() = default;
  // Has the device passed it, well or not?
  virtual bool passed() = 0;
  // Returns once it has.
  virtual void wait() = 0;
  // When it did, in seconds of a clock that all devices of a target share. Asked once it has.
  virtual double seconds() = 0;
  // What the device failed with in it; nullptr: nothing. Asked once it has passed.
  virtual std::shared_ptr<Failure> failure() = 0;
};
using Ticket = std::shared_ptr<Commit>;  // nullptr: it has passed, and well

// What comes after a kernel among what is enqueued together: a kernel of the same device, work of
// the host on what the device has made, or nothing that is known.
enum class Next : int { nothing = 0, device = 1, host = 2 };

class Queue {
 public:
  virtual ~Queue() = default;

  // Within one device, or between it and the host. Memory of the host has to stay until the next
  // commit has passed.
  virtual void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) = 0;
  // `status` is memory of the host that stays until then as well.
  virtual void launch(
      KernelFunction kernel,
      c10::ArrayRef<void*> pointers,
      c10::ArrayRef<int64_t> numbers,
      int64_t* status) = 0;
  // Called before a launch by a plan, which knows what comes after it.
  virtual void expect(Next) {}
  // Whether the device runs the host's code on its own memory; `call` is for such a one alone.
  virtual bool runs_calls() const = 0;
  // Runs `work` with the addresses by which it reaches what lies at `pointers`. It may not raise.
  virtual void call(
      std::function<void(c10::ArrayRef<void*>)> work, c10::ArrayRef<void*> pointers) = 0;

  // Starts what is enqueued, and does not wait. See `commit_part` (device/target.h).
  virtual Ticket commit() = 0;
};

// One that has passed, at that time.
Ticket passed_at(double seconds, std::shared_ptr<Failure> failure = nullptr);

// A queue of the host's processor, whose memory is the host's: everything runs when it is enqueued,
// on the thread that does so.
std::unique_ptr<Queue> host_queue();

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

  // Does this thread hold it, so that it is inside of a run?
  static bool held(c10::DeviceIndex device);
  // ... of any device?
  static bool held();
  // Is that the lock of a device whose queue this thread holds?
  static bool holds(const void* mutex);
  // The commits of a device since its lock was taken, by who holds it.
  static std::vector<Ticket>& commits(c10::DeviceIndex device);

 private:
  c10::DeviceIndex device_;
  std::optional<DeferredInterrupts> deferred_;  // where the queue is Python's
};

}  // namespace tenon
