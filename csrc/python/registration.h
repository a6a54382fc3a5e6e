// How a part of the extension shows Python what it has, which the core does not know: a target's
// own kernels, say.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tenon {

// A static object of the part's own: `bind` is called when Python imports the module. One that
// imports PyTorch is called last: that may register the device, with all other bindings.
struct RegisterBindings {
  explicit RegisterBindings(void (*bind)(pybind11::module_&), bool imports_torch = false);
};

}  // namespace tenon
