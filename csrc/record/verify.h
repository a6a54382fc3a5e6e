// Running a window twice, by its plan and by reference, to find out whether they agree.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "record/plans.h"

namespace tenon {

// The bytes of a window's slots, in the order of their first use; none for a slot that has no
// memory of its own.
using SlotBytes = std::vector<std::string>;

// A window whose two runs left different bytes somewhere: whether that is more than rounding is for
// the one who is told.
struct Disagreement {
  const WindowPlan& window;
  const std::vector<int64_t>& numbers;
  SlotBytes before, by_plan, by_reference;
};

void set_report_disagreement(std::function<void(const Disagreement&)> report);

// Runs the window by `run_plan` and then, on the same inputs, by reference: that is what stays.
// Raises what either raises.
void verify_window(
    const WindowPlan& found,
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void()>& run_plan);

}  // namespace tenon
