// Ops that the runtime has kernels of its own for, on memory of the host. A program calls one by
// the name that it has in PyTorch; kernels that were generated are no such calls.
#pragma once

#include "runtime/plan.h"

namespace tenon {

// Computes a step's call: where its tensors and results lie, in the order of the step, which has
// their layouts and the other arguments. It writes nothing but results. A result that nobody wants
// is null. Raises where it takes no such arguments.
using HostOp =
    void (*)(const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);

// By name and overload, as a step has them; null: there is none.
HostOp find_host_op(const std::string& op);

// An op as PyTorch writes it: "aten::sort.stable".
std::string name_of_op(const std::string& op);

// Finds the ops that a plan calls. Raises where there is one that the runtime does not have.
void resolve_calls(PlanData& plan);

inline HostOp op_of(const CallStep& step) {
  return *static_cast<const HostOp*>(step.resolved.get());
}

}  // namespace tenon
