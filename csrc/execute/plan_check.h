// Whether a plan that comes from a file can be run over the memory of a window: each index, size,
// offset and expression, before anything uses one of them. docs/plan-file.md says what is left.
#pragma once

#include <vector>

#include "execute/plan.h"
#include "execute/sized_plan.h"
#include "execute/window_plans.h"

namespace tenon {

// Raises for a plan whose parts do not fit together, or that is none of the window's. `inputs` and
// `outputs` are as in `FoundPlan`. What depends on sizes is left to `check_memory`.
void check_plan(
    const PlanData& plan,
    const WindowPlan& window,
    const std::vector<int32_t>& inputs,
    const std::vector<int32_t>& outputs);

// Raises where one of them stands nowhere in the plan.
void check_numbers(const PlanData& plan, const std::vector<SizedNumber>& numbers);

// Whether all that the plan says of its memory lies within the bytes of its inputs and outputs.
bool check_memory(
    const PlanData& plan, c10::ArrayRef<int64_t> inputs, c10::ArrayRef<int64_t> outputs);

}  // namespace tenon
