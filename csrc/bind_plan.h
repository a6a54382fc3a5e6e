// What Python sees of the plan executor, and how plain data becomes a plan; and of recording:
// modes, counts, and the windows that want a plan.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace tenon {

void bind_plan(pybind11::module_& m);
void bind_record(pybind11::module_& m);

}  // namespace tenon
