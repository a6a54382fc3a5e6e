#include "execute/window_family.h"

#include <algorithm>

#include "record/call_pattern.h"

namespace tenon {
namespace {

constexpr size_t kMostSeen = 4;
constexpr size_t kMostClaims = 2;
constexpr size_t kMostGivenUp = 2;
// Sizes are hot that came so often, and are at least one of so many; as many of them at most.
constexpr int64_t kHot = 8, kShare = 16;
constexpr size_t kMostHot = 8;
constexpr size_t kMostCounted = 256;
constexpr size_t kMostFamilies = 4096;

uint64_t checksum_of(const SizesOfWindow& sizes) {
  uint64_t hash = 0;
  for (const auto number : sizes.numbers)
    hash = mixed(hash, number);
  return hash;
}

}  // namespace

SizesOfWindow sizes_of(const Window& window, const std::vector<int32_t>& order) {
  SizesOfWindow found;
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

void note_served(WindowPlan& claim, const SizesOfWindow& sizes) {
  if (claim.sizes_served.size() < kMostSizesCounted)
    claim.sizes_served.insert(checksum_of(sizes));
}

std::shared_ptr<WindowFamily> WindowFamilies::of(
    const SizesOfWindow& sizes, std::vector<std::shared_ptr<WindowPlan>>& claims_gone) {
  uint64_t hash = sizes.key.size();
  for (const auto word : sizes.key)
    hash = mixed(hash, word);
  const auto range = by_key_.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->family->key == sizes.key) {
      recent_.splice(recent_.begin(), recent_, it->second);
      return recent_.front().family;
    }
  }
  if (recent_.size() >= kMostFamilies) {
    const auto last = std::prev(recent_.end());
    const auto same = by_key_.equal_range(last->hash);
    by_key_.erase(
        std::find_if(same.first, same.second, [&](const auto& one) { return one.second == last; }));
    claims_gone = last->family->claims;
    recent_.pop_back();
  }
  recent_.push_front({hash, std::make_shared<WindowFamily>()});
  by_key_.emplace(hash, recent_.begin());
  recent_.front().family->key = sizes.key;
  return recent_.front().family;
}

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

std::optional<SizeClaim> note_sizes(WindowFamily& family, const SizesOfWindow& sizes) {
  auto& seen = family.seen;
  if (std::find(seen.begin(), seen.end(), sizes.numbers) == seen.end())
    seen.push_back(sizes.numbers);
  if (seen.size() > kMostSeen)
    seen.pop_front();
  const std::vector<std::vector<int64_t>> lists(seen.begin(), seen.end());
  return claim_of(lists, sizes.made, /*made_follow=*/false);
}

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

}  // namespace tenon
