#include "runtime/plan.h"

namespace tenon {
namespace {

using Where = SizedNumber::Where;
using Field = SizedNumber::Field;

void set_in(TensorLayout& layout, const SizedNumber& number, int64_t value) {
  if (number.field == Field::offset)
    layout.offset = value;
  else
    (number.field == Field::size ? layout.sizes : layout.strides).at(number.at) = value;
}

void set_argument(Value& argument, size_t at, int64_t value) {
  if (argument.kind == Value::Kind::list)
    argument.elements.at(at).integer = value;
  else
    argument.integer = value;
}

void set_number(PlanData& plan, const SizedNumber& number, int64_t value) {
  if (number.where == Where::slot) {
    plan.slots.at(number.index).number = static_cast<size_t>(value);
    return;
  }
  if (number.where == Where::bytes) {
    plan.slots.at(number.index).nbytes = static_cast<size_t>(value);
    return;
  }
  auto& work = plan.steps.at(number.index).work;
  if (number.where == Where::kernel) {
    std::get<KernelStep>(work).sizes.at(number.which) = value;
    return;
  }
  auto& call = std::get<CallStep>(work);
  if (number.where == Where::tensor)
    set_in(call.tensors.at(number.which).layout, number, value);
  else if (number.where == Where::result)
    set_in(call.results.at(number.which).value().layout, number, value);
  else
    set_argument(call.arguments.at(number.which).value, number.at, value);
}

// False where no tensor is so.
bool count_bytes(TensorLayout& layout) {
  const auto nbytes = storage_bytes(layout);
  layout.nbytes = nbytes.value_or(0);
  return nbytes.has_value();
}

}  // namespace

bool give_sizes(
    PlanData& plan, const std::vector<SizedNumber>& numbers, std::span<const int64_t> symbols) {
  for (const auto& number : numbers) {
    const auto value = number.value.evaluate(symbols);
    if (!value || (*value < 0 && number.where != Where::argument))
      return false;
    set_number(plan, number, *value);
  }
  for (auto& step : plan.steps) {
    auto* call = std::get_if<CallStep>(&step.work);
    if (call == nullptr)
      continue;
    for (auto& tensor : call->tensors) {
      if (!count_bytes(tensor.layout))
        return false;
    }
    for (auto& result : call->results) {
      if (result && !count_bytes(result->layout))
        return false;
    }
  }
  return true;
}

}  // namespace tenon
