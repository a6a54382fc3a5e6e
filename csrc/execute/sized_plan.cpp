#include "execute/sized_plan.h"

#include <algorithm>

#include "execute/plan_check.h"
#include "record/sound.h"

namespace tenon {
namespace {

constexpr size_t kMostKept = 4;

void set_in(TensorLayout& layout, const SizedNumber& number, int64_t value) {
  if (number.field == SizedNumber::offset)
    layout.offset = value;
  else
    (number.field == SizedNumber::size ? layout.sizes : layout.strides).at(number.at) = value;
}

void set_argument(c10::IValue& argument, size_t at, int64_t value) {
  if (!argument.isList()) {
    argument = value;
    return;
  }
  auto all = argument.toIntVector();  // the list itself belongs to all plans that are made of this
  all.at(at) = value;
  argument = std::move(all);
}

void set_number(PlanData& data, const SizedNumber& number, int64_t value) {
  if (number.where == SizedNumber::slot) {
    data.slots.at(number.index).number = static_cast<size_t>(value);
    return;
  }
  if (number.where == SizedNumber::bytes) {
    data.slots.at(number.index).nbytes = static_cast<size_t>(value);
    return;
  }
  auto& work = data.steps.at(number.index).work;
  if (number.where == SizedNumber::kernel) {
    std::get<KernelStep>(work).sizes.at(number.which) = value;
    return;
  }
  auto& call = std::get<CallStep>(work);
  if (number.where == SizedNumber::tensor)
    set_in(call.tensors.at(number.which).layout, number, value);
  else if (number.where == SizedNumber::result)
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

// None where one of them cannot be.
std::optional<std::vector<int64_t>> values_of(
    const std::vector<SizeExpression>& all, const std::vector<int64_t>& symbols) {
  std::vector<int64_t> values;
  for (const auto& one : all) {
    const auto value = one.evaluate(symbols);
    if (!value || *value < 0)
      return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

}  // namespace

bool SizedPlan::give_sizes(PlanData& data, const std::vector<int64_t>& symbols) const {
  for (const auto& number : numbers_) {
    const auto value = number.value.evaluate(symbols);
    if (!value || *value < 0)
      return false;
    set_number(data, number, *value);
  }
  for (auto& step : data.steps) {
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
  if (!memory_)
    return true;
  const auto inputs = values_of(memory_->first, symbols);
  const auto outputs = values_of(memory_->second, symbols);
  return inputs && outputs && check_memory(data, *inputs, *outputs);
}

std::shared_ptr<const Plan> SizedPlan::instance(const std::vector<int64_t>& symbols) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(
      made_.begin(), made_.end(), [&](const auto& one) { return one.first == symbols; });
  if (found == made_.end()) {
    // Nobody else has the one that was used longest ago, unless it runs.
    const bool full = made_.size() >= kMostKept && made_.back().second.use_count() == 1;
    found = full ? std::prev(made_.end()) : made_.insert(made_.end(), {{}, nullptr});
    if (!full)
      found->second = std::make_shared<Plan>(data_, pace_);
    if (!give_sizes(found->second->data_, symbols)) {
      made_.erase(found);
      return nullptr;
    }
    found->first = found->second->symbols_ = symbols;
    for (auto& subject : found->second->subjects_)
      subject.store(0, std::memory_order_relaxed);
  }
  made_.splice(made_.begin(), made_, found);
  // Those that ran at the same time go when they are over.
  while (made_.size() > kMostKept && made_.back().second.use_count() == 1)
    made_.pop_back();
  return found->second;
}

}  // namespace tenon
