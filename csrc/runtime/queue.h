// One device's queue: copies, kernels and host code, run in the order in which they were enqueued.
//
// There is one model: work is enqueued, `commit` gives a ticket, the device passes it. The host's
// own queue runs what it is given at once, so its tickets have passed when they are given.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "runtime/failure.h"
#include "runtime/shared.h"
#include "runtime/touched_memory.h"

namespace tenon {

enum class CopyKind : int { host_to_device = 0, device_to_host = 1, device_to_device = 2 };

// A generated kernel. It runs to its end whatever fails. Each of its checks leaves its number, the
// value and the size in four words of `status`.
using KernelFunction = void (*)(void* const* pointers, const int64_t* numbers, int64_t* status);

// Words of a check. The first one of a check that did not fail stays 0.
constexpr size_t kStatusWords = 4;

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
  // ... and when the device began with it, by the same clock; none: the device does not say.
  virtual std::optional<double> started() {
    return std::nullopt;
  }
  // What the device failed with in it; nullptr: nothing. Asked once it has passed.
  virtual std::shared_ptr<Failure> failure() = 0;
  // What passes with this commit's own work, where other queues of the device may be behind with
  // earlier work; nullptr: it does itself.
  virtual std::shared_ptr<Commit> own() {
    return nullptr;
  }
};
using Ticket = std::shared_ptr<Commit>;  // nullptr: it has passed, and well

// What comes after a kernel: a kernel of the same device, work of the host on what the device has
// made, or nothing that is known. The numbers are those of include/tenon.h.
enum class Next : int { nothing = 0, device = 1, host = 2 };

// Where bytes are on a target: what its `allocate` gave, and how far into it.
struct Place {
  uintptr_t handle = 0;
  size_t offset = 0;
};

// A kernel that is to run over memory. All of it is read before `launch` returns, but for `status`.
struct Launch {
  KernelFunction kernel = nullptr;
  std::span<void* const> pointers{};
  // How much the kernel may read and write from each pointer on; a queue of the host needs none.
  std::span<const size_t> nbytes{};
  std::span<const int64_t> numbers{};  // arguments by value; one of floating point is its bits
  // Runs along each axis, and how many of these are a group. A kernel without a grid has neither.
  std::span<const int64_t> grid{}, group{};
  int64_t scratch = 0;  // bytes of fast memory that a group shares
  // Memory of the host for what the kernel's checks find, zero now. It stays until the next commit
  // has passed. Empty where the kernel has no checks.
  std::span<int64_t> status{};
  Next next = Next::nothing;
};

class TargetLibrary;

// Launches that a device has recorded, to be enqueued as one command.
struct RecordedLaunches {
  RecordedLaunches() = default;
  ~RecordedLaunches();
  RecordedLaunches(const RecordedLaunches&) = delete;
  RecordedLaunches& operator=(const RecordedLaunches&) = delete;

  bool is_there() const {
    return number != 0;
  }

  uint64_t number = 0;  // of the device's; 0: it records nothing, or not that
  const TargetLibrary* library = nullptr;
  int32_t device = 0;
  TouchedMemory touched;  // where there are several queues
};

// Addresses of a device are those of who embeds the queue, whether the host can dereference them or
// not. What is enqueued starts at the next `commit`, which does not wait.
class Queue {
 public:
  virtual ~Queue();

  // Within one device, or between it and the host. Memory of the host stays until the next commit
  // has passed.
  virtual void copy(void* dst, const void* src, size_t nbytes, CopyKind kind) = 0;
  virtual void launch(const Launch& launch) = 0;
  // Whether the device runs the host's code on its own memory; `call` is for such a one alone.
  virtual bool runs_calls() const = 0;
  // Runs `work` with the addresses by which it reaches what lies at `pointers`. It does not raise.
  using Work = std::function<void(std::span<void* const>)>;
  virtual void call(Work work, std::span<void* const> pointers, std::span<const size_t> nbytes) = 0;

  // Records what `launches` launches here, and enqueues nothing of it. It says whether all was
  // taken, and does nothing else with this queue.
  virtual void record(RecordedLaunches& made, const std::function<bool()>& launches);
  // Enqueues a recording, once the device has passed the time before. All memory that it names is
  // where it was, status words included; these are zero.
  virtual void replay(const RecordedLaunches& recording);

  // Where the runtime is a library by itself, each program has one device.
#ifndef TENON_ONE_DEVICE
  // Whether it copies from other devices of its target; `copy_from` is for such a one alone.
  virtual bool copies_from_devices() const {
    return false;
  }
  // ... from `device`. Nothing else touches these bytes until the next commit has passed.
  virtual void copy_from(void* dst, const void* src, int device, size_t nbytes);
#endif

  // What is enqueued from here on begins, on the device, once it has passed a commit of another of
  // its queues, well or not. The host does not wait. For a device of several queues alone.
  virtual void after(const Ticket& ticket);

  // Starts what is enqueued, and does not wait. Where the device refuses to, what is enqueued would
  // run at a later commit, into memory that others have by then. So it is tried again and waited
  // for before the error is raised; a device that refuses twice is lost and gets nothing more.
  Ticket commit();
  // ... and waits until it has passed. With `raises`, raises what the device failed with.
  void finish(bool raises);
  // The same after an error, which is the one that counts.
  void drain() noexcept;

 protected:
  // What `commit` asks of a device. An error leaves what is enqueued as it was.
  virtual Ticket start() = 0;

 private:
  std::atomic<const std::string*> lost_{nullptr};  // why
};

// Seconds of the host's clock, which only goes forward.
double host_seconds();

// A ticket that has passed, at that time.
Ticket passed_at(double seconds, std::shared_ptr<Failure> failure = nullptr);

// The queue of this processor: everything runs when it is enqueued, on the thread that does so.
std::unique_ptr<Queue> host_queue();

}  // namespace tenon
