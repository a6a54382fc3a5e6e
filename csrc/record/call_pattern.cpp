#include "record/call_pattern.h"

#include <ATen/EmptyTensor.h>

#include <unordered_set>

#include "device/pending.h"
#include "record/known_calls.h"

namespace tenon {
namespace {

using c10::IValue;

constexpr size_t kFirst = 2;  // calls that make a rule
constexpr int kOften = 3;     // times that the same sizes came
constexpr size_t kMostLasting = 32, kMostCounted = 256;
constexpr size_t kMost = 5;  // calls with other sizes after which no rule is expected any more

// Ops beside the pointwise ones: reductions, products, norms, losses, copies, joins, look-ups.
const std::unordered_set<std::string_view>& following() {
  static const std::unordered_set<std::string_view> names = {
      // Of values made anew, and copies
      "aten::_to_copy",
      "aten::clone",
      "aten::copy_",
      "aten::fill_",
      "aten::zero_",
      "aten::zeros",
      "aten::ones",
      "aten::full",
      "aten::zeros_like",
      "aten::ones_like",
      "aten::full_like",
      "aten::new_zeros",
      "aten::new_ones",
      "aten::new_full",
      "aten::eye",
      "aten::floor_divide",
      "aten::tril",
      "aten::triu",
      "aten::flip",
      "aten::roll",
      "aten::repeat",
      // Of several
      "aten::cat",
      "aten::stack",
      "aten::index_select",
      "aten::embedding",
      "aten::embedding_dense_backward",
      "aten::index",
      "aten::index_put",
      "aten::index_put_",
      "aten::_index_put_impl_",
      "aten::gather",
      "aten::slice_backward",
      "aten::select_backward",
      // Reductions
      "aten::sum",
      "aten::mean",
      "aten::prod",
      "aten::amax",
      "aten::amin",
      "aten::max",
      "aten::min",
      "aten::argmax",
      "aten::argmin",
      "aten::any",
      "aten::all",
      "aten::var",
      "aten::std",
      "aten::var_mean",
      "aten::std_mean",
      "aten::logsumexp",
      "aten::linalg_vector_norm",
      "aten::cumsum",
      "aten::cumprod",
      "aten::sort",
      "aten::_softmax",
      "aten::_log_softmax",
      "aten::_softmax_backward_data",
      "aten::_log_softmax_backward_data",
      // Products
      "aten::mm",
      "aten::bmm",
      "aten::addmm",
      "aten::baddbmm",
      "aten::addbmm",
      "aten::dot",
      "aten::mv",
      "aten::addmv",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      "aten::_cdist_forward",
      "aten::_cdist_backward",
      // Norms, pools and losses
      "aten::native_layer_norm",
      "aten::native_layer_norm_backward",
      "aten::native_batch_norm",
      "aten::native_batch_norm_backward",
      "aten::native_group_norm",
      "aten::native_group_norm_backward",
      "aten::_fused_rms_norm",
      "aten::_adaptive_avg_pool2d",
      "aten::_adaptive_avg_pool2d_backward",
      "aten::nll_loss_forward",
      "aten::nll_loss_backward",
      "aten::nll_loss2d_forward",
      "aten::nll_loss2d_backward",
      "aten::mse_loss",
      "aten::smooth_l1_loss",
      "aten::huber_loss",
      "aten::binary_cross_entropy",
      "aten::binary_cross_entropy_backward",
      "aten::binary_cross_entropy_with_logits",
      "aten::soft_margin_loss"};
  return names;
}

constexpr std::string_view kNoSizes[] = {
    "dim",          "dims",      "dim0",     "dim1",        "start_dim",      "end_dim",
    "axis",         "reduction", "groups",   "correction",  "padding_idx",    "num_heads",
    "stride",       "padding",   "dilation", "kernel_size", "output_padding", "group",
    "ignore_index", "diagonal",  "start",    "end",         "step",           "index",
    "shifts"};

// Sizes that a slice of another tensor's gradient has to have.
bool allows_slice(c10::ArrayRef<IValue> arguments) {
  const auto& grad = arguments[0].toTensor();
  const auto whole = arguments[1].toIntVector();
  const auto dim = arguments[2].toInt();
  const auto rank = static_cast<int64_t>(whole.size());
  if (dim < -rank || dim >= rank || grad.dim() != rank || arguments[5].toInt() <= 0)
    return false;
  const auto d = dim < 0 ? dim + rank : dim;
  const auto bound = [&](int64_t k) {
    return std::clamp(k < 0 ? k + whole[d] : k, int64_t{0}, whole[d]);
  };
  const auto start = bound(arguments[3].toInt());
  const auto end = std::max(bound(arguments[4].toInt()), start);
  const auto step = arguments[5].toInt();
  for (int64_t k = 0; k < rank; ++k) {
    if (grad.size(k) != (k == d ? (end - start + step - 1) / step : whole[k]))
      return false;
  }
  return true;
}

// An index may show less of the other dimensions, and no more.
bool allows_gather(c10::ArrayRef<IValue> arguments) {
  const auto& self = arguments[0].toTensor();
  const auto& index = arguments[2].toTensor();
  const auto rank = self.dim();
  const auto dim = arguments[1].toInt();
  if (rank == 0 || index.dim() != rank || dim < -rank || dim >= rank)
    return false;
  for (int64_t k = 0; k < rank; ++k) {
    if (k != (dim < 0 ? dim + rank : dim) && index.size(k) > self.size(k))
      return false;
  }
  return true;
}

// What a call gives its sizes.
std::vector<TensorLayout> made_by(const OpEntry& entry) {
  std::vector<TensorLayout> made;
  for (const auto k : entry.resized)
    made.push_back(entry.tensors[k]);
  made.insert(made.end(), entry.fresh.begin(), entry.fresh.end());
  return made;
}

// The sizes of what a call gave, behind those that it was given.
std::vector<int64_t> with_results(
    std::vector<int64_t> sizes, const std::vector<TensorLayout>& made) {
  for (const auto& layout : made) {
    sizes.insert(sizes.end(), layout.sizes.begin(), layout.sizes.end());
    sizes.insert(sizes.end(), layout.strides.begin(), layout.strides.end());
  }
  return sizes;
}

bool are_alike(const std::vector<ResultPlan>& a, const std::vector<ResultPlan>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.argument == y.argument && x.list == y.list && x.defined == y.defined;
  });
}

bool are_alike(const std::vector<TensorLayout>& a, const std::vector<TensorLayout>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.dtype == y.dtype && x.sizes.size() == y.sizes.size() && x.offset == 0 && y.offset == 0;
  });
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
        if (!found || *found < 0)
          return false;
        number = *found;
      }
    }
    layout.nbytes = at::detail::computeStorageNbytes(
        layout.sizes, layout.strides, c10::elementSize(layout.dtype), 0);
  }
  return true;
}

bool comes_often(CallPattern& pattern, uint64_t key) {
  if (pattern.lasting >= kMostLasting)
    return false;
  if (pattern.times.size() >= kMostCounted)
    pattern.times.clear();
  if (++pattern.times[key] < kOften)
    return false;
  ++pattern.lasting;
  return true;
}

// Where windows end is to be the same for all sizes.
void enter(OpEntry& entry, const CallPattern& pattern, const OpKey& without) {
  entry.pattern = &pattern;
  entry.sizes = with_results(without.sizes(), made_by(entry));
  entry.hash = without.hash() ^ std::hash<std::string>{}(entry.op->name);
}

}  // namespace

std::vector<bool> arguments_of_size(const c10::FunctionSchema& schema) {
  std::vector<bool> found;
  for (const auto& argument : schema.arguments()) {
    auto type = argument.real_type();
    while (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
      type = type->containedType(0);
    // Where a range begins and ends are numbers of any kind.
    const bool range = schema.name() == "aten::arange" && type->kind() == c10::TypeKind::NumberType;
    const bool number = range || type->kind() == c10::TypeKind::IntType ||
                        type->kind() == c10::TypeKind::SymIntType;
    const auto* named = std::find(std::begin(kNoSizes), std::end(kNoSizes), argument.name());
    // Where a slice begins and ends are sizes too.
    const bool slice = schema.name() == "aten::slice_backward" && argument.name() != "dim";
    found.push_back(number && (slice || range || named == std::end(kNoSizes)));
  }
  return found;
}

bool sizes_follow(const c10::OperatorHandle& op) {
  std::string_view name = op.schema().name();
  if (op.hasTag(at::Tag::pointwise) || following().count(name) > 0)
    return true;
  if (name.substr(0, 15) == "aten::_foreach_" || name.substr(0, 12) == "aten::_fused")
    return true;
  // In place.
  return name.size() > 7 && name.back() == '_' &&
         following().count(name.substr(0, name.size() - 1));
}

bool allows_sizes(const OpInfo& op, c10::ArrayRef<IValue> arguments) {
  const auto& name = op.op.schema().name();
  if (name == "aten::slice_backward")
    return allows_slice(arguments);
  return name != "aten::gather" || allows_gather(arguments);
}

int64_t next_pattern() {
  static std::atomic<int64_t> next{0};
  return next++;
}

bool build_pattern_key(
    OpKey& key, const OpInfo& op, bool open_scalars, c10::ArrayRef<IValue> arguments) {
  return op.sizes_follow && key.build_without_sizes(arguments, open_scalars, op.are_sizes);
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
    made->results = entry.results;
    made->resized = entry.resized;
    made->made = made_by(entry);
    pattern = op.patterns.emplace(key.hash(), std::move(made))->second.get();
  }
  if (pattern->resized != entry.resized || !are_alike(pattern->results, entry.results) ||
      !are_alike(pattern->made, made_by(entry))) {
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
  if (!build_pattern_key(without, op, open_scalars, arguments) || !allows_sizes(op, arguments))
    return nullptr;
  std::vector<ResultPlan> results;
  std::vector<TensorLayout> made;
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
    results = pattern->results;
    made = pattern->made;
    if (!follow_rule(*pattern, without.sizes(), made))
      return nullptr;
    lasts = comes_often(*pattern, key.hash());
  }
  std::shared_ptr<OpEntry> entry = entry_of(op, key, open_scalars, arguments);
  entry->results = std::move(results);
  entry->resized = pattern->resized;
  const auto fresh = made.begin() + static_cast<int64_t>(entry->resized.size());
  for (size_t k = 0; k < entry->resized.size(); ++k)
    entry->tensors[entry->resized[k]] = made[k];
  entry->fresh.assign(fresh, made.end());
  finish_entry(*entry);
  enter(*entry, *pattern, without);
  return entry;
}

}  // namespace tenon
