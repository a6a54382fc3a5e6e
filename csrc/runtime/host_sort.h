// Sorting on the host, with the results that PyTorch's CPU has.
#pragma once

#include "runtime/host_ops.h"

namespace tenon {

void host_sort(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);
void host_sort_stable(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);
void host_topk(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);

}  // namespace tenon
