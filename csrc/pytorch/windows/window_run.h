// One run of a window: by its plan, by reference, or both ways.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "windows/plan_store.h"

namespace tenon {

// The calls of a window one by one, by PyTorch's CPU kernels, on the memory that its buffers have:
// what runs a window without a plan, and the yardstick for every plan.
//
// Results bring memory of their own, and what no later call needs is let go of. With `keeps_slots`
// both stay where they are. On a target whose memory the host cannot reach, what calls need is
// copied to the host, once. What they wrote is copied back.
WindowRun run_window_by_reference(
    Window& window, c10::DeviceIndex device, bool keeps_slots = false);

// Windows so far that no plan may run, by why.
std::map<std::string, int64_t> windows_never_by_plan();

// A window run both ways, for Python to compare: TENON_EXECUTE=verify.
//
// The bytes of a window's slots, by their place in its order; of a device whose memory the host
// cannot reach by copies that are waited for. A slot without memory is not asked for.
struct SlotBytes {
  std::function<void(size_t slot, void* bytes, size_t nbytes)> read;
  std::function<void(size_t slot, const void* bytes, size_t nbytes)> write;
};

// Python's: gets a window with its numbers, its slots' bytes and its two runs.
using Verify = std::function<void(
    const std::shared_ptr<const WindowPlan>&,
    const std::vector<int64_t>&,
    const SlotBytes&,
    const std::function<void()>& run_plan,
    const std::function<void()>& run_reference)>;
void set_verify(Verify verify);

// When the first window ran in this process, and the first one by a plan: seconds on one clock, 0
// for not yet.
std::pair<double, double> first_runs();

}  // namespace tenon
