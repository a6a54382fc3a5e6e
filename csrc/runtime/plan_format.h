// Plans as bytes: docs/plan-file.md has the format. Python writes them (compiler/wire.py), and
// nothing else reads them.
#pragma once

#include "runtime/plan.h"

namespace tenon {

template <class Archive>
void fields(Archive& archive, SizedNumber& x) {
  archive(x.where, x.index, x.which, x.field, x.at, x.value);
}

struct PlanOfAnySize {
  PlanData plan;
  std::vector<SizedNumber> numbers;  // none: the plan is for one set of sizes
};

// Raises where the bytes are no plan. Its kernels have no functions yet, and its calls are not
// resolved. Nothing is checked but that the bytes are such data (runtime/plan_check.h).
void read_plan(std::string_view bytes, PlanData& plan, std::vector<SizedNumber>& numbers);
inline PlanOfAnySize read_plan(std::string_view bytes) {
  PlanOfAnySize found;
  read_plan(bytes, found.plan, found.numbers);
  return found;
}

}  // namespace tenon
