#include "execute/worth.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace tenon {
namespace {

// Of what a plan costs: its window comes again many times in a script that is worth waiting for.
constexpr double kShare = 0.05;
constexpr double kNews = 2;           // so many times what the builder knows
constexpr double kHardlyLonger = 1.2;  // so many times as long

std::atomic<bool> g_plan_all{false};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Threads with which a processor is left, or those that there are where one is left anyway.
int fewer_threads(int all) {
  static const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, std::min(all, processors - 1));
}

}  // namespace

bool pays(const ReferenceCost& cost, size_t calls, double per_call) {
  return g_plan_all || cost.seconds >= kShare * per_call * static_cast<double>(calls);
}

void set_plan_all(bool all) {
  g_plan_all = all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.seconds >= kNews * cost.told;
}

ReferenceRun::ReferenceRun(ReferenceCost& cost, std::mutex& mutex, bool builder_works)
    : cost_(cost), mutex_(mutex) {
  const int all = omp_get_max_threads(), fewer = fewer_threads(all);
  if (builder_works && fewer < all) {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Unless it is known to take longer: infinity is, of a window that has not run yet.
    if (cost_.with_fewer == std::numeric_limits<double>::infinity() ||
        cost_.with_fewer <= kHardlyLonger * cost_.with_all)
      all_ = all;
  }
  if (all_ > 0)
    omp_set_num_threads(fewer);
  start_ = now();
}

ReferenceRun::~ReferenceRun() {
  const double seconds = now() - start_;
  if (all_ > 0)
    omp_set_num_threads(all_);
  const std::lock_guard<std::mutex> lock(mutex_);
  cost_.seconds += seconds;
  auto& shortest = all_ > 0 ? cost_.with_fewer : cost_.with_all;
  shortest = std::min(shortest, seconds);
}

}  // namespace tenon
