// Whether a plan that comes from elsewhere can be run: each index, size, offset and expression,
// before anything uses one of them. docs/plan-file.md says what is left.
#pragma once

#include "runtime/plan_format.h"

namespace tenon {

// Raises for a plan whose parts do not fit together. `calls`: how many recorded calls there are
// that it may name. `in_files`: whether its kernels are in files that it names. What depends on
// sizes is left to `check_memory`.
void check_plan(
    const PlanData& plan,
    const std::vector<SizedNumber>& numbers,
    size_t calls,
    bool in_files = true);
inline void check_plan(const PlanOfAnySize& read, size_t calls, bool in_files = true) {
  check_plan(read.plan, read.numbers, calls, in_files);
}

// Whether all that the plan says of its memory lies within the bytes of its inputs and outputs.
bool check_memory(
    const PlanData& plan, std::span<const int64_t> inputs, std::span<const int64_t> outputs);

}  // namespace tenon
