// Where ops reach the device.
#pragma once

#include <cstdint>

namespace tenon {

// Registers reference execution for every op that the host has whole: those with a CPU kernel, and
// those that PyTorch composes of others below autograd, as far as they make new results and draw no
// random numbers. Ops that have a kernel for the device keep it. Returns how many.
//
// Without it these ops would reach the device in their parts: more calls, counted under other
// names, and some compositions ask for a list of devices that PyTorch knows.
int64_t register_reference_kernels();

}  // namespace tenon
