#include "runtime/program_plan.h"

#include <algorithm>

#include "runtime/host_ops.h"
#include "runtime/plan_check.h"
#include "runtime/program_sizes.h"

namespace tenon {
namespace {

size_t bytes_of(const Source& source, const ProgramFile& file, const MethodPlan& plan) {
  switch (source.kind) {
    case Source::Kind::input:
      return plan.inputs[source.number].nbytes;
    case Source::Kind::weight:
      return file.weight_list[source.number].tensor.layout.nbytes;
    case Source::Kind::state:
      return file.state_list[source.number].tensor.layout.nbytes;
    case Source::Kind::symbol:
      return sizeof(int64_t);
    case Source::Kind::output:
      return plan.outputs[source.number].nbytes;
  }
  fail(ErrorKind::damaged, "no kind of a tensor");
}

}  // namespace

MethodPlan plan_for(const ProgramFile& file, const Method& method, std::vector<int64_t> symbols) {
  MethodPlan made;
  made.method = &method;
  made.symbols = std::move(symbols);
  for (const auto& tensor : method.inputs)
    made.inputs.push_back(layout_of(tensor, method, made.symbols));
  for (const auto& tensor : method.outputs)
    made.outputs.push_back(layout_of(tensor, method, made.symbols));
  made.data = read_plan(method.plan_bytes).plan;
  made.data.constants = method.plan.plan.constants;  // all sizes share them
  for (auto& step : made.data.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = method.functions.at(kernel->kernel);
  }
  bool is_sound = give_sizes(made.data, method.plan.numbers, made.symbols);
  std::vector<int64_t> inputs, outputs;
  for (const auto& source : method.plan_inputs)
    inputs.push_back(static_cast<int64_t>(bytes_of(source, file, made)));
  for (const auto output : method.plan_outputs)
    outputs.push_back(static_cast<int64_t>(made.outputs[output].nbytes));
  is_sound = is_sound && check_memory(made.data, inputs, outputs);
  for (const auto& [output, source] : method.copies)
    is_sound = is_sound && bytes_of(source, file, made) == made.outputs[output].nbytes;
  check_data(
      is_sound,
      file.path(),
      ": the plan of ",
      method.name,
      " does not fit the sizes of its tensors");
  resolve_calls(made.data, method);
  made.placement = place_blocks(made.data);
  return made;
}

MethodPlans::Plan MethodPlans::find(std::span<const int64_t> symbols) {
  return plans_.use([&](auto& plans) -> Plan {
    const auto found = std::find_if(plans.rbegin(), plans.rend(), [&](const Plan& plan) {
      return std::equal(plan->symbols.begin(), plan->symbols.end(), symbols.begin(), symbols.end());
    });
    if (found == plans.rend())
      return nullptr;
    std::rotate(plans.rbegin(), found, found + 1);
    return plans.back();
  });
}

void MethodPlans::keep(Plan plan) {
  plans_.use([&](auto& plans) {
    if (plans.size() == kMost)
      plans.erase(plans.begin());
    plans.push_back(std::move(plan));
  });
}

}  // namespace tenon
