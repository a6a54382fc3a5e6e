// Where plans of methods run: on memory of the host, or on a device whose memory the host does not
// reach. Weights and state lie there.
#pragma once

#include "runtime/program_plan.h"
#include "runtime/target_library.h"

namespace tenon {

class ProgramRunner {
 public:
  virtual ~ProgramRunner() = default;

  // Gets the weights that plans use, and gives the state its first values. Called once at most: a
  // plan without weights and state needs no file. It lasts as long as this does.
  virtual void put(const ProgramFile& file) = 0;
  // The state becomes what it was first.
  virtual void reset() = 0;
  // Memory of the host for each input and output of the method, aligned to the elements. Returns
  // once the outputs are there.
  virtual void run(
      const MethodPlan& plan,
      std::span<const void* const> inputs,
      std::span<void* const> outputs) = 0;
  // How many runs were replayed.
  virtual size_t replays() const {
    return 0;
  }
};

// By this thread. Several may run plans at once, unless these change the state.
std::unique_ptr<ProgramRunner> host_runner();

// With `commit_each`, the host waits for each step. The library is one of a device, not null.
std::unique_ptr<ProgramRunner> device_runner(
    std::shared_ptr<TargetLibrary> library, int32_t device, bool commit_each);

// That for a library as `open_target` gives it.
inline std::unique_ptr<ProgramRunner> runner_for(
    const std::shared_ptr<TargetLibrary>& library, int32_t device, bool commit_each) {
  return library == nullptr || library->host_memory() ? host_runner()
                                                      : device_runner(library, device, commit_each);
}

}  // namespace tenon
