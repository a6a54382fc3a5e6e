#include "execute/worth.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "execute/room.h"

namespace tenon {
namespace {

constexpr double kShareOfCost = 0.05;  // of what a plan costs, spent without it before it is wanted
constexpr double kNews = 2;            // so many times what the builder knows
// So many times as long a window may take where it leaves the builder a processor: a little longer
// while the program has just begun, and after that what a loop of two threads takes on one.
constexpr double kLongerYoung = 1.25, kLonger = 2.2;
constexpr double kYoung = 3;       // seconds
constexpr int kRunsWithAll = 3;    // before fewer are tried
constexpr int kRunsUntilTry = 32;  // of the other number; from then on ever rarer

std::atomic<bool> g_plan_all{false};

// Each fourth as often as the one before: a thread that has run a part of a loop keeps its
// processor for some milliseconds more, to wait for the next, and these are the builder's.
bool is_for_trial(int runs) {
  int64_t next = kRunsUntilTry;
  while (next < runs)
    next *= 4;
  return next == runs;
}

// Whether the next run is to leave a processor to the builder.
bool leaves_one(const ReferenceCost& cost) {
  if (cost.runs < kRunsWithAll)
    return false;
  if (std::isinf(cost.with_fewer))
    return true;
  const bool young = builder_age() < kYoung;
  const bool leaves = cost.with_fewer <= (young ? kLongerYoung : kLonger) * cost.with_all;
  return is_for_trial(cost.runs) ? !leaves : leaves;
}

int threads_for(const ReferenceCost& cost, std::mutex& mutex) {
  const int fewer = fewer_threads();
  if (fewer == 0)
    return 0;
  const std::lock_guard<std::mutex> lock(mutex);
  return leaves_one(cost) ? fewer : 0;
}

}  // namespace

bool pays(const ReferenceCost& cost, size_t calls, double per_call) {
  return g_plan_all || cost.saving() >= price_of(calls, per_call);
}

double price_of(size_t calls, double per_call) {
  return kShareOfCost * per_call * static_cast<double>(calls);
}

void set_plan_all(bool all) {
  g_plan_all = all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.saving() > kNews * cost.told;
}

ReferenceRun::ReferenceRun(ReferenceCost& cost, std::mutex& mutex, bool builder_works)
    : cost_(cost),
      mutex_(mutex),
      beside_builder_(builder_works),
      fewer_(builder_works ? threads_for(cost, mutex) : 0),
      threads_(fewer_),
      start_(host_seconds()) {}

void ReferenceRun::finish(double library, double runs) {
  const double seconds = host_seconds() - start_;
  if (beside_builder_)
    note_room(seconds, fewer_ > 0);
  else
    need_no_room();
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool first = cost_.seconds == 0;
  // The others were hardly all held up as this one may have been.
  const double shortest = std::min({seconds, cost_.with_all, cost_.with_fewer});
  const double times = seconds > 0 ? 1 + (runs - 1) * shortest / seconds : runs;
  cost_.seconds += seconds * times;
  cost_.library += library * times;
  if (first)
    return;
  ++cost_.runs;
  if (fewer_ > 0)
    cost_.with_fewer = std::min(cost_.with_fewer, seconds);
  else
    cost_.with_all = std::min(cost_.with_all, seconds);
}

}  // namespace tenon
