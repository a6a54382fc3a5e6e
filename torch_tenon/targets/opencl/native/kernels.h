// Kernels of programs, in a driver's binary or in OpenCL C.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "driver.h"

namespace tenon::opencl {

using SharedProgram = std::shared_ptr<ProgramObject>;

// What `load` gives. Arguments belong to a driver's kernel object, so each queue has one of its
// own; what is enqueued keeps it.
struct Kernel {
  // `name` ends in the work-items of a work-group and the number of checks that the kernel reports
  // on: "k_0123abcd_64_2".
  Kernel(const Driver& driver, SharedProgram program, const std::string& name, size_t queues);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const Driver& driver;
  const SharedProgram program;
  const std::string name;
  size_t local = 0;         // work-items of a work-group
  size_t status_words = 0;  // of its checks
  uint32_t arguments = 0;   // that it takes
  std::vector<KernelObject> by_queue;
};

// Finds the programs of kernels that are loaded: a plan's are one program, which is built once.
class Programs {
 public:
  Programs(const Driver& driver, size_t queues) : driver_(driver), queues_(queues) {}

  std::unique_ptr<Kernel> load(std::string_view code, const std::string& entry);

 private:
  SharedProgram build(std::string_view code) const;
  SharedProgram build_binary(std::string_view code) const;
  SharedProgram build_text(std::string_view code) const;

  const Driver& driver_;
  const size_t queues_;
  std::mutex mutex_;  // not of forks: a child has none of the driver's threads
  std::map<std::string, std::weak_ptr<ProgramObject>, std::less<>> known_;  // by their code
};

}  // namespace tenon::opencl
