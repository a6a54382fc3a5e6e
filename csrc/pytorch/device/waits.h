// Which threads wait for a device at present: for whoever looks why a program does not go on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace tenon {

struct Waiting {
  c10::DeviceIndex device;
  const char* reason;
  double since;    // seconds of the host's clock
  int64_t thread;  // the system's number
};
std::vector<Waiting> all_waiting();

// The calling thread waits, until the end of the scope.
class NotedWait {
 public:
  NotedWait(c10::DeviceIndex device, const char* reason);
  ~NotedWait();
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;

 private:
  Waiting noted_;
};

}  // namespace tenon
