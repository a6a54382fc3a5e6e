// A method's plan for the sizes of a call.
#pragma once

#include <memory>

#include "runtime/forked.h"
#include "runtime/program_file.h"
#include "runtime/run.h"
#include "runtime/run_memory.h"

namespace tenon {

// The last run of a plan on a device. One that finds memory where this one did can be recorded, and
// the next one replays that.
struct LastRun {
  std::vector<void*> taken;  // memory of the device, in order
  size_t released = 0;       // `DeviceBlocks::released`
  bool is_refused = false;   // by the device: it is not recorded
  RecordedLaunches recording{};
  Run::Failures failures{};  // of the recording
};

struct MethodPlan {
  const Method* method = nullptr;
  std::vector<int64_t> symbols;
  std::vector<TensorLayout> inputs, outputs;  // of the method
  PlanData data;
  Placement placement;
  mutable std::unique_ptr<LastRun> last_run;  // by the lock of the device; nullptr: none went well
};

// The plan of a method whose kernels have functions. Raises where no such sizes can be.
std::shared_ptr<MethodPlan> plan_for(
    const ProgramFile& file, const Method& method, std::vector<int64_t> symbols);

// The plans that were used last.
class MethodPlans {
 public:
  using Plan = std::shared_ptr<const MethodPlan>;
  static constexpr size_t kMost = 64;

  // null: there is none.
  Plan find(std::span<const int64_t> symbols);
  void keep(Plan plan);

 private:
  TakingTurns<std::vector<Plan>> plans_;  // the last one is the one that was used last
};

}  // namespace tenon
