// What there is to know of an op beside its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace tenon {

// What a schema does not say of an op (see the fields of torch_tenon/ops/manifest.yaml).
struct OpRule {
  std::vector<std::string> host_arguments;  // may lie on the host beside device arguments
  std::vector<std::string> mutates;         // written by the CPU kernel, against the schema
  bool replaces = false;                    // what it writes it does not read, though in place
  bool run_time_numbers = false;            // the lowering takes numbers as run-time values
  bool starts_from_memory = false;          // reads whole tensors, so that nothing fuses into it
};

// `op`: name and overload, as in "aten::index.Tensor".
void set_op_rule(const std::string& op, OpRule rule);
const OpRule& op_rule(const std::string& op);

// Is it neither PyTorch's nor ours? Such an op may be another one in the next process, and its
// kernel may hold on to its arguments and results when it is over: they are given memory of their
// own.
bool is_foreign(const c10::OperatorHandle& op);

// By argument: does the op write it, as its schema or its rule says?
std::vector<bool> arguments_written(const c10::OperatorHandle& op);
// ... and does it read nothing of what was there?
std::vector<bool> arguments_replaced(const c10::OperatorHandle& op);
// By result: the argument that the schema says it is (`Tensor(a!)`), or -1.
std::vector<int64_t> arguments_returned(const c10::FunctionSchema& schema);
// Does the schema say that a result is a view of an argument?
bool makes_views(const c10::FunctionSchema& schema);

}  // namespace tenon
