#include "execute/worth.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace tenon {
namespace {

constexpr double kShare = 0.05;        // of what a plan costs, spent without it before it is wanted
constexpr double kNews = 2;            // so many times what the builder knows
constexpr double kHardlyLonger = 1.2;  // so many times as long

std::atomic<bool> g_plan_all{false};

// How many threads leave a processor to the builder; 0: all are needed.
int fewer_threads(ReferenceCost& cost, std::mutex& mutex) {
  static const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  const int all = omp_get_max_threads();
  const int fewer = std::max(1, std::min(all, processors - 1));
  const std::lock_guard<std::mutex> lock(mutex);
  const bool leaves = cost.with_fewer == std::numeric_limits<double>::infinity() ||
                      cost.with_fewer <= kHardlyLonger * cost.with_all;
  return fewer < all && leaves ? fewer : 0;
}

}  // namespace

bool pays(const ReferenceCost& cost, size_t calls, double per_call) {
  return g_plan_all || cost.saving() >= price_of(calls, per_call);
}

double price_of(size_t calls, double per_call) {
  return kShare * per_call * static_cast<double>(calls);
}

void set_plan_all(bool all) {
  g_plan_all = all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.saving() > kNews * cost.told;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ReferenceRun::ReferenceRun(ReferenceCost& cost, std::mutex& mutex, bool builder_works)
    : cost_(cost),
      mutex_(mutex),
      fewer_(builder_works ? fewer_threads(cost, mutex) : 0),
      threads_(fewer_),
      start_(seconds_now()) {}

void ReferenceRun::finish(double library) {
  const double seconds = seconds_now() - start_;
  const std::lock_guard<std::mutex> lock(mutex_);
  cost_.seconds += seconds;
  cost_.library += library;
  auto& shortest = fewer_ > 0 ? cost_.with_fewer : cost_.with_all;
  shortest = std::min(shortest, seconds);
}

}  // namespace tenon
