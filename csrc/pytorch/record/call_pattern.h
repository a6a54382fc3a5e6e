// Calls of an op that differ in their sizes alone, and the sizes of their results.
//
// What the first calls of a pattern give teaches a rule: two of them make it, a third one confirms
// it. From then on the results of a call with other sizes are known without running it. The rule
// takes something for granted. Where that does not hold the call runs at once, as the first call of
// any kind.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "record/op_cache.h"
#include "record/sizes.h"

namespace tenon {

struct CallPattern {
  int64_t id = 0;
  std::vector<int64_t> key;  // without sizes
  size_t given = 0;          // how many sizes its calls have; those of their results follow
  CallResults gives;         // one of the calls

  std::deque<std::vector<int64_t>> seen;  // sizes of calls and of what they gave
  std::optional<SizeClaim> rule;
  bool confirmed = false;
  bool hopeless = false;  // no rule is looked for any more
  // How often sizes came that the rule tells of, by the call's key; a few that come often have an
  // entry that stays.
  std::unordered_map<uint64_t, int> times;
  size_t lasting = 0;
};

// The number of a new pattern.
int64_t next_pattern();

// The key of a call's pattern, before it runs; false: it is of none.
bool build_pattern_key(
    OpKey& key, const OpInfo& op, bool open_scalars, c10::ArrayRef<c10::IValue> arguments);

// Enters a call into its pattern, and learns from it. Under `record_mutex`.
void note_pattern(OpInfo& op, OpEntry& entry, const OpKey& without);

// What a rule tells of a call that nobody has seen yet; null: there is no such rule. With `lasts`
// the call comes often, and the entry is to be kept.
std::shared_ptr<OpEntry> entry_by_rule(
    OpInfo& op,
    const OpKey& key,
    bool open_scalars,
    c10::ArrayRef<c10::IValue> arguments,
    bool& lasts);

}  // namespace tenon
