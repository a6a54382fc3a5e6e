#include "execute/counters.h"

#include <deque>
#include <mutex>
#include <unordered_map>

namespace tenon {
namespace {

struct Counters {
  std::mutex mutex;
  std::deque<Counter> all;  // a deque keeps addresses
  std::unordered_map<std::string, Counter*> by_name;
};

// Leaked on purpose: threads may still count while the process exits.
Counters& counters() {
  static auto* instance = new Counters();
  return *instance;
}

}  // namespace

Counter& counter(const std::string& route, const std::string& op) {
  auto& c = counters();
  std::lock_guard<std::mutex> lock(c.mutex);
  auto& slot = c.by_name[route + "::" + op];
  if (slot == nullptr) {
    slot = &c.all.emplace_back();
    slot->route = route;
    slot->op = op;
  }
  return *slot;
}

std::vector<CounterValue> counter_values() {
  auto& c = counters();
  std::lock_guard<std::mutex> lock(c.mutex);
  std::vector<CounterValue> values;
  for (const auto& one : c.all) {
    if (one.calls > 0)
      values.push_back({one.route, one.op, one.calls, one.nanoseconds, one.bytes_copied});
  }
  return values;
}

void reset_counters() {
  auto& c = counters();
  std::lock_guard<std::mutex> lock(c.mutex);
  for (auto& one : c.all)
    one.calls = one.nanoseconds = one.bytes_copied = 0;
}

}  // namespace tenon
