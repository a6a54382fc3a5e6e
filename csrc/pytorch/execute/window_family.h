// Windows that differ in sizes alone. The first of a family have plans that know their sizes; from
// then on plans are for all sizes of which what is claimed of those seen so far holds.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "execute/window_plans.h"

namespace tenon {

// A window without its sizes, and these: of its calls in order, then the bytes of its slots.
struct SizesOfWindow {
  std::vector<int64_t> key;
  std::vector<int64_t> numbers;
  std::vector<bool> made;  // by number: is it of what the window itself makes?
};
SizesOfWindow sizes_of(const Window& window, const std::vector<int32_t>& order);
// Counts the sizes that a claim was used for.
void note_served(WindowPlan& claim, const SizesOfWindow& sizes);

struct WindowFamily {
  std::vector<int64_t> key;
  std::deque<std::vector<int64_t>> seen;
  bool looked_up = false;  // are kept claims known?
  size_t exact = 0;        // how many windows have a plan of their own
  size_t given_up = 0;     // plans with claims that were let go of
  // How often sizes came for which there is a claim, by a checksum of them, and how often any came.
  std::unordered_map<uint64_t, int64_t> times;
  int64_t all_times = 0;
  // With a claim each; the one that was used last comes first.
  std::vector<std::shared_ptr<WindowPlan>> claims;
};

class WindowFamilies {
 public:
  // The window's family; a new one where there is none. Beyond a bound the one goes that was used
  // least recently, and its plans are added to `claims_gone`.
  std::shared_ptr<WindowFamily> of(
      const SizesOfWindow& sizes, std::vector<std::shared_ptr<WindowPlan>>& claims_gone);

 private:
  struct Known {
    uint64_t hash;
    std::shared_ptr<WindowFamily> family;
  };
  std::list<Known> recent_;  // the one that was used last comes first
  std::unordered_multimap<uint64_t, std::list<Known>::iterator> by_key_;
};

// Which of the family's plans is for these sizes, and its symbols; null where none is.
std::shared_ptr<WindowPlan> find_claim(
    WindowFamily& family, const SizesOfWindow& sizes, std::vector<int64_t>& symbols);

// The part of the family's windows that have these sizes, where that is enough for a plan of their
// own beside the one for sizes of any value, if it pays; 0 where it is not.
double hot_part(WindowFamily& family, const SizesOfWindow& sizes);

// Notes sizes that no claim holds for. Gives a claim that holds for them and for those seen before,
// if there is one.
std::optional<SizeClaim> note_sizes(WindowFamily& family, const SizesOfWindow& sizes);

// Adds a plan, in place of the one that was not used for longest where there are too many
// (`unused`). Where nobody has asked for one yet it replaces that, as it knows of more sizes
// (`unasked`). False: the family has had too many plans.
bool add_claim(
    WindowFamily& family,
    const std::shared_ptr<WindowPlan>& plan,
    std::shared_ptr<WindowPlan>& unasked,
    std::shared_ptr<WindowPlan>& unused);

}  // namespace tenon
