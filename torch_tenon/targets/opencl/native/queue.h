// A device's in-order command queue. Of copies, launches and commits one runs at a time.
#pragma once

#include "driver.h"
#include "kernels.h"
#include "tickets.h"

namespace tenon::opencl {

class Queue {
 public:
  // `number` tells which of a kernel's objects are its own.
  Queue(const Driver& driver, Device device, size_t number);

  void copy(const tenon_end& to, const tenon_end& from, uint64_t nbytes);
  // The first number is of work-groups, the others are arguments after the places. A place is a
  // buffer and an offset in bytes.
  void launch(const tenon_launch& launch);
  uint64_t commit();
  // Waits for all of it.
  void finish() const;

  Tickets& tickets() {
    return tickets_;
  }

 private:
  template <class T>
  void set(KernelObject object, uint32_t index, const T& value) const;
  template <class Function, class... Arguments>
  void enqueue(const char* what, Function* function, Arguments... arguments);

  const Driver& driver_;
  const size_t number_;
  CommandQueue queue_ = nullptr;
  Memory status_ = nullptr;  // of the kernel in progress: what its checks find
  bool open_ = false;        // was anything enqueued since the last commit?
  Tickets tickets_;
};

}  // namespace tenon::opencl
