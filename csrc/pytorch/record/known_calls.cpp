#include "record/known_calls.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "device/fork.h"
#include "device/interpreter.h"
#include "record/call_pattern.h"
#include "record/recorder.h"
#include "record/sizes.h"
#include "record/values.h"

namespace tenon {

namespace {

constexpr std::string_view kMagic = "torch-tenon calls 4\n";
constexpr size_t kMostBytes = size_t{4} << 20;

struct KnownCalls {
  std::function<void()> tell;
  std::string path, identity;
  MutexAtFork<ForkOrder::known_calls_file> reading;  // held while Python is asked
  std::atomic<bool> is_read{false};
  // By op and key: what follows from them. Nothing changes here once it is read.
  std::unordered_map<std::string, std::string> calls;
  std::unordered_set<std::string> open;

  MutexAtFork<ForkOrder::known_calls> mutex;
  std::unordered_set<const OpEntry*> used;
  bool is_new = false;  // one of them is not in the file
};

KnownCalls& known() {
  return OnlyOne<KnownCalls>::get();
}

std::string name_of(const OpEntry& entry) {
  Writer archive;
  archive(entry.op->name, entry.key);
  return std::move(archive.bytes);
}

std::string name_of_pattern(const OpInfo& op) {
  return "sizes of " + op.name;
}

void read_file(
    const std::string& path,
    const std::string& identity,
    std::unordered_map<std::string, std::string>& calls,
    std::unordered_set<std::string>& open) {
  const auto bytes = read_whole(path).value_or("");
  const auto body = checked(bytes, kMagic);
  if (!body)
    return;
  try {
    Reader archive(*body);
    std::string of;
    std::vector<std::string> names;
    archive(of, names);
    if (of != identity)
      return;
    open.insert(names.begin(), names.end());
    while (!archive.at_end()) {
      std::string name, facts;
      archive(name, facts);
      calls.emplace(std::move(name), std::move(facts));
    }
  } catch (const std::exception&) {
    // Damage that the checksum has not seen: what was read until there may be wrong as well.
    calls.clear();
    open.clear();
  }
}

const KnownCalls& read_once() {
  auto& k = known();
  if (k.is_read.load(std::memory_order_acquire))
    return k;
  const WithoutInterpreter no_gil;  // another thread may ask Python
  const HeldWhileForking lock(k.reading);
  if (k.is_read)
    return k;
  if (k.tell)
    k.tell();
  if (!k.path.empty())
    read_file(k.path, k.identity, k.calls, k.open);
  k.is_read = true;
  return k;
}

// Whether an op gives such results with so many tensors.
bool is_sound(const OpInfo& op, const CallResults& gives, size_t tensors) {
  const auto is_tensor = [&](auto k) { return k < tensors; };
  const auto is_layout = [](const TensorLayout& layout) { return is_sound(layout); };
  if (gives.results.size() != op.returned.size() || gives.resized.size() > gives.made.size() ||
      !std::all_of(gives.resized.begin(), gives.resized.end(), is_tensor) ||
      !std::all_of(gives.made.begin(), gives.made.end(), is_layout))
    return false;
  size_t made = gives.resized.size();
  for (size_t k = 0; k < gives.results.size(); ++k) {
    const auto& [argument, list, defined] = gives.results[k];
    const bool whole = argument >= 0 || list || defined.size() == 1;
    if (argument != op.returned[k] || !whole || (argument >= 0 && !defined.empty()))
      return false;
    made += std::count(defined.begin(), defined.end(), true);
  }
  return made == gives.made.size();
}

bool is_sound(const OpInfo& op, const CallPattern& pattern, const OpKey& key) {
  size_t sizes = pattern.given;
  for (const auto& layout : pattern.gives.made)
    sizes += layout.sizes.size() + layout.strides.size();
  return pattern.given == key.sizes().size() && is_sound(*pattern.rule) &&
         pattern.rule->numbers.size() == sizes && is_sound(op, pattern.gives, key.tensors().size());
}

// What the file says of a call or of a pattern; nothing where it says nothing, or what does not
// hold.
template <class Read>
bool read_facts(
    const OpInfo& op, const std::string& name, const std::vector<int64_t>& key, Read&& read) {
  const auto& calls = read_once().calls;
  if (calls.empty() || !op.lasts)
    return false;
  Writer named;
  named(name, key);
  const auto found = calls.find(named.bytes);
  if (found == calls.end())
    return false;
  try {
    Reader archive(found->second);
    return read(archive) && archive.at_end();
  } catch (const std::exception&) {  // damage that the checksum has not seen
    return false;
  }
}

using Facts = std::vector<std::pair<std::string, std::string>>;

// What this process used: its calls, and the rules of their sizes.
Facts used_facts(KnownCalls& k, std::unordered_set<std::string>& open) {
  Facts found;
  std::unordered_set<const CallPattern*> patterns;
  // Patterns change when they learn.
  std::lock_guard<std::mutex> recording(record_mutex());
  std::lock_guard<std::mutex> lock(k.mutex);
  for (const auto* entry : k.used) {
    if (entry->op->open_scalars && entry->op->may_open)
      open.insert(entry->op->name);
    Writer facts;
    facts(results_of(*entry));
    found.emplace_back(name_of(*entry), std::move(facts.bytes));
    const auto* pattern = entry->pattern;
    if (pattern == nullptr || !pattern->confirmed || !patterns.insert(pattern).second)
      continue;
    Writer name, rule;
    name(name_of_pattern(*entry->op), pattern->key);
    rule(pattern->given, pattern->gives, *pattern->rule);
    found.emplace_back(std::move(name.bytes), std::move(rule.bytes));
  }
  return found;
}

}  // namespace

void set_before_recording(std::function<void()> tell) {
  known().tell = std::move(tell);
}

void set_known_calls(std::string path, std::string identity) {
  known().path = std::move(path);
  known().identity = std::move(identity);
}

void read_known_calls() {
  read_once();
}

bool were_open(const OpInfo& op) {
  return read_once().open.count(op.name) > 0;
}

std::unique_ptr<OpEntry> recall(
    OpInfo& op, const OpKey& key, bool open_scalars, c10::ArrayRef<c10::IValue> arguments) {
  CallResults gives;
  const bool found = read_facts(op, op.name, key.words(), [&](Reader& archive) {
    archive(gives);
    return is_sound(op, gives, key.tensors().size());
  });
  if (!found)
    return nullptr;
  auto entry = entry_of(op, key, open_scalars, arguments);
  set_results(*entry, std::move(gives));
  return entry;
}

std::unique_ptr<CallPattern> recall_pattern(const OpInfo& op, const OpKey& without) {
  auto pattern = std::make_unique<CallPattern>();
  const bool found = read_facts(op, name_of_pattern(op), without.words(), [&](Reader& archive) {
    archive(pattern->given, pattern->gives, pattern->rule.emplace());
    return is_sound(op, *pattern, without);
  });
  if (!found)
    return nullptr;
  pattern->id = next_pattern();
  pattern->key = without.words();
  pattern->confirmed = true;
  return pattern;
}

void note_known(const OpEntry& entry) {
  auto& k = known();
  if (k.path.empty() || !entry.recorded || !entry.op->lasts)
    return;
  std::lock_guard<std::mutex> lock(k.mutex);
  k.used.insert(&entry);
  k.is_new = k.is_new || k.calls.count(name_of(entry)) == 0;
}

void forget_known(const OpEntry& entry) {
  auto& k = known();
  std::lock_guard<std::mutex> lock(k.mutex);
  k.used.erase(&entry);
}

bool keep_known_calls() {
  auto& k = known();
  {
    std::lock_guard<std::mutex> lock(k.mutex);
    if (!k.is_new)
      return true;  // nor is it asked where: a program without tensors of the device starts nothing
  }
  read_once();
  if (k.path.empty())
    return true;
  std::unordered_set<std::string> open = k.open;
  const auto used = used_facts(k, open);
  Writer calls;
  std::unordered_map<std::string, std::string> others;
  read_file(k.path, k.identity, others, open);  // another process may have written it meanwhile
  for (const auto& [name, facts] : used) {
    others.erase(name);
    if (calls.bytes.size() < kMostBytes)
      calls(name, facts);
  }
  for (const auto& [name, facts] : others) {
    if (calls.bytes.size() < kMostBytes)
      calls(name, facts);
  }
  Writer body;
  body(k.identity, std::vector<std::string>(open.begin(), open.end()));
  body.bytes += calls.bytes;
  const bool written = write_checked(k.path, kMagic, body.bytes);
  std::lock_guard<std::mutex> lock(k.mutex);
  k.is_new = !written;
  return written;
}

}  // namespace tenon
