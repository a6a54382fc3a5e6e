#include "execute/plan_store.h"

#include <algorithm>

#include "execute/window_run.h"
#include "record/call_pattern.h"

namespace tenon {
namespace {

constexpr size_t kMostExact = 2;  // of one family: the next one has sizes of any value
constexpr size_t kMostBytes = size_t{512} << 20;

uint64_t hash_of(const std::vector<int64_t>& structure) {
  uint64_t hash = structure.size();
  for (const auto word : structure)
    hash = mixed(hash, word);
  return hash;
}

// About how much memory a structure and its plan take.
size_t bytes_of(const WindowPlan& known) {
  constexpr size_t kStep = 1024;  // with its names, facts and layouts
  size_t bytes = sizeof(known) + known.structure.size() * sizeof(int64_t) +
                 known.calls.size() * sizeof(void*) + known.slots.size() * sizeof(known.slots[0]) +
                 known.slots_of_calls.size() * sizeof(int32_t) + known.found.facts.size() +
                 known.own.size() * kStep;
  const auto* data = known.found.plan    ? &known.found.plan->data()
                     : known.found.sized ? &known.found.sized->plan().plan
                                         : nullptr;
  if (data == nullptr)
    return bytes;
  bytes += data->steps.size() * kStep + data->slots.size() * sizeof(Slot);
  for (const auto& constant : data->constants)
    bytes += constant.layout.nbytes;
  for (const auto& owner : data->owners)
    bytes += owner ? owner->nbytes() : 0;
  return bytes;
}

}  // namespace

std::shared_ptr<WindowPlan> PlanStore::add(std::shared_ptr<WindowPlan> made) {
  if (made->id < 0)
    made->id = ++last_id_;
  ++misses_;
  recent_.push_front(made);
  made->place = recent_.begin();
  nbytes_ += made->nbytes = bytes_of(*made);
  evict_beyond_bounds();
  return made;
}

void PlanStore::note_plan(WindowPlan& known) {
  if (known.nbytes == 0)
    return;  // it went meanwhile
  nbytes_ -= std::exchange(known.nbytes, bytes_of(known));
  nbytes_ += known.nbytes;
  evict_beyond_bounds();
}

void PlanStore::set_most(size_t structures) {
  most_ = std::max<size_t>(structures, 1);
  evict_beyond_bounds();
}

void PlanStore::touch(const std::shared_ptr<WindowPlan>& known) {
  ++hits_;
  recent_.splice(recent_.begin(), recent_, known->place);
}

void PlanStore::remove(const std::shared_ptr<WindowPlan>& known) {
  recent_.erase(known->place);
  nbytes_ -= std::exchange(known->nbytes, 0);
  const auto family = known->family.lock();
  if (known->claim) {
    // What is kept of it may be looked for again.
    if (family && std::erase(family->claims, known) > 0)
      family->looked_up = false;
  } else {
    const auto range = by_structure_.equal_range(hash_of(known->structure));
    by_structure_.erase(std::find_if(range.first, range.second, [&](const auto& one) {
      return one.second == known;
    }));
    if (family && family->exact > 0)
      --family->exact;
  }
  gone_.push_back(known);
}

void PlanStore::evict(const std::shared_ptr<WindowPlan>& known) {
  ++evicted_;
  gone_runs_.by_plan += known->by_plan;
  gone_runs_.by_reference += known->by_reference;
  gone_runs_.time_by_plan += static_cast<double>(known->nanoseconds_by_plan) * 1e-9;
  gone_runs_.time_by_reference += known->cost.seconds;
  remove(known);
}

// The one that is used now stays.
void PlanStore::evict_beyond_bounds() {
  while (recent_.size() > 1 && (recent_.size() > most_ || nbytes_ > kMostBytes)) {
    const auto last = recent_.back();
    evict(last);
  }
}

std::shared_ptr<WindowPlan> PlanStore::add_own(
    const Window& window,
    const std::vector<int32_t>& order,
    const std::vector<int64_t>& structure) {
  auto made = describe(window, order);
  made->structure = structure;
  by_structure_.emplace(hash_of(structure), made);
  return add(made);
}

std::shared_ptr<WindowPlan> PlanStore::add_claim_of(
    const std::shared_ptr<WindowFamily>& family,
    SizeClaim claim,
    const Window& window,
    const std::vector<int32_t>& order) {
  auto made = describe(window, order);
  made->claim = std::move(claim);
  made->family = family;
  std::shared_ptr<WindowPlan> unasked, unused;
  if (!add_claim(*family, made, unasked, unused))
    return nullptr;
  if (unused)
    evict(unused);
  if (unasked) {
    made->id = unasked->id;
    made->by_reference = unasked->by_reference;
    made->cost = unasked->cost;
    remove(unasked);
  }
  return add(made);
}

std::shared_ptr<WindowFamily> PlanStore::family_of(const SizesOfWindow& sizes) {
  std::vector<std::shared_ptr<WindowPlan>> claims;
  auto family = families_.of(sizes, claims);
  for (const auto& claim : claims)  // of one that went
    evict(claim);
  return family;
}

std::shared_ptr<WindowPlan> PlanStore::find_own(const std::vector<int64_t>& structure) {
  const auto range = by_structure_.equal_range(hash_of(structure));
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->structure == structure) {
      touch(it->second);
      return it->second;
    }
  }
  return nullptr;
}

Candidates PlanStore::find_or_add(const Window& window, const std::vector<int32_t>& order) {
  static thread_local std::vector<int64_t> structure;
  Candidates found;
  // A call by a rule comes with sizes that may not come again.
  const bool may_come_again = window.by_rule.empty();
  if (may_come_again) {
    window.structure(order, structure);
    found.own = find_own(structure);
    if (found.own && !found.own->has_claim)
      return found;
  }
  const auto sizes = sizes_of(window, order);
  const auto family = family_of(sizes);
  const auto add_exact = [&] {
    found.own = add_own(window, order, structure);
    found.own->family = family;
  };
  if (!std::exchange(family->looked_up, true)) {
    found.asks_for_claims = true;
    return found;
  }
  found.claim = find_claim(*family, sizes, found.symbols);
  if (found.claim) {
    touch(found.claim);
    note_served(*found.claim, sizes);
  }
  if (found.own)
    return found;
  if (found.claim) {
    if (const double part = may_come_again ? hot_part(*family, sizes) : 0; part > 0) {
      add_exact();
      found.own->has_claim = true;
      found.own->cost = part_of(found.claim->cost, part);
    }
    return found;
  }
  auto claim = note_sizes(*family, sizes);
  if (may_come_again && family->exact < kMostExact) {
    ++family->exact;
    add_exact();
  } else if (claim) {
    found.symbols = *claim->symbols_of(sizes.numbers);
    found.claim = add_claim_of(family, std::move(*claim), window, order);
    if (found.claim)
      note_served(*found.claim, sizes);
  }
  return found;
}

void PlanStore::add_kept(
    std::vector<SizeClaim> claims, const Window& window, const std::vector<int32_t>& order) {
  const auto sizes = sizes_of(window, order);
  const auto family = family_of(sizes);
  family->looked_up = true;
  // The window is an example of it.
  const auto held = std::find_if(claims.begin(), claims.end(), [&](const auto& claim) {
    return claim.symbols_of(sizes.numbers).has_value();
  });
  if (held != claims.end())
    add_claim_of(family, std::move(*held), window, order);
}

}  // namespace tenon
