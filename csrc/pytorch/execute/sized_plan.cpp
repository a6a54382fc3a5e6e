#include "execute/sized_plan.h"

#include <algorithm>

#include "runtime/plan_check.h"

namespace tenon {
namespace {

constexpr size_t kMostKept = 4;

// None where one of them cannot be.
std::optional<std::vector<int64_t>> values_at(
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

// False where one of its numbers cannot be.
bool SizedPlan::give(Plan& instance, const std::vector<int64_t>& symbols) const {
  auto& data = instance.data_;
  if (!give_sizes(data, plan_.numbers, symbols))
    return false;
  for (const auto& number : plan_.numbers) {
    if (number.where == SizedNumber::Where::argument)
      std::get<CallStep>(data.steps[number.index].work).resolved = nullptr;
  }
  instance.resolve_calls();
  instance.symbols_ = symbols;
  for (auto& subject : instance.subjects_)
    subject.store(0, std::memory_order_relaxed);
  if (!memory_)
    return true;
  const auto inputs = values_at(memory_->first, symbols);
  const auto outputs = values_at(memory_->second, symbols);
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
      found->second = std::make_shared<Plan>(plan_.plan, pace_);
    if (!give(*found->second, symbols)) {
      made_.erase(found);
      return nullptr;
    }
    found->first = symbols;
  }
  made_.splice(made_.begin(), made_, found);
  // Those that ran at the same time go when they are over.
  while (made_.size() > kMostKept && made_.back().second.use_count() == 1)
    made_.pop_back();
  return found->second;
}

}  // namespace tenon
