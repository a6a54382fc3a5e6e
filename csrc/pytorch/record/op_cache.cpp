#include "record/op_cache.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "record/call_pattern.h"
#include "record/known_calls.h"
#include "record/op_rules.h"

namespace tenon {
namespace {

constexpr size_t kSmall = size_t{64} << 10;  // bytes that a call reads and makes
std::atomic<size_t> g_most_known = 8192;
std::atomic<int64_t> g_learned = 0, g_evicted = 0;

using c10::IValue;

// The bytes that a tensor's elements lie in: a row of a large table is small.
size_t touched_bytes(const TensorLayout& layout) {
  size_t bytes = item_size(layout.dtype);
  for (size_t d = 0; d < layout.sizes.size(); ++d)
    bytes *= layout.strides[d] == 0 ? std::min<int64_t>(layout.sizes[d], 1) : layout.sizes[d];
  return std::min(bytes, layout.nbytes);
}

bool only_tensors(const c10::FunctionSchema& schema) {
  return std::all_of(schema.returns().begin(), schema.returns().end(), [](const auto& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// An op whose results' layouts follow from its arguments' layouts: it has a kernel for tensors
// without data, or is composed of others that have.
bool layouts_follow(const c10::OperatorHandle& op, const OpRule& rule) {
  const auto& schema = op.schema();
  if (schema.is_vararg() || !only_tensors(schema))
    return false;
  // What an index that is no mask selects is known; a mask is looked at when a call is learned.
  const bool unknown =
      op.hasTag(at::Tag::dynamic_output_shape) || op.hasTag(at::Tag::nondeterministic_seeded);
  if ((unknown && !rule.recorded) || op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::inplace_view) || makes_views(schema))
    return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::Meta) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
}

ArgumentPlan plan_argument(
    const IValue& value,
    const NumberArgument& number,
    bool open_scalars,
    std::vector<TensorLayout>& tensors) {
  ArgumentPlan plan;
  if (value.isTensor() && value.toTensor().defined()) {
    const auto& tensor = value.toTensor();
    if (tensor.device().type() == kTenon) {
      plan.kind = ArgumentPlan::tensor;
      tensors.push_back(layout_of(tensor));
      return plan;
    }
    const bool is_open = open_scalars && !is_complex_number(tensor);
    plan.kind = is_open ? ArgumentPlan::number : ArgumentPlan::constant;
    plan.value = tensor.clone();  // the user may change it
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number())
      plan.value.toTensor().unsafeGetTensorImpl()->set_wrapped_number(true);
    return plan;
  }
  plan.value = value;
  if ((value.isDouble() || number.takes(value)) && open_scalars) {
    plan.kind = ArgumentPlan::number;
  } else if (value.isList()) {
    bool plain = true;
    for (const IValue& element : value.toListRef()) {
      plan.elements.push_back(plan_argument(element, number, open_scalars, tensors));
      plain = plain && plan.elements.back().kind == ArgumentPlan::constant;
    }
    if (plain) {
      plan.elements.clear();
    } else {
      plan.kind = ArgumentPlan::list;
      // Its type without its tensors, which it would keep alive.
      plan.value = c10::impl::GenericList(value.toList().elementType());
    }
  } else if (value.isTensor()) {
    plan.value = at::Tensor();
  }
  return plan;
}

// Whether the tensor is fresh, dense memory of its own. `storages`: those that others have.
bool is_fresh(
    const at::Tensor& tensor, c10::DeviceIndex device, std::unordered_set<const void*>& storages) {
  return is_recordable(tensor) && tensor.device() == c10::Device(kTenon, device) &&
         tensor.storage_offset() == 0 &&
         storages.insert(tensor.storage().unsafeGetStorageImpl()).second;
}

bool selects_by_mask(c10::ArrayRef<IValue> arguments) {
  for (const auto& value : arguments) {
    if (!value.isList())
      continue;
    for (const IValue& element : value.toListRef()) {
      const auto tensor = element.isTensor() ? element.toTensor() : at::Tensor();
      if (tensor.defined() &&
          (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte))
        return true;
    }
  }
  return false;
}

// What the call makes or writes has no elements, and indices that it is given have some: whole
// numbers, beside another tensor.
bool checks_alone(const OpEntry& entry) {
  const auto is_empty = [](const TensorLayout& layout) {
    return c10::multiply_integers(layout.sizes) == 0;
  };
  bool makes_any = !entry.fresh.empty() && !is_empty(entry.fresh.front());
  bool takes_numbers = false;
  for (size_t k = 0; k < entry.tensors.size() && !makes_any; ++k) {
    const auto& layout = entry.tensors[k];
    makes_any = entry.written[k] && !is_empty(layout);
    takes_numbers |= c10::isIntegralType(scalar_type(layout), false) && !is_empty(layout);
  }
  return !makes_any && takes_numbers && entry.tensors.size() > 1;
}

c10::Storage zeros_like(const c10::StorageImpl& storage) {
  auto made = new_storage(storage.nbytes(), storage.device().index());
  if (storage.nbytes() == 0)
    return made;
  auto& impl = *made.unsafeGetStorageImpl();
  if (target().host_memory)
    std::memset(settled_address(impl, Access::write), 0, storage.nbytes());
  else
    upload(impl, at::zeros({static_cast<int64_t>(storage.nbytes())}, at::kByte).storage());
  return made;
}

// What follows once the results are there.
void finish_entry(OpEntry& entry) {
  size_t touched = 0;
  for (const auto* layouts : {&entry.tensors, &entry.fresh}) {
    for (const auto& layout : *layouts)
      touched += touched_bytes(layout);
  }
  entry.small = touched <= kSmall;
  const bool writes_any = std::count(entry.written.begin(), entry.written.end(), true) > 0;
  // Such calls are there for their errors.
  if (entry.reason.empty() && entry.fresh.empty() && !writes_any)
    entry.reason = "it has no results";
  if (entry.reason.empty() && checks_alone(entry))
    entry.reason = "it makes no elements, and the indices that it is given may be out of range";
  entry.recorded = entry.reason.empty();
}

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& op)
    : op(op),
      name(toString(op.operator_name())),
      recordable(layouts_follow(op, op_rule(name))),
      lasts(!is_foreign(op)),
      written(arguments_written(op)),
      replaced(arguments_replaced(op)),
      counts_writes(name.rfind("aten::_foreach_", 0) == 0),
      returned(arguments_returned(op.schema())),
      sizes(sizes_of(op, op_rule(name))) {
  const auto& rule = op_rule(name);
  for (const auto& argument : op.schema().arguments()) {
    const bool indices = argument.type()->isSubtypeOf(*c10::ListType::ofOptionalTensors());
    numbers.push_back(number_argument(argument));
    selects = selects || (indices && std::count(returned.begin(), returned.end(), -1) > 0);
  }
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
  const bool changes_views = op.hasTag(at::Tag::inplace_view) || makes_views(op.schema());
  bool direct_calls = lasts && !counts_writes && (recordable || !(draws || changes_views));
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] && (i > 0 || op.schema().arguments()[i].is_out()))
      direct_calls = false;  // what an `out=` becomes is known once it ran
    if (written[i] && !recordable && std::count(returned.begin(), returned.end(), -1) > 0)
      direct_calls = false;  // what it makes may not be dense, and it runs once
  }
  may_be_direct = direct_calls;
  may_open = rule.run_time_numbers == RunTimeNumbers::kWhenTheyChange;
  starts_from_memory = rule.whole;
  open_scalars = rule.run_time_numbers == RunTimeNumbers::kAlways;
  counter = &tenon::counter("recorded", name);
  reference = &tenon::counter("reference", name);
  direct = &tenon::counter("at once: recording it would not pay", name);
  host = &tenon::counter("fallback", name);
  counter->more = reference->more = direct;
  subject = subject_of({name});
}

OpInfo::~OpInfo() = default;

OpEntry* OpInfo::find(const OpKey& key) {
  const auto range = entries.equal_range(key.hash());
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->key != key.words())
      continue;
    latest[key.hash() % latest.size()].store(it->second.get(), std::memory_order_release);
    it->second->last_found.store(clock, std::memory_order_relaxed);
    return it->second.get();
  }
  return nullptr;
}

OpEntry* OpInfo::add(std::shared_ptr<OpEntry> made, uint64_t hash, Entries& unused) {
  if (entries.size() >= g_most_known) {
    make_room();
    unused = retired_and_unused();
  }
  ++g_learned;
  made->last_found = ++clock;
  return entries.emplace(hash, std::move(made))->second.get();
}

// An eighth goes at a time, so that finding the oldest ones is cheap.
void OpInfo::make_room() {
  const uint32_t now = clock;
  // Ages as they are now: other threads go on to find entries.
  std::vector<std::pair<uint32_t, decltype(entries)::iterator>> by_age;
  for (auto it = entries.begin(); it != entries.end(); ++it)
    by_age.emplace_back(now - it->second->last_found, it);
  const auto count = std::max<size_t>(1, by_age.size() / 8);
  const auto older = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::nth_element(
      by_age.begin(), by_age.begin() + static_cast<int64_t>(count) - 1, by_age.end(), older);
  by_age.resize(count);
  Entries gone;
  for (const auto& [age, it] : by_age) {
    auto* entry = it->second.get();
    for (auto& found : latest) {
      auto* expected = entry;
      found.compare_exchange_strong(expected, nullptr);
    }
    forget_known(*entry);
    gone.push_back(std::move(it->second));
    entries.erase(it);
  }
  g_evicted += static_cast<int64_t>(count);
  retire(std::move(gone));
}

void set_most_known_calls(size_t most) {
  g_most_known = most;
}

size_t most_known_calls() {
  return g_most_known;
}

KnownCallCounts known_call_counts() {
  return {g_learned - g_evicted, g_learned, g_evicted};
}

OpEntry* OpInfo::find_latest(const OpKey& key) const {
  auto* entry = latest[key.hash() % latest.size()].load(std::memory_order_acquire);
  if (entry == nullptr || entry->key != key.words())
    return nullptr;
  const auto now = clock.load(std::memory_order_relaxed);
  if (C10_UNLIKELY(entry->last_found.load(std::memory_order_relaxed) != now))
    entry->last_found.store(now, std::memory_order_relaxed);
  return entry;
}

TensorBefore::TensorBefore(const at::Tensor& t)
    : tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(/*version_counter=*/0, false)),
      buffer(own_buffer(*t.storage().unsafeGetStorageImpl())) {}

// A tensor that became conjugate or negative holds other numbers than its memory does.
bool TensorBefore::is_unchanged(const at::Tensor& now) const {
  return now.sizes() == tensor.sizes() && now.strides() == tensor.strides() &&
         now.storage_offset() == tensor.storage_offset() && now.is_alias_of(tensor) &&
         own_buffer(*now.storage().unsafeGetStorageImpl()) == buffer && !now.is_conj() &&
         !now.is_neg();
}

std::unique_ptr<OpEntry> entry_of(
    OpInfo& op, const OpKey& key, bool open_scalars, c10::ArrayRef<IValue> arguments) {
  static std::atomic<int64_t> next_id{0};
  auto entry = std::make_unique<OpEntry>();
  entry->op = &op;
  entry->id = next_id++;
  entry->hash = key.hash() ^ std::hash<std::string>{}(op.name);
  entry->key = key.words();
  for (size_t i = 0; i < arguments.size(); ++i) {
    entry->arguments.push_back(
        plan_argument(arguments[i], op.numbers[i], open_scalars, entry->tensors));
    entry->written.resize(entry->tensors.size(), op.written[i]);
    entry->overwritten.resize(entry->tensors.size(), op.replaced[i]);
  }
  for (size_t k = 0; k < entry->tensors.size(); ++k) {
    const auto& layout = entry->tensors[k];
    const auto& tensor = *key.tensors()[k];
    entry->overwritten[k] =
        entry->overwritten[k] && tensor.is_non_overlapping_and_dense() && layout.offset == 0;
  }
  return entry;
}

void set_results(OpEntry& entry, CallResults results) {
  entry.results = std::move(results.results);
  entry.resized = std::move(results.resized);
  auto next = std::make_move_iterator(results.made.begin());
  for (const auto k : entry.resized)
    entry.tensors.at(k) = *next++;
  entry.fresh.assign(next, std::make_move_iterator(results.made.end()));
  finish_entry(entry);
}

CallResults results_of(const OpEntry& entry) {
  CallResults found{entry.results, entry.resized, {}};
  for (const auto k : entry.resized)
    found.made.push_back(entry.tensors[k]);
  found.made.insert(found.made.end(), entry.fresh.begin(), entry.fresh.end());
  return found;
}

torch::jit::Stack stand_ins_of(c10::ArrayRef<c10::IValue> arguments) {
  std::unordered_map<const void*, c10::Storage> storages;
  const auto stand_in = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kTenon)
      return tensor;
    const auto& storage = *tensor.storage().unsafeGetStorageImpl();
    auto& zeros = storages[&storage];
    if (!zeros)
      zeros = zeros_like(storage);
    auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(/*version_counter=*/0, true);
    impl->set_storage_keep_dtype(zeros);
    impl->set_requires_grad(tensor.requires_grad());
    return at::Tensor(std::move(impl));
  };
  torch::jit::Stack found;
  for (const auto& argument : arguments)
    found.push_back(map_tensors(argument, stand_in));
  return found;
}

std::unique_ptr<OpEntry> learn(
    OpInfo& op,
    const OpKey& key,
    bool open_scalars,
    const std::vector<TensorBefore>& before,
    c10::ArrayRef<IValue> arguments,
    c10::ArrayRef<IValue> results) {
  auto entry = entry_of(op, key, open_scalars, arguments);
  std::unordered_set<const void*> storages;
  for (size_t k = 0; k < before.size(); ++k) {
    const auto& tensor = *key.tensors()[k];
    storages.insert(tensor.storage().unsafeGetStorageImpl());
    if (before[k].is_unchanged(tensor))
      continue;
    const auto& was = before[k].tensor;
    const bool grew = entry->written[k] && before[k].buffer == nullptr &&
                      was.storage_offset() == 0 && tensor.storage_offset() == 0 &&
                      tensor.is_alias_of(was) && !tensor.is_conj() && !tensor.is_neg() &&
                      tensor.is_non_overlapping_and_dense();
    if (!grew)
      entry->reason = "it changes the layout of an argument";
    entry->resized.push_back(k);
  }
  if (op.selects && selects_by_mask(arguments))
    entry->reason = "a mask is an index: the shape depends on data";
  for (size_t i = 0; i < results.size() && entry->reason.empty(); ++i) {
    auto& plan = entry->results.emplace_back();
    plan.argument = op.returned[i];
    if (plan.argument >= 0)
      continue;
    plan.list = results[i].isList();
    for (const auto& tensor : tensors_of(results[i])) {
      plan.defined.push_back(tensor.defined());
      if (!tensor.defined())
        continue;
      if (is_fresh(tensor, key.device(), storages))
        entry->fresh.push_back(layout_of(tensor));
      else
        entry->reason = "a result is no dense memory of its own";
    }
  }
  finish_entry(*entry);
  return entry;
}

}  // namespace tenon
