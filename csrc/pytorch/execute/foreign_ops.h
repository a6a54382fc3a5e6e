// Ops that are neither PyTorch's nor ours (record/op_rules.h): what another process has to know of
// them before it can make a plan for their windows, or take one over.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "execute/window_plans.h"

namespace tenon {

// What is to be told of an op, as text; nothing where it cannot be told.
using DescribeOp = std::function<std::optional<std::string>(const std::string& op)>;
// Called once, at import.
void set_describe_op(DescribeOp describe);

// That of each such op of a window, in the order of calls; nothing where one has none. Asks Python,
// so the caller holds no lock.
std::optional<std::vector<std::string>> describe_foreign_ops(const WindowPlan& window);

}  // namespace tenon
