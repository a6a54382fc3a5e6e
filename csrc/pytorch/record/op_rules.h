// What there is to know of an op beside its schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <string_view>
#include <vector>

namespace tenon {

// Whether an op's numbers become run-time values.
enum class RunTimeNumbers : uint8_t { kNever, kWhenTheyChange, kAlways };
// Which sizes may differ between two calls of which one tells of the other.
enum class SizesOfCalls : uint8_t { kUnknown, kFollow, kBatch };

// What the core has to know of an op beside its schema: fields of torch_tenon/ops/manifest.yaml,
// which says more of them.
struct OpRule {
  std::vector<std::string> host_arguments;  // may lie on the host beside device arguments
  std::vector<std::string> mutates;         // written by the CPU kernel, against the schema
  bool replaces = false;                    // what it writes it does not read, though in place
  RunTimeNumbers run_time_numbers = RunTimeNumbers::kNever;
  bool whole = false;     // reads whole tensors, so that nothing fuses into it
  bool recorded = false;  // whatever PyTorch's tags say of its results
  SizesOfCalls sizes = SizesOfCalls::kUnknown;
  std::vector<std::string> size_arguments;
  std::string size_rule;
};

// `ops` are names without overloads. Of theirs `overload` alone is meant, where it is not empty:
// "default" is the one without a name. Raises once `op_rules_are_complete` was called: threads read
// them without a lock from then on.
void set_op_rule(
    const std::vector<std::string>& ops, const std::string& overload, const OpRule& rule);
void op_rules_are_complete();
// What holds for an op with its overload, as in "aten::add_.Tensor": what was said of that, of the
// name, or of the functional op of that name.
const OpRule& op_rule(std::string_view op);
// Whether a tensor argument may lie on the host, though it is no scalar. Said of one overload it
// holds for all.
bool is_host_argument(const c10::FunctionSchema& schema, const std::string& argument);

// Whether it is neither PyTorch's nor ours. Such an op may be another one in the next process. Its
// kernel may hold on to its arguments and results when it is over: they are given memory of their
// own.
bool is_foreign(const c10::OperatorHandle& op);

// Whether the schema says that an op writes an argument, or that a result is one that it wrote.
bool is_written(const c10::Argument& argument);
// By argument: whether the op writes it, as its schema or its rule says.
std::vector<bool> arguments_written(const c10::OperatorHandle& op);
// ... and reads nothing of what was there.
std::vector<bool> arguments_replaced(const c10::OperatorHandle& op);
// By result: the argument that the schema says it is (`Tensor(a!)`), or -1.
std::vector<int64_t> arguments_returned(const c10::FunctionSchema& schema);
// Whether the schema says that a result is a view of an argument.
bool makes_views(const c10::FunctionSchema& schema);

}  // namespace tenon
