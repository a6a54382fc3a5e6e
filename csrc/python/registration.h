// How a part of the extension that the core does not know, such as a target's own kernels, shows
// Python what it has.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tenon {

// A static object of the part's own: `bind` is called when Python imports the module.
struct RegisterBindings {
  explicit RegisterBindings(void (*bind)(pybind11::module_&));
};

}  // namespace tenon
