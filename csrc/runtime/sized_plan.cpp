#include "runtime/plan.h"

namespace tenon {
namespace {

using Where = SizedNumber::Where;
using Field = SizedNumber::Field;

// What the checks of a plan let through is there.
template <class T>
T& element(std::vector<T>& all, size_t k) {
  check_data(k < all.size(), "a size stands nowhere in the plan");
  return all[k];
}

void set_in(TensorLayout& layout, const SizedNumber& number, int64_t value) {
  if (number.field == Field::offset)
    layout.offset = value;
  else
    element(number.field == Field::size ? layout.sizes : layout.strides, number.at) = value;
}

void set_argument(Value& argument, size_t at, int64_t value) {
  if (argument.kind == Value::Kind::list)
    element(argument.elements, at).integer = value;
  else
    argument.integer = value;
}

void set_number(PlanData& plan, const SizedNumber& number, int64_t value) {
  if (number.where == Where::slot) {
    element(plan.slots, number.index).number = static_cast<size_t>(value);
    return;
  }
  if (number.where == Where::bytes) {
    element(plan.slots, number.index).nbytes = static_cast<size_t>(value);
    return;
  }
  auto& work = element(plan.steps, number.index).work;
  if (auto* kernel = std::get_if<KernelStep>(&work)) {
    element(kernel->sizes, number.which) = value;
    return;
  }
  auto& call = *std::get_if<CallStep>(&work);
  if (number.where == Where::tensor)
    set_in(element(call.tensors, number.which).layout, number, value);
  else if (number.where != Where::result)
    set_argument(element(call.arguments, number.which).value, number.at, value);
  else if (auto& result = element(call.results, number.which))
    set_in(result->layout, number, value);
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
