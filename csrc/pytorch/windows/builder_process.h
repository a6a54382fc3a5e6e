// The builder process as the system sees it: how it is reached, and how it is started.
#pragma once

#include <string>
#include <vector>

namespace tenon {

// A connection to who listens at a path, without waiting for it.
struct Reached {
  enum Who : int {
    builder,   // `fd` is connected, and sends and receives without waiting
    nobody,    // nobody listens
    busy,      // somebody listens, whose backlog is full
    stranger,  // another user listens, or others may put something there
  } who;
  int fd = -1;
};
Reached reach_builder(const std::string& path);

// Lets a process that stands by (builder/standby.py) become the builder, which listens at a path.
// It gets this process's environment, and its output goes to a file. False where that process is
// gone.
bool wake_builder_process(int standby, const std::string& path, const std::string& log);

// Starts the builder, whose output goes to a file; false where that is not possible.
bool start_builder_process(const std::vector<std::string>& command, const std::string& log);

}  // namespace tenon
