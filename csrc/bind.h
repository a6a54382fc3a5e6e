// How a part of the extension that the core does not know, such as a target's own kernels, shows
// Python what it has.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>

#include "device/queue.h"

namespace tenon {

// A static object of the part's own: `bind` is called when Python imports the module.
struct RegisterBindings {
  explicit RegisterBindings(void (*bind)(pybind11::module_&));
};

// What a target's `queue` may give Python instead of a queue that is Python's: one of C++, which
// the device takes out of it.
struct NativeQueue {
  std::unique_ptr<Queue> queue;
};

}  // namespace tenon
