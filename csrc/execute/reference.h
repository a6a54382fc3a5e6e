// Reference execution: one op, run by PyTorch's CPU kernel on host views of its arguments. The
// yardstick for every compiled plan, and the route of every op that has no other.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

namespace tenon {

// What a schema does not say of an op (see the fields of torch_tenon/ops/manifest.yaml).
struct ReferenceRule {
  std::vector<std::string> host_arguments;  // may lie on the host beside device arguments
  std::vector<std::string> mutates;         // written by the CPU kernel, against the schema
  bool host_results = false;                // results stay on the host
};

// `op`: name and overload, as in "aten::index.Tensor".
void set_reference_rule(const std::string& op, ReferenceRule rule);

// Does the op write an argument of which its schema does not say so?
bool writes_unsaid(const std::string& op, const std::string& argument);

// Warn once per op that falls back.
void set_warn_fallback(bool warn);

// A boxed kernel. Takes the arguments from the stack and leaves the results there. Raises what the
// CPU kernel raises, and c10::Error where tensors of several devices meet.
void run_reference(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace tenon
