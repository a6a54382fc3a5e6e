// A window run both ways, by its plan and by reference, for Python to compare:
// TENON_EXECUTE=verify.
#pragma once

#include <functional>
#include <vector>

#include "execute/window_plans.h"
#include "execute/window_run.h"

namespace tenon {

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

WindowRun verify_window(
    const Ready& ready, Window& window, const std::vector<int32_t>& order, c10::DeviceIndex device);

}  // namespace tenon
