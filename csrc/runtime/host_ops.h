// What a program calls: ops that the runtime has kernels of its own for, and those of who embeds
// it. All of them work on memory of the host. A program calls one by the name that it has in
// PyTorch; kernels that were generated are no such calls.
#pragma once

#include "runtime/program_file.h"

namespace tenon {

// One that the runtime has, by name and overload as a step has them; null: there is none.
CallStep::Function find_host_op(const std::string& op);

// Sorting, with the results that PyTorch's CPU has (host_sort.cpp).
void host_sort(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);
void host_sort_stable(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);
void host_topk(
    const CallStep& step, std::span<void* const> tensors, std::span<void* const> results);

// An op as PyTorch writes it: "aten::sort.stable".
std::string name_of_op(const std::string& op);

// Finds an op that the runtime does not have: sets what of a step is no data. Raises where there is
// none, or where it takes no such arguments.
using ResolveCall = void (*)(CallStep&);
// Called once, before programs are opened.
void set_resolve_call(ResolveCall resolve);

// Finds the ops that a method's plan calls, at its sizes. Raises where there is one that nobody
// has, or that writes what a run may not change.
void resolve_calls(PlanData& plan, const Method& method);

}  // namespace tenon
