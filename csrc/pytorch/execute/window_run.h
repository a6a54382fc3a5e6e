// One run of a window by a plan.
#pragma once

#include <memory>
#include <vector>

#include "execute/window_plans.h"

namespace tenon {

// What there is to know of a window, apart from what runs it. `order`: its slots in the order of
// their first use.
std::shared_ptr<WindowPlan> describe(const Window& window, const std::vector<int32_t>& order);

// What runs a window: its plan, or the one of its claim for its sizes.
struct Ready {
  std::shared_ptr<WindowPlan> found;
  std::shared_ptr<const Plan> plan;

  // The window as it is, with its own sizes.
  std::shared_ptr<const WindowPlan> with_sizes(
      const Window& window, const std::vector<int32_t>& order) const {
    return found->claim ? describe(window, order) : found;
  }
};

// A window's run-time numbers in the device's memory.
struct DeviceNumbers {
  DeviceNumbers(const Window& window, c10::DeviceIndex device);

  std::vector<int64_t> values;
  c10::DataPtr memory;
};

// `numbers`: null where the host reaches the device's memory. With `keeps_slots` the window can run
// again.
WindowRun run_plan(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::shared_ptr<DeviceNumbers>& numbers,
    bool keeps_slots);

}  // namespace tenon
