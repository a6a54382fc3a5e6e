// One run of a window: by its plan, by reference, or both ways.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "windows/plan_store.h"

namespace tenon {

// The calls of a window one by one, by PyTorch's CPU kernels, on the memory that its buffers have:
// what runs a window without a plan, and the yardstick for every plan.
//
// Results bring memory of their own, and what no later call needs is let go of. With `keeps_slots`
// both stay where they are. On a target whose memory the host cannot reach, what calls need is
// copied to the host, once, and what they wrote is copied back.
WindowRun run_window_by_reference(
    Window& window, c10::DeviceIndex device, bool keeps_slots = false);

// Windows that no plan may run.
enum class NeverByPlan : uint8_t { target, deterministic, settings, failed };
constexpr std::array<std::string_view, 4> kNeverByPlan = {
    "the target runs no plans",
    "deterministic algorithms are asked for",
    "its calls were recorded under different settings",
    "it has a result that failed",
};

// Such windows so far, in the order of `kNeverByPlan`.
std::array<int64_t, kNeverByPlan.size()> windows_never_by_plan();

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
