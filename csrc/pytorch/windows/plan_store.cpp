#include "windows/plan_store.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "record/call_pattern.h"

namespace tenon {

// A window without its sizes, and these: of its calls in order, then the bytes of its slots.
struct SizesOfWindow {
  std::vector<int64_t> key;
  std::vector<int64_t> numbers;
  std::vector<bool> made;  // by number: it is of what the window itself makes
};

namespace {

constexpr size_t kMostExact = 2;  // of one family: the next one has sizes of any value
constexpr size_t kMostBytes = size_t{512} << 20;
constexpr size_t kMostSeen = 4;
constexpr size_t kMostClaims = 2;
constexpr size_t kMostGivenUp = 2;
// Sizes are hot that came so often, and are at least one of so many; as many of them at most.
constexpr int64_t kHot = 8, kShare = 16;
constexpr size_t kMostHot = 8;
constexpr size_t kMostCounted = 256;
constexpr size_t kMostFamilies = 4096;

// About how much memory a structure and its plan take.
size_t bytes_of(const WindowPlan& known) {
  constexpr size_t kStep = 1024;  // with its names, facts and layouts
  size_t bytes = sizeof(known) + known.structure.size() * sizeof(int64_t) +
                 known.calls.size() * sizeof(known.calls[0]) +
                 known.slots.size() * sizeof(known.slots[0]) +
                 known.slots_of_calls.size() * sizeof(int32_t) + known.found.facts.size();
  if (!known.found.plan)
    return bytes;
  const auto& data = known.found.plan->data();
  bytes += data.steps.size() * kStep + data.slots.size() * sizeof(Slot);
  for (const auto& constant : data.constants)
    bytes += constant.layout.nbytes;
  for (const auto& owner : data.owners)
    bytes += owner ? owner->nbytes() : 0;
  return bytes;
}

uint64_t checksum_of(const SizesOfWindow& sizes) {
  uint64_t hash = 0;
  for (const auto number : sizes.numbers)
    hash = mixed(hash, number);
  return hash;
}

// By call: the surroundings that it was made in; none where they are all alike.
std::vector<int64_t> worlds_of(const std::vector<std::shared_ptr<const OpEntry>>& calls) {
  std::vector<int64_t> worlds;
  for (const auto& call : calls)
    worlds.push_back(call->surroundings());
  const bool alike = std::equal(worlds.begin() + 1, worlds.end(), worlds.begin());
  return alike ? std::vector<int64_t>() : worlds;
}

SizesOfWindow sizes_of(const Window& window, const std::vector<int32_t>& order) {
  SizesOfWindow found;
  found.key.push_back(static_cast<int64_t>(window.calls.size()));
  for (const auto& call : window.calls) {
    const auto* pattern = call.entry->pattern;
    // A call without a pattern is the same for one set of sizes alone.
    found.key.push_back(pattern != nullptr ? 2 * pattern->id : 2 * call.entry->id + 1);
    if (pattern == nullptr)
      continue;
    const auto& sizes = call.entry->sizes;
    found.numbers.insert(found.numbers.end(), sizes.begin(), sizes.end());
    found.made.resize(found.made.size() + pattern->given, false);
    found.made.resize(found.numbers.size(), true);
  }
  const auto places = window.places(order);
  for (const auto index : window.slots_of_calls)
    found.key.push_back(places[index]);
  for (const auto index : order) {
    const auto& slot = window.slots[index];
    found.key.push_back((slot.fresh ? 1 : 0) + (slot.alive ? 2 : 0));
    found.numbers.push_back(static_cast<int64_t>(slot.nbytes));
    found.made.push_back(true);
  }
  return found;
}

// Counts the sizes that a claim was used for.
void note_served(WindowPlan& claim, const SizesOfWindow& sizes) {
  if (claim.sizes_served.size() < kMostSizesCounted)
    claim.sizes_served.insert(checksum_of(sizes));
}

// Which of the family's plans is for these sizes, and its symbols; null where none is.
std::shared_ptr<WindowPlan> find_claim(
    WindowFamily& family, const SizesOfWindow& sizes, std::vector<int64_t>& symbols) {
  auto& claims = family.claims;
  for (auto it = claims.begin(); it != claims.end(); ++it) {
    auto found = (*it)->claim->symbols_of(sizes.numbers);
    if (!found)
      continue;
    symbols = std::move(*found);
    std::rotate(claims.begin(), it, it + 1);
    return claims.front();
  }
  return nullptr;
}

// The part of the family's windows that have these sizes, where that is enough for a plan of their
// own. That one is beside the plan for sizes of any value, if it pays. 0 where it is not enough.
double hot_part(WindowFamily& family, const SizesOfWindow& sizes) {
  if (family.times.size() >= kMostCounted)
    family.times.clear();
  const auto times = ++family.times[checksum_of(sizes)];
  ++family.all_times;
  if (times < kHot || times * kShare < family.all_times || family.exact >= kMostHot)
    return 0;
  ++family.exact;
  return static_cast<double>(times) / static_cast<double>(family.all_times);
}

// Notes sizes that no claim holds for. Gives a claim that holds for them and for those seen before,
// if there is one.
std::optional<SizeClaim> note_sizes(WindowFamily& family, const SizesOfWindow& sizes) {
  auto& seen = family.seen;
  if (std::find(seen.begin(), seen.end(), sizes.numbers) == seen.end())
    seen.push_back(sizes.numbers);
  if (seen.size() > kMostSeen)
    seen.pop_front();
  const std::vector<std::vector<int64_t>> lists(seen.begin(), seen.end());
  return claim_of(lists, sizes.made, /*made_follow=*/false);
}

// Adds a plan, in place of the one that was not used for longest where there are too many
// (`unused`). Where nobody has asked for one yet it replaces that, as it knows of more sizes
// (`unasked`). False: the family has had too many plans.
bool add_claim(
    WindowFamily& family,
    const std::shared_ptr<WindowPlan>& plan,
    std::shared_ptr<WindowPlan>& unasked,
    std::shared_ptr<WindowPlan>& unused) {
  auto& claims = family.claims;
  const auto seen = std::find_if(
      claims.begin(), claims.end(), [](const auto& one) { return one->state == WindowPlan::seen; });
  if (seen != claims.end()) {
    unasked = std::exchange(*seen, plan);
    std::rotate(claims.begin(), seen, seen + 1);
    return true;
  }
  if (claims.size() >= kMostClaims) {
    if (family.given_up >= kMostGivenUp)
      return false;
    ++family.given_up;
    unused = claims.back();
    claims.pop_back();
  }
  claims.insert(claims.begin(), plan);
  return true;
}

}  // namespace

std::shared_ptr<WindowPlan> describe(const Window& window, const std::vector<int32_t>& order) {
  auto made = std::make_shared<WindowPlan>();
  made->threads = at::get_num_threads();
  for (const auto index : order) {
    const auto& slot = window.slots[index];
    made->slots.push_back({slot.nbytes, slot.fresh, slot.alive, slot.written});
  }
  for (const auto& call : window.calls) {
    made->calls.push_back(call.entry->shared_from_this());
    const auto* pattern = call.entry->pattern;
    made->sized.push_back(pattern != nullptr ? static_cast<int32_t>(pattern->given) : -1);
  }
  made->worlds = worlds_of(made->calls);
  const auto places = window.places(order);
  for (const auto index : window.slots_of_calls)
    made->slots_of_calls.push_back(places[index]);
  return made;
}

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
    by_structure_.erase(known);
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
  by_structure_.insert(made);
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

// The window's family; a new one where there is none. Beyond a bound the one goes that was used
// least recently.
std::shared_ptr<WindowFamily> PlanStore::family_of(const SizesOfWindow& sizes) {
  if (const auto known = by_key_.find(sizes.key); known != by_key_.end()) {
    recent_families_.splice(recent_families_.begin(), recent_families_, (*known)->place);
    return *known;
  }
  if (recent_families_.size() >= kMostFamilies) {
    const auto last = recent_families_.back();
    by_key_.erase(last);
    recent_families_.pop_back();
    for (const auto& claim : std::exchange(last->claims, {}))
      evict(claim);
  }
  const auto& made = recent_families_.emplace_front(std::make_shared<WindowFamily>());
  made->key = sizes.key;
  made->place = recent_families_.begin();
  by_key_.insert(made);
  return made;
}

std::shared_ptr<WindowPlan> PlanStore::find_own(const std::vector<int64_t>& structure) {
  const auto found = by_structure_.find(structure);
  if (found == by_structure_.end())
    return nullptr;
  touch(*found);
  return *found;
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
