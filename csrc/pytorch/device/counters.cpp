#include "device/counters.h"

#include <deque>
#include <mutex>
#include <unordered_map>

#include "device/fork.h"

namespace tenon {
namespace {

struct Table {
  MutexAtFork<ForkOrder::counters> mutex;
  std::deque<Counter> all;  // a deque keeps addresses
  std::unordered_map<std::string, Counter*> by_name;
};

Table& table() {
  return OnlyOne<Table>::get();
}

}  // namespace

Counter& counter(const std::string& route, const std::string& op) {
  auto& c = table();
  std::lock_guard<std::mutex> lock(c.mutex);
  auto& slot = c.by_name[route + "::" + op];
  if (slot == nullptr) {
    slot = &c.all.emplace_back();
    slot->route = route;
    slot->op = op;
  }
  return *slot;
}

std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>> counter_values() {
  auto& c = table();
  std::lock_guard<std::mutex> lock(c.mutex);
  std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>> values;
  for (const auto& one : c.all) {
    const int64_t calls = one.calls + (one.more != nullptr ? one.more->calls.load() : 0);
    if (calls > 0)
      values.emplace_back(one.route, one.op, calls, one.nanoseconds, one.bytes_copied);
  }
  return values;
}

void reset_counters() {
  auto& c = table();
  std::lock_guard<std::mutex> lock(c.mutex);
  for (auto& one : c.all)
    one.calls = one.nanoseconds = one.bytes_copied = 0;
}

}  // namespace tenon
