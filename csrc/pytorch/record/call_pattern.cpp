#include "record/call_pattern.h"

#include "device/pending.h"
#include "record/known_calls.h"
#include "record/sizes.h"

namespace tenon {
namespace {

using c10::IValue;

constexpr size_t kFirst = 2;    // calls that make a rule
constexpr int kOftenAlike = 3;  // times that the same sizes came
constexpr size_t kMostLasting = 32, kMostCounted = 256;
constexpr size_t kMost = 5;  // calls with other sizes after which no rule is expected any more

// The sizes of what a call gave, behind those that it was given.
std::vector<int64_t> with_results(
    std::vector<int64_t> sizes, const std::vector<TensorLayout>& made) {
  for (const auto& layout : made) {
    sizes.insert(sizes.end(), layout.sizes.begin(), layout.sizes.end());
    sizes.insert(sizes.end(), layout.strides.begin(), layout.strides.end());
  }
  return sizes;
}

// But for sizes.
bool are_alike(const CallResults& a, const CallResults& b) {
  const auto same_result = [](const ResultPlan& x, const ResultPlan& y) {
    return x.argument == y.argument && x.list == y.list && x.defined == y.defined;
  };
  const auto same_layout = [](const TensorLayout& x, const TensorLayout& y) {
    return x.dtype == y.dtype && x.sizes.size() == y.sizes.size() && x.offset == 0 && y.offset == 0;
  };
  return a.resized == b.resized &&
         std::equal(
             a.results.begin(), a.results.end(), b.results.begin(), b.results.end(), same_result) &&
         std::equal(a.made.begin(), a.made.end(), b.made.begin(), b.made.end(), same_layout);
}

CallPattern* find_pattern(const OpInfo& op, const OpKey& key) {
  const auto range = op.patterns.equal_range(key.hash());
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->key == key.words())
      return it->second.get();
  }
  return nullptr;
}

void learn_rule(CallPattern& pattern, const std::vector<int64_t>& sizes) {
  if (pattern.hopeless || std::count(pattern.seen.begin(), pattern.seen.end(), sizes) > 0)
    return;
  if (pattern.rule && pattern.rule->symbols_of(sizes)) {
    pattern.confirmed = true;
    return;
  }
  pattern.confirmed = false;
  pattern.rule.reset();
  pattern.seen.push_back(sizes);
  if (pattern.seen.size() < kFirst)
    return;
  std::vector<bool> made(sizes.size());
  std::fill(made.begin() + pattern.given, made.end(), true);
  const std::vector<std::vector<int64_t>> lists(pattern.seen.begin(), pattern.seen.end());
  pattern.rule = claim_of(lists, made, /*made_follow=*/true);
  pattern.hopeless = lists.size() == kMost;
}

// Gives the results of a call their sizes; false where the rule does not hold for it.
bool follow_rule(
    const CallPattern& pattern, c10::ArrayRef<int64_t> given, std::vector<TensorLayout>& made) {
  const auto symbols = pattern.rule->symbols_of(given);
  if (!symbols)
    return false;
  auto next = pattern.rule->numbers.begin() + static_cast<int64_t>(pattern.given);
  for (auto& layout : made) {
    for (auto* list : {&layout.sizes, &layout.strides}) {
      for (auto& number : *list) {
        const auto found = (next++)->evaluate(*symbols);
        // What has no elements has strides by another rule.
        if (!found || *found < 0 || (*found == 0 && number != 0))
          return false;
        number = *found;
      }
    }
    const auto nbytes = storage_bytes(layout);
    if (!nbytes)
      return false;  // the op itself says so
    layout.nbytes = *nbytes;
  }
  return true;
}

bool comes_often(CallPattern& pattern, uint64_t key) {
  if (pattern.lasting >= kMostLasting)
    return false;
  if (pattern.times.size() >= kMostCounted)
    pattern.times.clear();
  if (++pattern.times[key] < kOftenAlike)
    return false;
  ++pattern.lasting;
  return true;
}

// Where windows end is to be the same for all sizes.
void enter(OpEntry& entry, const CallPattern& pattern, const OpKey& without) {
  entry.pattern = &pattern;
  entry.sizes = with_results(without.sizes(), results_of(entry).made);
  entry.hash = without.hash() ^ std::hash<std::string>{}(entry.op->name);
}

}  // namespace

int64_t next_pattern() {
  static std::atomic<int64_t> next{0};
  return next++;
}

bool build_pattern_key(
    OpKey& key, const OpInfo& op, bool open_scalars, c10::ArrayRef<IValue> arguments) {
  if (!op.sizes.follow || !key.build(arguments, op.numbers, open_scalars, &op.sizes.arguments))
    return false;
  if (op.sizes.more != nullptr) {
    for (const auto size : op.sizes.more(arguments))
      key.add_size(size);
  }
  // Whether what is written overlaps with what is read is no matter of equal sizes.
  return std::count(op.written.begin(), op.written.end(), true) == 0 || !key.shares_parts();
}

void note_pattern(OpInfo& op, OpEntry& entry, const OpKey& key) {
  if (!entry.recorded)
    return;
  auto* pattern = find_pattern(op, key);
  if (pattern == nullptr) {
    auto made = std::make_unique<CallPattern>();
    made->id = next_pattern();
    made->key = key.words();
    made->given = key.sizes().size();
    made->gives = results_of(entry);
    pattern = op.patterns.emplace(key.hash(), std::move(made))->second.get();
  }
  if (!are_alike(pattern->gives, results_of(entry))) {
    pattern->hopeless = true;
    pattern->confirmed = false;
    return;
  }
  enter(entry, *pattern, key);
  learn_rule(*pattern, entry.sizes);
}

std::shared_ptr<OpEntry> entry_by_rule(
    OpInfo& op, const OpKey& key, bool open_scalars, c10::ArrayRef<IValue> arguments, bool& lasts) {
  // No call comes while a key is made.
  static thread_local OpKey without;
  if (!build_pattern_key(without, op, open_scalars, arguments) ||
      (op.sizes.allows != nullptr && !op.sizes.allows(arguments)))
    return nullptr;
  CallResults gives;
  CallPattern* pattern = nullptr;
  {
    // Patterns change when they learn.
    std::lock_guard<std::mutex> lock(record_mutex());
    pattern = find_pattern(op, without);
    if (pattern == nullptr) {
      auto known = recall_pattern(op, without);
      if (known == nullptr)
        return nullptr;
      pattern = op.patterns.emplace(without.hash(), std::move(known))->second.get();
    }
    if (!pattern->confirmed)
      return nullptr;
    gives = pattern->gives;
    if (!follow_rule(*pattern, without.sizes(), gives.made))
      return nullptr;
    lasts = comes_often(*pattern, key.hash());
  }
  std::shared_ptr<OpEntry> entry = entry_of(op, key, open_scalars, arguments);
  set_results(*entry, std::move(gives));
  enter(*entry, *pattern, without);
  return entry;
}

}  // namespace tenon
