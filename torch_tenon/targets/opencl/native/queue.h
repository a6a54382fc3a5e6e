// In-order command queues of a device. Of copies, launches and commits one runs at a time.
#pragma once

#include <memory>
#include <mutex>

#include "driver.h"
#include "kernels.h"
#include "recording.h"
#include "tickets.h"

namespace tenon::opencl {

class Queue {
 public:
  // `number` tells which of a kernel's objects are its own. `tickets` are those of the device.
  Queue(const Driver& driver, Device device, size_t number, Tickets& tickets);

  void copy(const tenon_end& to, const tenon_end& from, uint64_t nbytes);
  // The first number is of work-groups, the others are arguments after the places. A place is a
  // buffer and an offset in bytes.
  void launch(const tenon_launch& launch);
  // From here to `end_recording` launches are recorded. Raises Failed where none are.
  std::unique_ptr<Recording> record(Replay how);
  void end_recording(Recording& recording);
  // It may have ended.
  void give_up(const Recording& recording) {
    recording_ = recording_ == &recording ? nullptr : recording_;
  }
  void replay(const Recording& recording);
  uint64_t commit();
  // What is enqueued next begins once a ticket of another queue has passed.
  void after(uint64_t ticket);
  // Waits for all of it.
  void finish() const;

 private:
  Memory status();
  template <class T>
  void set(KernelObject object, uint32_t index, const T& value) const;
  // `status`: of its checks; nullptr: it has none.
  void set_all(KernelObject object, const tenon_launch& launch, Memory status) const;
  void enqueue_kernel(const Command& command);
  void enqueue_buffer(CommandBuffer buffer);
  void clear(Memory status, size_t nbytes);
  void read(Memory status, size_t nbytes, void* host);
  template <class Function, class... Arguments>
  void enqueue(const char* what, Function* function, Arguments... arguments);
  // The same for a copy or a kernel, which a commit is timed by.
  template <class Function, class... Arguments>
  void enqueue_timed(const char* what, Function* function, Arguments... arguments);

  const Driver& driver_;
  const size_t number_;
  CommandQueue queue_ = nullptr;
  Recording* recording_ = nullptr;  // of what is launched; nullptr: it is enqueued
  Memory status_ = nullptr;  // what the checks of the kernel in progress find; null: none had any
  bool open_ = false;        // was anything enqueued since the last commit?
  uint64_t last_ = 0;        // the ticket of that
  std::shared_ptr<EventObject> first_;  // of the first copy or kernel since then
  Tickets& tickets_;
};

// A device's queues, one for kernels and one for copies. GPUs have engines for either; a processor
// does both, side by side where it has the cores.
struct Queues {
  Queues(const Driver& driver, Device device, size_t number)
      : tickets(driver),
        kernels(driver, device, number, tickets),
        copies(driver, device, number, tickets) {}

  // Of who enqueues: a process may have several runtimes. Not of forks: a child has no device.
  std::mutex mutex;
  Tickets tickets;
  Queue kernels, copies;
};

}  // namespace tenon::opencl
