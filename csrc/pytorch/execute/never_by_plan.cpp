#include "execute/never_by_plan.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "device/storage.h"
#include "device/target.h"
#include "record/op_rules.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

std::array<std::atomic<int64_t>, kNeverByPlan.size()> counts;

bool uses_failed(const Window& window) {
  std::lock_guard<std::mutex> lock(record_mutex());
  return std::any_of(window.slots.begin(), window.slots.end(), [](const auto& slot) {
    return slot.buffer && slot.buffer->failure;
  });
}

// Whether the program alone has to decide what computes a window's results, as far as their last
// bits go.
bool has_deterministic_calls(const Window& window) {
  return std::any_of(window.calls.begin(), window.calls.end(), [](const auto& call) {
    return is_deterministic(call.entry->surroundings());
  });
}

// A plan is for calls of one world. Grad mode is nothing to generated kernels, and each call on
// whole tensors has its own.
bool is_of_one_world(const Window& window) {
  const auto first = window.calls.front().entry->surroundings();
  return std::all_of(window.calls.begin(), window.calls.end(), [first](const auto& call) {
    return same_settings(call.entry->surroundings(), first);
  });
}

std::optional<NeverByPlan> why_never(const Window& window, bool verifies) {
  if (!target().runs_plans)
    return NeverByPlan::target;
  if (!verifies && has_deterministic_calls(window))
    return NeverByPlan::deterministic;
  if (!is_of_one_world(window))
    return NeverByPlan::settings;
  if (target().host_memory && uses_failed(window))
    return NeverByPlan::failed;
  return std::nullopt;
}

}  // namespace

bool never_by_plan(const Window& window, bool verifies) {
  const auto why = why_never(window, verifies);
  if (why)
    ++counts[static_cast<size_t>(*why)];
  return why.has_value();
}

std::array<int64_t, kNeverByPlan.size()> windows_never_by_plan() {
  std::array<int64_t, kNeverByPlan.size()> found{};
  std::copy(counts.begin(), counts.end(), found.begin());
  return found;
}

}  // namespace tenon
