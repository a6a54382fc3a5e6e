#include "windows/worth.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <utility>

#include "execute/run_threads.h"
#include "runtime/queue.h"
#include "runtime/threads.h"

namespace tenon {
namespace {

constexpr double kShareOfCost = 0.05;  // of what a plan costs, spent without it before it is wanted
constexpr double kNews = 2;            // so many times what the builder knows
constexpr double kKnownSizes = 0.2;    // of a run by a plan for any sizes, saved by one for its own
// What runs by a plan take in all, and how many they are, before it is compared with its window's
// calls; and how much longer a run by it has to be than theirs.
constexpr double kComparedFrom = 0.05;
constexpr int kRunsWithAll = 3;
constexpr int kComparedRuns = 16;
constexpr double kSlower = 1.1;

std::atomic<bool> g_plan_all{false};

// The part of its time in which the program keeps all processors busy, of the last seconds; 1: it
// has hardly begun. A thread that waits for the next part of a loop is busy for some milliseconds.
class Busy {
 public:
  double part() {
    const auto now = Sample::now();
    if (now.wall - middle_.wall > kHalf)
      first_ = std::exchange(middle_, now);
    const double seconds = now.wall - first_.wall;
    if (seconds < kLeast)
      return 1;
    const double others = usable_processors() - 1;
    return std::clamp((now.processors - first_.processors) / seconds - others, 0.0, 1.0);
  }

 private:
  struct Sample {
    double wall, processors;  // seconds of all threads
    static Sample now() {
      timespec used{};
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
      return {host_seconds(), static_cast<double>(used.tv_sec) + 1e-9 * used.tv_nsec};
    }
  };
  static constexpr double kHalf = 2, kLeast = 0.05;
  Sample first_ = Sample::now(), middle_ = first_;
};

// From the first window on; guarded as the windows are.
Busy& program() {
  static Busy instance;
  return instance;
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
  return of_plan * std::max(kShareOfCost, program().part());
}

bool pays(const ReferenceCost& cost, double of_plan) {
  if (g_plan_all)
    return true;
  const double saving = cost.saving();
  return saving >= kShareOfCost * of_plan && saving >= price_of(of_plan);
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
  // Runs with fewer threads, while the builder worked, are no measure.
  return cost.runs - cost.runs_with_fewer < kRunsWithAll || cost.by_plan > kSlower * cost.with_all;
}

bool is_news(const ReferenceCost& cost) {
  return cost.saving() > kNews * cost.told;
}

void run_timed(
    ReferenceCost& cost,
    std::mutex& mutex,
    bool builder_works,
    c10::function_ref<ReferenceSeconds()> run) {
  program();
  const int fewer = builder_works ? fewer_threads() : 0;
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
