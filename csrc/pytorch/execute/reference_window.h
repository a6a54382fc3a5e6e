// The calls of a window one by one, by PyTorch's CPU kernels, on the memory that its buffers have:
// what runs a window without a plan, and the yardstick for every plan.
#pragma once

#include "record/execution.h"

namespace tenon {

// Results bring memory of their own, and what no later call needs is let go of. With `keeps_slots`
// both stay where they are. On a target whose memory the host cannot reach, what calls need is
// copied to the host, once, and what they wrote is copied back.
WindowRun run_window_by_reference(
    Window& window, c10::DeviceIndex device, bool keeps_slots = false);

}  // namespace tenon
