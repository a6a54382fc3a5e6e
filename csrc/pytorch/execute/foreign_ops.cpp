#include "execute/foreign_ops.h"

#include <pybind11/pybind11.h>

#include <algorithm>

#include "record/op_cache.h"

namespace tenon {
namespace {

DescribeOp& described_by() {
  static auto* instance = new DescribeOp();
  return *instance;
}

std::optional<std::string> description_of(const std::string& op) {
  if (!described_by())
    return std::nullopt;
  try {
    return described_by()(op);
  } catch (pybind11::error_already_set& error) {
    const pybind11::gil_scoped_acquire gil;
    error.discard_as_unraisable("an op is described");
    return std::nullopt;
  }
}

}  // namespace

void set_describe_op(DescribeOp describe) {
  described_by() = std::move(describe);
}

std::optional<std::vector<std::string>> describe_foreign_ops(const WindowPlan& window) {
  std::vector<std::string> names;
  for (const auto* call : window.calls) {
    if (!call->op->lasts && std::find(names.begin(), names.end(), call->op->name) == names.end())
      names.push_back(call->op->name);
  }
  std::vector<std::string> found;
  for (const auto& name : names) {
    auto description = description_of(name);
    if (!description)
      return std::nullopt;
    found.push_back(std::move(*description));
  }
  return found;
}

}  // namespace tenon
