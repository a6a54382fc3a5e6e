// Kernels with their arguments set, to be enqueued as often as it is wanted.
#pragma once

#include <vector>

#include "driver.h"
#include "kernels.h"

namespace tenon::opencl {

// How they are enqueued.
enum class Replay {
  none,    // they are not recorded
  buffer,  // as one command of the driver's, by cl_khr_command_buffer
  kernels  // one by one
};
// What suits the devices, or what TENON_OPENCL_REPLAY says.
Replay replay_of(const Driver& driver);

// A number of work-groups, and what else is needed to enqueue a kernel.
struct Command {
  KernelObject object;
  const char* name;
  size_t global, local;
};

class Recording {
 public:
  // Raises Failed where the driver makes no such buffer of commands.
  Recording(const Driver& driver, CommandQueue queue, Replay how);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // What the checks of a kernel find, and where the host wants it.
  struct Status {
    Memory memory;
    size_t nbytes;
    void* host;
  };

  // An object that no other launch sets arguments of.
  KernelObject object(const Kernel& kernel);
  // Memory of the device for what its checks find.
  Memory status(size_t nbytes, void* host);
  void add(const Command& command);
  void end();

  // None where they are in the buffer.
  const std::vector<Command>& commands() const {
    return commands_;
  }
  const std::vector<Status>& statuses() const {
    return statuses_;
  }
  // nullptr: it has none of them.
  CommandBuffer buffer() const {
    return has_commands_ ? buffer_ : nullptr;
  }

 private:
  const Driver& driver_;
  CommandBuffer buffer_ = nullptr;
  std::vector<KernelObject> objects_;
  std::vector<Command> commands_;
  std::vector<Status> statuses_;
  bool has_commands_ = false;
  uint32_t last_ = 0;  // point in the buffer: each command comes after the one before
};

}  // namespace tenon::opencl
