#include "runtime/host_ops.h"

#include <algorithm>

namespace tenon {
namespace {

struct Row {
  std::string_view name;  // and overload
  CallStep::Function op;
};

constexpr Row kOps[] = {
    {"aten::sort\n", &host_sort},
    {"aten::sort\nstable", &host_sort_stable},
    {"aten::topk\n", &host_topk},
};

ResolveCall g_resolve_call = nullptr;

// A run changes its own memory, outputs and state. Weights are the file's, and inputs the caller's.
void check_may_be_written(size_t slot, const PlanData& plan, const Method& method) {
  const auto kind = plan.slots[slot].kind;
  const auto input = std::find(plan.inputs.begin(), plan.inputs.end(), slot);
  check_data(
      kind != Slot::Kind::constant &&
          (kind != Slot::Kind::input ||
           method.plan_inputs[static_cast<size_t>(input - plan.inputs.begin())].kind ==
               Source::Kind::state),
      method.name,
      ": a call writes what a run may not change");
}

}  // namespace

void set_resolve_call(ResolveCall resolve) {
  g_resolve_call = resolve;
}

CallStep::Function find_host_op(const std::string& op) {
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

void resolve_calls(PlanData& plan, const Method& method) {
  std::string lacking;
  for (auto& step : plan.steps) {
    auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    call->written.assign(call->tensors.size(), false);
    call->function = find_host_op(call->op);
    if (call->function == nullptr) {
      if (g_resolve_call == nullptr) {
        lacking += (lacking.empty() ? "" : ", ") + name_of_op(call->op);
        continue;
      }
      g_resolve_call(*call);
    }
    for (size_t k = 0; k < call->written.size(); ++k) {
      if (call->written[k])
        check_may_be_written(call->tensors[k].slot, plan, method);
    }
    for (const auto& result : call->results) {
      if (result)
        check_may_be_written(result->slot, plan, method);
    }
  }
  if (!lacking.empty())
    fail(
        ErrorKind::unsupported,
        method.name,
        " calls ",
        lacking,
        ", which this runtime does not have: PyTorch has it, with torch_tenon.load");
}

}  // namespace tenon
