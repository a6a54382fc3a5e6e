// What Python sees of recording: modes, counts, and the windows that want a plan.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tenon {

void bind_record(pybind11::module_& m);

}  // namespace tenon
