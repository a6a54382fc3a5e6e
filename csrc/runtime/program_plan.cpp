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

std::vector<TensorLayout> layouts_of(
    const std::vector<SizedTensor>& tensors,
    const Method& method,
    std::span<const int64_t> symbols) {
  std::vector<TensorLayout> layouts(tensors.size());
  for (size_t k = 0; k < tensors.size(); ++k)
    set_layout(layouts[k], tensors[k], method, symbols);
  return layouts;
}

}  // namespace

std::shared_ptr<MethodPlan> plan_for(
    const ProgramFile& file, const Method& method, std::vector<int64_t> symbols) {
  const auto found = shared<MethodPlan>();
  auto& made = *found;
  made.method = &method;
  made.symbols = std::move(symbols);
  made.inputs = layouts_of(method.inputs, method, made.symbols);
  made.outputs = layouts_of(method.outputs, method, made.symbols);
  std::vector<SizedNumber> numbers;
  read_plan(method.plan_bytes, made.data, numbers);
  for (size_t k = 0; k < made.data.constants.size(); ++k) {  // all sizes share them
    made.data.constants[k].data = method.plan.plan.constants[k].data;
    made.data.constants[k].keeper = method.plan.plan.constants[k].keeper;
  }
  for (auto& step : made.data.steps) {
    if (auto* kernel = std::get_if<KernelStep>(&step.work))
      kernel->function = method.functions[kernel->kernel];
  }
  bool is_sound = give_sizes(made.data, numbers, made.symbols);
  std::vector<int64_t> inputs(method.plan_inputs.size()), outputs(method.plan_outputs.size());
  for (size_t k = 0; k < inputs.size(); ++k)
    inputs[k] = static_cast<int64_t>(bytes_of(method.plan_inputs[k], file, made));
  for (size_t k = 0; k < outputs.size(); ++k)
    outputs[k] = static_cast<int64_t>(made.outputs[method.plan_outputs[k]].nbytes);
  is_sound = is_sound && check_memory(made.data, inputs, outputs);
  for (const auto& [output, source] : method.copies)
    is_sound = is_sound && bytes_of(source, file, made) == made.outputs[output].nbytes;
  check_data(
      is_sound,
      "{}: the plan of {} does not fit the sizes of its tensors",
      file.path(),
      method.name);
  resolve_calls(made.data, method);
  made.placement = place_blocks(made.data);
  return found;
}

MethodPlans::Plan MethodPlans::find(std::span<const int64_t> symbols) {
  return plans_.use([&](auto& plans) -> Plan {
    for (auto k = plans.size(); k-- > 0;) {
      if (!std::ranges::equal(plans[k]->symbols, symbols))
        continue;
      for (; k + 1 < plans.size(); ++k)
        plans[k].swap(plans[k + 1]);
      return plans.back();
    }
    return nullptr;
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
