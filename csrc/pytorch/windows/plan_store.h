// What is known of windows' structures, and the plans that run them. Beyond a number of structures,
// or of bytes, those go that were used least recently. Their kernels go that nobody else has. A
// structure that comes again is found among the files of plans, or asked for anew.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "execute/plan.h"
#include "record/execution.h"
#include "record/sizes.h"
#include "runtime/hash.h"
#include "windows/worth.h"

namespace tenon {

// As `IN_FLOAT32` in torch_tenon/frontends/eager.py.
constexpr int32_t kInFloat32 = 1 << 20;

// What runs a window, or why nothing does. Without either nobody knows yet.
struct FoundPlan {
  std::shared_ptr<SizedPlan> plan;
  // For each of the plan's: a slot, or -1 - the place of a number, - kInFloat32 for that in
  // float32.
  std::vector<int32_t> inputs;
  std::vector<int32_t> outputs;  // slots
  std::string error;
  // Of an error that says nothing of the window (no disk space, a compiler that was killed): its
  // plan is asked for again, after a while.
  bool may_pass = false;
  std::string facts;   // what `report()` tells of it, as Python wrote it
  std::string extras;  // what the target's backend needs beside the plan (windows/plan_file.h)
};

// An op with its layouts that no call of this process has taught.
struct ForeignEntry {
  explicit ForeignEntry(const c10::OperatorHandle& op) : info(op) {
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
  std::vector<std::shared_ptr<const OpEntry>> calls;  // of this process or of another one
  std::vector<int64_t> worlds;          // by call: its surroundings; empty where all are alike
  std::vector<int32_t> slots_of_calls;  // of each call its tensors', then its fresh results'
  struct SlotFacts {
    size_t nbytes;
    bool fresh, alive, written;
  };
  std::vector<SlotFacts> slots;
  int threads = 1;  // that loops are shared between
  // Where it is for any sizes: what they have to be. What is said of sizes above is an example.
  std::optional<SizeClaim> claim;
  // By call: how many sizes it was given, which the claim is of, as those of what it makes; -1
  // where neither are.
  std::vector<int32_t> sized;
  bool has_claim = false;                       // there is one for these and other sizes as well
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

  uint32_t request = 0;  // the last one to the builder process; by the lock of its connection

  // In the store, as long as it is there; 0 bytes: it is not.
  std::list<std::shared_ptr<WindowPlan>>::iterator place{};
  std::weak_ptr<WindowFamily> family;
  size_t nbytes = 0;
};
constexpr size_t kMostSizesCounted = 4096;

// Windows that differ in sizes alone. The first of a family have plans that know their sizes; from
// then on plans are for all sizes of which what is claimed of those seen so far holds.
struct WindowFamily {
  std::vector<int64_t> key;
  std::deque<std::vector<int64_t>> seen;
  bool looked_up = false;  // kept claims are known
  size_t exact = 0;        // how many windows have a plan of their own
  size_t given_up = 0;     // plans with claims that were let go of
  // How often sizes came for which there is a claim, by a checksum of them, and how often any came.
  std::unordered_map<uint64_t, int64_t> times;
  int64_t all_times = 0;
  // With a claim each; the one that was used last comes first.
  std::vector<std::shared_ptr<WindowPlan>> claims;
  std::list<std::shared_ptr<WindowFamily>>::iterator place{};  // among those that were used last
};

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
  // Where the window runs by reference as its plan takes longer: the shortest run of each; else 0.
  double shortest_by_plan, shortest_by_reference;
};
// Found by words of theirs, which are compared in full.
template <auto words>
struct Words {
  using is_transparent = void;
  static const std::vector<int64_t>& of(const std::vector<int64_t>& given) {
    return given;
  }
  template <class T>
  static const std::vector<int64_t>& of(const std::shared_ptr<T>& one) {
    return (*one).*words;
  }
  template <class T>
  size_t operator()(const T& one) const {
    uint64_t hash = of(one).size();
    for (const auto word : of(one))
      hash = mixed(hash, word);
    return hash;
  }
  template <class A, class B>
  bool operator()(const A& a, const B& b) const {
    return of(a) == of(b);
  }
};
template <class T, auto words>
using ByWords = std::unordered_set<std::shared_ptr<T>, Words<words>, Words<words>>;

// What there is to know of a window, apart from what runs it. `order`: its slots in the order of
// their first use.
std::shared_ptr<WindowPlan> describe(const Window& window, const std::vector<int32_t>& order);

struct SizesOfWindow;

// What may run a window, neither of which may be there yet.
struct Candidates {
  std::shared_ptr<WindowPlan> own;    // for its sizes
  std::shared_ptr<WindowPlan> claim;  // for sizes of any value, with its symbols
  std::vector<int64_t> symbols;
  bool asks_for_claims = false;  // nobody has looked for those that are kept
};

struct StoreCounts {
  size_t entries, bound;
  int64_t hits, misses, evicted;
};

// Guarded by whoever has it.
class PlanStore {
 public:
  Candidates find_or_add(const Window& window, const std::vector<int32_t>& order);
  // One of these claims, that were kept of windows like this one, if it holds for this one.
  void add_kept(
      std::vector<SizeClaim> claims, const Window& window, const std::vector<int32_t>& order);
  // How much it takes is another than before.
  void note_plan(WindowPlan& known);
  void set_most(size_t structures);

  const std::list<std::shared_ptr<WindowPlan>>& all() const {
    return recent_;
  }
  // The runs of those that went, in one row.
  WindowRuns gone() const {
    return gone_runs_;
  }
  StoreCounts counts() const {
    return {recent_.size(), most_, hits_, misses_, evicted_};
  }
  // Those that went since this was called last, to end where no lock is held: their kernels' files
  // are closed under another one.
  std::vector<std::shared_ptr<WindowPlan>> take_gone() {
    return std::exchange(gone_, {});
  }

 private:
  std::shared_ptr<WindowPlan> add(std::shared_ptr<WindowPlan> made);
  std::shared_ptr<WindowPlan> add_own(
      const Window& window,
      const std::vector<int32_t>& order,
      const std::vector<int64_t>& structure);
  std::shared_ptr<WindowPlan> add_claim_of(
      const std::shared_ptr<WindowFamily>& family,
      SizeClaim claim,
      const Window& window,
      const std::vector<int32_t>& order);
  std::shared_ptr<WindowFamily> family_of(const SizesOfWindow& sizes);
  std::shared_ptr<WindowPlan> find_own(const std::vector<int64_t>& structure);
  void touch(const std::shared_ptr<WindowPlan>& known);
  void remove(const std::shared_ptr<WindowPlan>& known);
  void evict(const std::shared_ptr<WindowPlan>& known);
  void evict_beyond_bounds();

  std::list<std::shared_ptr<WindowPlan>> recent_;  // the one that was used last comes first
  ByWords<WindowPlan, &WindowPlan::structure> by_structure_;  // those of one size
  std::list<std::shared_ptr<WindowFamily>> recent_families_;
  ByWords<WindowFamily, &WindowFamily::key> by_key_;
  size_t most_ = 4096;
  size_t nbytes_ = 0;
  int64_t last_id_ = -1;
  int64_t hits_ = 0, misses_ = 0, evicted_ = 0;
  WindowRuns gone_runs_{};
  std::vector<std::shared_ptr<WindowPlan>> gone_;
};

}  // namespace tenon
