#include "runtime/host_ops.h"

#include "runtime/host_sort.h"

namespace tenon {
namespace {

struct Row {
  std::string_view name;  // and overload
  HostOp op;
};

constexpr Row kOps[] = {
    {"aten::sort\n", &host_sort},
    {"aten::sort\nstable", &host_sort_stable},
    {"aten::topk\n", &host_topk},
};

}  // namespace

HostOp find_host_op(const std::string& op) {
  for (const auto& [name, found] : kOps) {
    if (name == op)
      return found;
  }
  return nullptr;
}

std::string name_of_op(const std::string& op) {
  auto name = op;
  const auto end = name.find('\n');
  if (end + 1 == name.size())
    name.pop_back();
  else if (end != std::string::npos)
    name[end] = '.';
  return name;
}

void resolve_calls(PlanData& plan) {
  for (auto& step : plan.steps) {
    auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    const auto op = find_host_op(call->op);
    if (op == nullptr)
      fail(
          ErrorKind::unsupported,
          "the program calls ",
          name_of_op(call->op),
          ", which this runtime does not have");
    call->resolved = std::make_shared<HostOp>(op);
    call->written.assign(call->tensors.size(), false);
  }
}

}  // namespace tenon
