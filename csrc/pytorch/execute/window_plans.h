// Plans of windows: found by the window's structure, made in the background.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "execute/plan.h"
#include "execute/sized_plan.h"
#include "execute/worth.h"
#include "record/execution.h"
#include "record/sizes.h"

namespace tenon {

// What runs a window, or why nothing does. Without either nobody knows yet.
struct FoundPlan {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<SizedPlan> sized;  // in its place, where the window's sizes are symbols
  std::vector<int32_t> inputs;   // for each of the plan's: a slot, or -1 - the place of a number
  std::vector<int32_t> outputs;  // slots
  std::string error;
  // Of an error that says nothing of the window (no disk space, a compiler that was killed): its
  // plan is asked for again, after a while.
  bool may_pass = false;
  std::string facts;   // what `report()` tells of it, as Python wrote it
  std::string extras;  // what the target's backend needs beside the plan (execute/plan_file.h)
};

// An op with its layouts that no call of this process has taught.
struct OwnEntry {
  explicit OwnEntry(const c10::OperatorHandle& op) : info(op) {
    entry.op = &info;
  }
  OpInfo info;
  OpEntry entry;
};

struct WindowFamily;

// A window's structure, and what runs it once that is made. The slots are numbered in the order of
// their first use.
struct WindowPlan {
  enum State : int { seen, waiting, ready, failed };

  int64_t id = -1;
  std::vector<int64_t> structure;
  std::vector<const OpEntry*> calls;
  std::vector<int64_t> worlds;          // by call: its surroundings; empty where all are alike
  std::vector<int32_t> slots_of_calls;  // of each call its tensors', then its fresh results'
  struct SlotFacts {
    size_t nbytes;
    bool fresh, alive, written;
  };
  std::vector<SlotFacts> slots;
  int threads = 1;                                      // that loops are shared between
  std::vector<std::shared_ptr<OwnEntry>> own;           // calls of another process
  std::vector<std::shared_ptr<const OpEntry>> entries;  // those of this one
  // Where it is for any sizes: what they have to be. What is said of sizes above is an example.
  std::optional<SizeClaim> claim;
  // By call: how many sizes it was given, which the claim is of, as those of what it makes; -1
  // where neither are.
  std::vector<int32_t> sized;
  bool has_claim = false;                       // is there one for these and other sizes as well?
  std::atomic<int64_t> nanoseconds_by_plan{0};  // of the host, in runs by the plan

  State state = seen;                // guarded by the plans' mutex, as all that follows
  bool looked_up = false;            // among the kept ones
  std::atomic<bool> refused{false};  // by the builder process, which cannot make its plan
  int64_t asked_at = 0;              // for its plan, in nanoseconds since 1970
  int failures = 0;                  // to make it, that may pass
  double asks_from = 0;              // when it may be asked for again: `host_seconds`
  FoundPlan found;
  int64_t by_plan = 0, by_reference = 0;  // runs
  ReferenceCost cost;
  std::unordered_set<uint64_t> sizes_served;  // by a claim: checksums, kMostSizesCounted at most

  // In the store of plans (execute/plan_store.h), as long as it is there; 0 bytes: it is not.
  std::list<std::shared_ptr<WindowPlan>>::iterator place{};
  std::weak_ptr<WindowFamily> family;
  size_t nbytes = 0;
};
constexpr size_t kMostSizesCounted = 4096;

// Python's: is asked for the plan of a window whose state is `waiting`, and answers with
// `finish_window`, or comes back from a wait without an answer once nobody makes plans any more.
using AskForPlan = std::function<void(std::shared_ptr<WindowPlan>, bool wait)>;
void set_ask_for_plan(AskForPlan ask);

// Brings a plan, or the reason why there is none. Without either nobody has asked any more.
// A plan that is there stays.
void finish_window(WindowPlan& window, FoundPlan found);

// When a process ends: asks the builder, if one runs, for plans of windows whose runs have
// cost a good part of what a plan is asked for at. The same program may run again.
void ask_for_later();

// Whether a window's plan was asked for, and nothing came of that yet.
bool waits_for_plan(const WindowPlan& window);
// How many plans this process has been given.
int64_t plans_that_came();

// What became of a window's structure. All times are seconds.
struct WindowRuns {
  int64_t number;    // of the window; -1: all that are known no longer
  std::string name;  // its calls in a few words
  int64_t by_plan, by_reference;
  int state;
  std::string error, facts;
  double time_by_plan, time_by_reference;
  double saving, price;  // what runs without a plan cost so far, and at what it is asked for
  double asked_for;      // how long its plan has been made; 0: it is not
  size_t sizes;          // how many it was for, where they are symbols; else 0
};
// By the windows' numbers. First come those of structures that went, if there are any, together.
std::vector<WindowRuns> window_runs();

// From now on so many structures are kept in memory, with their plans.
void set_most_structures(size_t most);
// How many there are, how many there may be, and how often one was found, added, and went.
std::tuple<size_t, size_t, int64_t, int64_t, int64_t> structure_counts();

// When the first window ran in this process, and the first one by a plan: seconds on one clock, 0
// for not yet.
std::pair<double, double> first_runs();

}  // namespace tenon
