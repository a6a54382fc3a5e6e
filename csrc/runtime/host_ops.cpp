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
  const auto input = std::ranges::find(plan.inputs, slot);
  check_data(
      kind != Slot::Kind::constant &&
          (kind != Slot::Kind::input ||
           method.plan_inputs[static_cast<size_t>(input - plan.inputs.begin())].kind ==
               Source::Kind::state),
      "{}: a call writes what a run may not change",
      method.name);
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
  const auto end = std::min(op.find('\n'), op.size());
  const auto name = std::string_view(op).substr(0, end);
  return end + 1 < op.size() ? text_of("{}.{}", name, std::string_view(op).substr(end + 1))
                             : std::string(name);
}

void resolve_calls(PlanData& plan, const Method& method) {
  std::string lacking;
  for (auto& step : plan.steps) {
    auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    call->written = Flags(call->tensors.size());
    call->function = find_host_op(call->op);
    if (call->function == nullptr) {
      if (g_resolve_call == nullptr) {
        add_to_list(lacking, name_of_op(call->op));
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
        "{} calls {}, which this runtime does not have: PyTorch has it, with torch_tenon.load",
        method.name,
        lacking);
}

}  // namespace tenon
