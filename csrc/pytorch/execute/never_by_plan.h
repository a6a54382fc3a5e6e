// Windows that no plan may run, and how many there were.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "record/window.h"

namespace tenon {

enum class NeverByPlan : uint8_t { target, deterministic, settings, failed };
constexpr std::array<std::string_view, 4> kNeverByPlan = {
    "the target runs no plans",
    "deterministic algorithms are asked for",
    "its calls were recorded under different settings",
    "it has a result that failed",
};

// Whether a window always runs by reference, and counts it where it does. What compares a plan with
// the reference asks for the plan also where results are to be the same in each run.
bool never_by_plan(const Window& window, bool verifies);

// Such windows so far, in the order of `kNeverByPlan`.
std::array<int64_t, kNeverByPlan.size()> windows_never_by_plan();

}  // namespace tenon
