// A plan whose sizes are functions of symbols. A few plans with sizes are made of it, and one that
// nobody runs gets others when they are needed.
#pragma once

#include <list>
#include <mutex>

#include "execute/plan.h"
#include "record/sizes.h"

namespace tenon {

// A number of a plan that is not the same for all sizes, and where it stands.
struct SizedNumber {
  enum Where : uint8_t {
    slot,      // its number
    kernel,    // one of the numbers that the kernel of a step takes
    tensor,    // of a call: its layout's size, stride or offset
    result,    // as well
    argument,  // a constant of a call, a whole number or one of a list
    bytes,     // of a slot
  } where;
  size_t index = 0;  // which slot or step
  size_t which = 0;  // which number, tensor, result or argument
  enum Field : uint8_t { size, stride, offset } field = size;
  size_t at = 0;  // which dimension, or element of a list
  SizeExpression value;
};

class SizedPlan {
 public:
  SizedPlan(PlanData data, std::vector<SizedNumber> numbers)
      : data_(std::move(data)), numbers_(std::move(numbers)) {}

  // Has the memory of each instance checked (execute/plan_check.h): by input and output of the plan
  // the bytes that are there for it. Before anybody else has this.
  void check_memory_of(std::vector<SizeExpression> inputs, std::vector<SizeExpression> outputs) {
    memory_.emplace(std::move(inputs), std::move(outputs));
  }

  // The plan for these symbols; null where one of its numbers cannot be.
  std::shared_ptr<const Plan> instance(const std::vector<int64_t>& symbols);

  // For any sizes.
  const PlanData& data() const {
    return data_;
  }
  const std::vector<SizedNumber>& numbers() const {
    return numbers_;
  }

 private:
  bool give_sizes(PlanData& data, const std::vector<int64_t>& symbols) const;

  const PlanData data_;
  const std::vector<SizedNumber> numbers_;
  std::optional<std::pair<std::vector<SizeExpression>, std::vector<SizeExpression>>> memory_;
  const std::shared_ptr<Pace> pace_ = std::make_shared<Pace>(/*sized=*/true);
  std::mutex mutex_;  // not of forks: who has it holds the lock of a device's queue
  // The one that was used last comes first.
  std::list<std::pair<std::vector<int64_t>, std::shared_ptr<Plan>>> made_;
};

}  // namespace tenon
