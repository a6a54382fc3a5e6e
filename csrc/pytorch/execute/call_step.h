// The call of a plan's step that is no kernel.
#pragma once

#include "execute/plan.h"

namespace tenon {

// Calls a step's op on the host, over the given memory of its tensors. `places` are where its
// results go (null: in memory of their own). A kernel that may hold on to its arguments gets copies
// of those that nothing keeps: `keepers` are by tensor, or none.
std::vector<at::Tensor> call_over(
    const CallStep& step,
    std::span<void* const> tensors,
    std::span<void* const> places,
    c10::DeviceIndex device,
    c10::ArrayRef<c10::Storage> keepers = {});

}  // namespace tenon
