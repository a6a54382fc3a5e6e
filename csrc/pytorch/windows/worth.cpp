#include "windows/worth.h"

#include <algorithm>
#include <atomic>

#include "execute/run_threads.h"

namespace tenon {
namespace {

constexpr double kShareOfCost = 0.05;  // of what a plan costs, spent without it before it is wanted
constexpr double kNews = 2;            // so many times what the builder knows
constexpr double kKnownSizes = 0.2;    // of a run by a plan for any sizes, saved by one for its own
// What runs by a plan take in all, and how many they are, before it is compared with its calls; and
// how much longer a run by it has to be than theirs.
constexpr double kComparedFrom = 0.05;
constexpr int kRunsWithAll = 3;
constexpr int kComparedRuns = 16;
constexpr double kSlower = 1.1;

std::atomic<bool> g_plan_all{false};

// Runs with fewer threads, while the builder worked, are no measure.
int measured_runs(const ReferenceCost& cost) {
  return cost.runs - cost.runs_with_fewer;
}

}  // namespace

ReferenceCost part_of(const ReferenceCost& any_sizes, double part) {
  ReferenceCost cost;  // how long runs of other sizes took tells nothing of these
  cost.elsewhere = part * any_sizes.saving();
  return cost;
}

double saving_beside_any_sizes(double seconds) {
  return kKnownSizes * seconds;
}

double price_of(double of_plan) {
  return kShareOfCost * of_plan;
}

bool pays(const ReferenceCost& cost, double of_plan) {
  return g_plan_all || cost.saving() >= price_of(of_plan);
}

void set_plan_all(bool all) {
  g_plan_all = all;
}

void note_run_by_plan(ReferenceCost& cost, double seconds) {
  cost.by_plan = std::min(cost.by_plan, seconds);
  cost.all_by_plan += seconds;
  ++cost.runs_by_plan;
}

bool leaves_plan(const ReferenceCost& cost) {
  if (g_plan_all || cost.runs_by_plan < kComparedRuns || cost.all_by_plan < kComparedFrom)
    return false;
  return measured_runs(cost) < kRunsWithAll || takes_longer_by_plan(cost);
}

bool takes_longer_by_plan(const ReferenceCost& cost) {
  const bool compared = cost.all_by_plan >= kComparedFrom && measured_runs(cost) >= kRunsWithAll;
  return compared && cost.by_plan > kSlower * cost.with_all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.saving() > kNews * cost.told;
}

void run_timed(ReferenceCost& cost, std::mutex& mutex, c10::function_ref<ReferenceSeconds()> run) {
  TimedRun timed;
  const auto [library, runs] = run();
  const double seconds = timed.finish();
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
  if (timed.left_a_processor()) {
    ++cost.runs_with_fewer;
    cost.with_fewer = std::min(cost.with_fewer, seconds);
  } else {
    cost.with_all = std::min(cost.with_all, seconds);
  }
}

}  // namespace tenon
