// A program on a device whose memory the host does not reach: weights and state lie there, and runs
// are enqueued.
#pragma once

#include <atomic>

#include "runtime/device_blocks.h"
#include "runtime/program_plan.h"

namespace tenon {

class ProgramDevice {
 public:
  ProgramDevice(std::shared_ptr<TargetLibrary> library, int32_t device, bool commit_each);

  // Copies the weights that plans use, and gives the state its first values.
  void put(const ProgramFile& file);
  void reset(const ProgramFile& file);
  // Runs a method, and waits for its outputs, which go to memory of the host.
  void run(
      const ProgramFile& file,
      const MethodPlan& plan,
      std::span<const void* const> inputs,
      std::span<void* const> outputs);
  // How many runs were replayed.
  size_t replays() const {
    return replays_;
  }

 private:
  class DeviceRun;
  using Memory = std::shared_ptr<void>;

  Memory take(size_t nbytes);
  void copy_in(void* to, const void* from, size_t nbytes);
  // Calls `work`, which enqueues. Where it raises, nothing of it is left in the queue.
  template <class Work>
  void enqueue(const Work& work);
  void first_state(const ProgramFile& file);

  const std::shared_ptr<TargetLibrary> library_;
  const std::shared_ptr<DeviceBlocks> blocks_;
  const std::unique_ptr<Queue> queue_;
  const bool commit_each_;
  std::atomic<size_t> replays_{0};
  std::mutex mutex_;  // of the queue, and of what follows; not of forks: a child has no device
  std::vector<Memory> weights_, state_;
};

}  // namespace tenon
