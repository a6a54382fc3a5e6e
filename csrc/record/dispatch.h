// Where ops reach the device.
#pragma once

#include <string>
#include <unordered_set>

namespace tenon {

// Registers reference execution for every op that has a CPU kernel and none for the device yet, and
// for those in `whole`, which PyTorch would take apart into other ops. Returns how many.
//
// Without it, an op made of `out=` and meta functions (PyTorch's structured ops) would reach the
// device in its parts: more calls, and counted under other names.
int64_t register_reference_kernels(const std::unordered_set<std::string>& whole);

}  // namespace tenon
