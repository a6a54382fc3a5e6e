#include "execute/worth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "execute/run_threads.h"

namespace tenon {
namespace {

constexpr double kShareOfCost = 0.05;  // of what a plan costs, spent without it before it is wanted
constexpr double kRealised = 0.4;      // of what a plan might save, what it does save
constexpr double kNews = 2;            // so many times what the builder knows
// So many times as long a window may take where it leaves the builder a processor: what a loop of
// two threads takes on one.
constexpr double kLonger = 2.2;
constexpr int kRunsWithAll = 3;    // before fewer are tried
constexpr int kRunsWithFewer = 2;  // that tell what these take
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

// The part of the time that the builder takes by which a program is held up whose loops leave it a
// processor; 1: nobody knows.
double held_up(const ReferenceCost& cost) {
  if (fewer_threads() == 0)
    return 0;  // loops leave processors to others anyhow, or there is one in all
  if (cost.runs_with_fewer < kRunsWithFewer)
    return 1;
  return std::max(0.0, 1 - cost.with_all / cost.with_fewer);
}

// Whether the next run is to leave a processor to the builder, or to tell what that would take:
// where a plan pays only if it is little.
bool leaves_one(const ReferenceCost& cost, double of_plan, bool builder_works) {
  if (cost.runs < kRunsWithAll)
    return false;
  if (cost.runs_with_fewer < kRunsWithFewer)
    return builder_works || cost.saving() >= kShareOfCost * of_plan;
  const bool leaves = cost.with_fewer <= kLonger * cost.with_all;
  return builder_works && (is_for_trial(cost.runs) ? !leaves : leaves);
}

}  // namespace

double price_of(const ReferenceCost& cost, double of_plan) {
  return of_plan * std::max(kShareOfCost, held_up(cost) / kRealised);
}

bool pays(const ReferenceCost& cost, double of_plan) {
  return g_plan_all || cost.saving() >= price_of(cost, of_plan);
}

void set_plan_all(bool all) {
  g_plan_all = all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.saving() > kNews * cost.told;
}

void run_timed(
    ReferenceCost& cost,
    std::mutex& mutex,
    double of_plan,
    bool builder_works,
    c10::function_ref<ReferenceSeconds()> run) {
  int fewer = fewer_threads();
  if (fewer > 0) {
    const std::lock_guard<std::mutex> lock(mutex);
    fewer = leaves_one(cost, of_plan, builder_works) ? fewer : 0;
  }
  TimedRun timed(fewer, builder_works);
  const auto [library, runs] = run();
  const double seconds = timed.finish(/*left=*/fewer > 0);
  const std::lock_guard<std::mutex> lock(mutex);
  const bool first = cost.seconds == 0;
  // The others were hardly all held up as this one may have been.
  const double shortest = std::min({seconds, cost.with_all, cost.with_fewer});
  const double times = seconds > 0 ? 1 + (runs - 1) * shortest / seconds : runs;
  cost.seconds += seconds * times;
  cost.library += library * times;
  if (first)
    return;
  ++cost.runs;
  if (fewer == 0) {
    cost.with_all = std::min(cost.with_all, seconds);
  } else {
    ++cost.runs_with_fewer;
    cost.with_fewer = std::min(cost.with_fewer, seconds);
  }
}

}  // namespace tenon
