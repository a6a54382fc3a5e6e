// What a window's runs by reference cost, and whether a plan would pay.
//
// Nobody knows how often a window will come again: as often as it came until now is the guess that
// is wrong by the least. So a plan is asked for once the runs so far have cost a part of what it
// costs the builder. The builder makes those first that would save the most. The part is small: the
// builder leaves the processors to the program, and the next process finds the plans as well.
//
// A plan may take longer than its calls one by one: the library's kernel for an op may be much
// better than what is generated. So once a plan has run for a while, its window runs by reference
// three times, unless it did before. If the shortest of these took less time than the shortest by
// the plan, the plan is no longer used.
#pragma once

#include <c10/util/FunctionRef.h>

#include <limits>
#include <mutex>

namespace tenon {

// Of one window; guarded by whoever has it.
struct ReferenceCost {
  double seconds = 0;    // of all runs
  double library = 0;    // ... in kernels that a plan calls as well
  double told = 0;       // what the builder was last told of what a plan would save
  double elsewhere = 0;  // what a plan might have saved of runs that count for another window
  // The shortest runs, but for the first, which finds nothing in the caches: with all threads, and
  // with those that leave a processor to the builder.
  double with_all = std::numeric_limits<double>::infinity();
  double with_fewer = std::numeric_limits<double>::infinity();
  int runs = 0;             // that either is of
  int runs_with_fewer = 0;  // ... of the latter
  // Of runs by the plan for its sizes: the shortest, all together, and how many.
  double by_plan = std::numeric_limits<double>::infinity();
  double all_by_plan = 0;
  int runs_by_plan = 0;

  // Seconds that a plan might have saved.
  double saving() const {
    return seconds - library + elsewhere;
  }
};

// What runs with some sizes cost, which are such a part of the runs for any sizes.
ReferenceCost part_of(const ReferenceCost& any_sizes, double part);
// What a plan for some sizes might have saved of a run by the plan for any sizes.
double saving_beside_any_sizes(double seconds);

// What runs without a plan may cost until one is asked for that takes the builder so many seconds.
double price_of(double of_plan);
// Whether a plan is to be asked for.
bool pays(const ReferenceCost& cost, double of_plan);
// From now on every window that comes twice gets a plan, whatever that costs.
void set_plan_all(bool all);

// Notes a run by the plan with all threads: one beside the builder has fewer, and takes longer.
void note_run_by_plan(ReferenceCost& cost, double seconds);
// Whether a window that has a plan runs by reference: to learn what that takes, or since it is
// known to take less.
bool leaves_plan(const ReferenceCost& cost);
// ... the latter.
bool takes_longer_by_plan(const ReferenceCost& cost);

// Whether what the builder was told of a window is out of date.
bool is_news(const ReferenceCost& cost);

// A run of a window by reference. What its kernels took that a plan calls as well, and for how many
// runs it stands: the others are those of the same calls without a window.
struct ReferenceSeconds {
  double library, runs;
};
// Runs a window, timed; `mutex` guards `cost`. While the builder works for this process it is on
// fewer threads than there are processors. They would wait for each other otherwise: a loop ends
// when its last thread does, and that has to wait for the builder's turn. The builder would wait
// too, ten times as long as its work takes, and all that while nothing is fused. That costs more
// than a thread less does, even where a window takes three times as long without it.
void run_timed(ReferenceCost& cost, std::mutex& mutex, c10::function_ref<ReferenceSeconds()> run);

}  // namespace tenon
