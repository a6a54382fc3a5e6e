// Plans of windows: found by the window's structure, made in the background.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "windows/plan_store.h"

namespace tenon {

// What runs a window: its plan, or the one of its claim for its sizes.
struct Ready {
  std::shared_ptr<WindowPlan> found;
  std::shared_ptr<const Plan> plan;

  // The window as it is, with its own sizes.
  std::shared_ptr<const WindowPlan> with_sizes(
      const Window& window, const std::vector<int32_t>& order) const {
    return found->claim ? describe(window, order) : found;
  }
};

// What may run a window, and what does now: its own plan, or until that is made the one of its
// claim. `waits`: for its plan, which is asked for in any case.
Candidates find_candidates(const Window& window, const std::vector<int32_t>& order);
Ready find_ready(const Candidates& candidates, bool waits, WindowRun& asked);
// It ran by reference after all.
void count_as_reference(WindowPlan& found);
// Guards what is known of windows.
std::mutex& plans_mutex();

// Python's: is asked for the plan of a window whose state is `waiting`. It answers with
// `finish_window`. From a wait it comes back without an answer once nobody makes plans any more.
using AskForPlan = std::function<void(std::shared_ptr<WindowPlan>, bool wait)>;
void set_ask_for_plan(AskForPlan ask);

// Brings a plan, or the reason why there is none. Without either nobody has asked any more.
// A plan that is there stays, and the window has nothing of this one: false.
bool finish_window(WindowPlan& window, FoundPlan found);

// When a process ends: asks the builder, if one runs, for plans that nearly paid. The windows' runs
// have cost a good part of what a plan is asked for at. The same program may run again.
void ask_for_later();

// Whether a window's plan was asked for, and nothing came of that yet.
bool waits_for_plan(const WindowPlan& window);
// How many plans this process has been given.
int64_t plans_that_came();

// By the windows' numbers. First come those of structures that went, if there are any, together.
std::vector<WindowRuns> window_runs();

// From now on so many structures are kept in memory, with their plans.
void set_most_structures(size_t most);
// How many there are, how many there may be, and how often one was found, added, and went.
std::tuple<size_t, size_t, int64_t, int64_t, int64_t> structure_counts();

// What becomes of windows, as lines on standard error while the program runs: `TENON_LOG=plans`.
void set_logs_plans(bool on);

}  // namespace tenon
