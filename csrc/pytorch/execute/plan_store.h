// What is known of windows' structures, and the plans that run them. Beyond a number of structures,
// or of bytes, those go that were used least recently, with the kernels that nobody else has: one
// that comes again is found among the files of plans, or asked for anew.
#pragma once

#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "execute/window_family.h"
#include "execute/window_plans.h"

namespace tenon {

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
  std::unordered_multimap<uint64_t, std::shared_ptr<WindowPlan>>
      by_structure_;  // those of one size
  WindowFamilies families_;
  size_t most_ = 4096;
  size_t nbytes_ = 0;
  int64_t last_id_ = -1;
  int64_t hits_ = 0, misses_ = 0, evicted_ = 0;
  WindowRuns gone_runs_{};
  std::vector<std::shared_ptr<WindowPlan>> gone_;
};

}  // namespace tenon
