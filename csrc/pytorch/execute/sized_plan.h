// A plan whose sizes are functions of symbols. A few plans with sizes are made of it, and one that
// nobody runs gets others when they are needed.
#pragma once

#include <list>
#include <mutex>

#include "execute/plan.h"
#include "runtime/plan_format.h"

namespace tenon {

class SizedPlan {
 public:
  explicit SizedPlan(PlanOfAnySize plan) : plan_(std::move(plan)) {}

  // Has the memory of each instance checked (runtime/plan_check.h): by input and output of the plan
  // the bytes that are there for it. Before anybody else has this.
  void check_memory_of(std::vector<SizeExpression> inputs, std::vector<SizeExpression> outputs) {
    memory_.emplace(std::move(inputs), std::move(outputs));
  }

  // The plan for these symbols; null where one of its numbers cannot be.
  std::shared_ptr<const Plan> instance(const std::vector<int64_t>& symbols);

  // For any sizes.
  const PlanOfAnySize& plan() const {
    return plan_;
  }

 private:
  bool give(Plan& instance, const std::vector<int64_t>& symbols) const;

  const PlanOfAnySize plan_;
  std::optional<std::pair<std::vector<SizeExpression>, std::vector<SizeExpression>>> memory_;
  const std::shared_ptr<Pace> pace_ = std::make_shared<Pace>(/*sized=*/true);
  std::mutex mutex_;  // not of forks: who has it holds the lock of a device's queue
  // The one that was used last comes first.
  std::list<std::pair<std::vector<int64_t>, std::shared_ptr<Plan>>> made_;
};

}  // namespace tenon
