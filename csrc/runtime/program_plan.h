// A method's plan for the sizes of a call.
#pragma once

#include <memory>

#include "runtime/forked.h"
#include "runtime/program_file.h"
#include "runtime/run_memory.h"

namespace tenon {

struct MethodPlan {
  const Method* method = nullptr;
  std::vector<int64_t> symbols;
  std::vector<TensorLayout> inputs, outputs;  // of the method
  PlanData data;
  Placement placement;
};

// The plan of a method whose kernels have functions. Raises where no such sizes can be.
MethodPlan plan_for(const ProgramFile& file, const Method& method, std::vector<int64_t> symbols);

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
