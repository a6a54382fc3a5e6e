// Plans of windows: found by the window's structure, made in the background.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "execute/plan.h"
#include "record/record.h"

namespace tenon {

// A window's structure, and what runs it once Python has made that. The slots are numbered in the
// order of their first use.
struct WindowPlan {
  enum State : int { seen, waiting, ready, failed };

  int64_t id = 0;
  std::vector<int64_t> structure;
  std::vector<const OpEntry*> calls;
  std::vector<int32_t> slots_of_calls;  // of each call its tensors', then its fresh results'
  std::vector<WindowSlot> slots;        // of the first such window

  State state = seen;  // guarded by the plans' mutex, as all that follows
  std::shared_ptr<const Plan> plan;
  std::vector<int32_t> inputs;   // for each of the plan's: a slot, or -1 - the place of a number
  std::vector<int32_t> outputs;  // slots
  std::string error;
  int64_t by_plan = 0, by_reference = 0;  // runs
};

// Runs a window: by its plan where there is one, else by reference. In `automatic` mode a plan is
// asked for when a structure comes for the second time; `compiled` waits for it, and `verify` has
// both runs compared. `release` is called for each slot that was older than the window and died in
// it, after its last use; in `verify` it is not.
void run_window(
    const Window& window,
    c10::DeviceIndex device,
    ExecuteMode mode,
    const std::function<void(const WindowSlot&)>& release);

// A window that is to run twice, by its plan and by reference. The slots are the window's own.
struct Verification {
  const WindowPlan& plan;
  const std::vector<int64_t>& numbers;
  std::vector<WindowSlot> slots;
  std::function<void()> run_plan, run_reference;
};

// What runs and compares them.
void set_verify(std::function<void(const Verification&)> verify);

// The builder's side. `next_window` waits for a window that wants a plan, until `stop_building`
// (nullptr); `finish_window` brings the plan, or the reason why there is none.
std::shared_ptr<const WindowPlan> next_window();
void finish_window(
    int64_t id,
    std::shared_ptr<Plan> plan,
    std::vector<int32_t> inputs,
    std::vector<int32_t> outputs,
    std::string error);
void stop_building();
// Called once a window waits, when nobody builds yet: it starts somebody who does.
void set_start_builder(std::function<void()> start);
// After a fork: the threads that built are gone.
void forget_builder();

// Windows that ran by a plan (`hits`) and by reference; structures, and those by state.
std::map<std::string, int64_t> plan_counts();

// For each window's structure, by its number: runs by its plan, by reference, and why it has none.
std::vector<std::tuple<int64_t, int64_t, std::string>> window_runs();

}  // namespace tenon
