#include "execute/worth.h"

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

namespace tenon {
namespace {

constexpr double kShare = 0.05;  // of what a plan costs, spent without it before it is wanted
constexpr double kNews = 2;      // so many times what the builder knows
// So many times as long a window may take where it leaves the builder a processor: hardly longer
// while the program has just begun, and after that what a loop of two threads takes on one.
constexpr double kLongerYoung = 1.05, kLonger = 2.2;
constexpr double kYoung = 3;       // seconds
constexpr int kRunsWithAll = 3;    // before fewer are tried
constexpr int kRunsUntilTry = 32;  // of the other number

std::atomic<bool> g_plan_all{false};

// Whether the next run is to leave a processor to the builder.
bool leaves_one(const ReferenceCost& cost) {
  if (cost.runs < kRunsWithAll)
    return false;
  if (std::isinf(cost.with_fewer))
    return true;
  static const auto start = seconds_now();
  const bool young = seconds_now() - start < kYoung;
  const bool leaves = cost.with_fewer <= (young ? kLongerYoung : kLonger) * cost.with_all;
  return cost.runs % kRunsUntilTry == 0 ? !leaves : leaves;
}

// How many threads leave a processor to the builder; 0: all are needed.
int fewer_threads(const ReferenceCost& cost, std::mutex& mutex) {
  static const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  const int all = omp_get_max_threads();
  const int fewer = std::max(1, std::min(all, processors - 1));
  if (fewer >= all)
    return 0;
  const std::lock_guard<std::mutex> lock(mutex);
  return leaves_one(cost) ? fewer : 0;
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
  const bool first = cost_.seconds == 0;
  cost_.seconds += seconds;
  cost_.library += library;
  if (first)
    return;
  ++cost_.runs;
  if (fewer_ > 0)
    cost_.with_fewer = std::min(cost_.with_fewer, seconds);
  else
    cost_.with_all = std::min(cost_.with_all, seconds);
}

}  // namespace tenon
