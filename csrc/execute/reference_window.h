// Reference execution of a window: its calls one by one, by the host's kernels, on the memory that
// the window's storages have.
#pragma once

#include <functional>

#include "record/window.h"

namespace tenon {

// Raises what a kernel raises, with the op that was running at the end of the message. The calls
// after it do not run. `release` as for `run_window`.
void run_window_by_reference(
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release = {});

}  // namespace tenon
