// A kernel of the target's over tensors, for whoever links an op to it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "runtime/plan.h"

namespace tenon {

// Enqueues a launch behind all that was recorded with the tensors, and does not wait for it. The
// kernel gets where each tensor begins (null for none), and the numbers. Tensors of one device of
// the target's; raises for others, for a group of other axes than the grid's, and for sizes below 0
// or groups of nothing. `owner`: what the kernel lies in, which stays until it has run.
void launch_over(
    uintptr_t kernel,
    const std::vector<std::optional<at::Tensor>>& tensors,
    const std::vector<int64_t>& numbers,
    const std::vector<int64_t>& grid,
    const std::vector<int64_t>& group,
    int64_t scratch,
    const std::shared_ptr<KernelOwner>& owner);

}  // namespace tenon
