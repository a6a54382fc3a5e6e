// Arguments like those of a call, of zeros: from what an op makes of them it is known what layouts
// its results have, and nobody's memory was read or written.
#pragma once

#include <ATen/core/stack.h>

namespace tenon {

// Tensors of the device are over memory of their own; those that share a storage go on to share
// one. On a target whose memory the host can reach.
torch::jit::Stack stand_ins_of(c10::ArrayRef<c10::IValue> arguments);

}  // namespace tenon
