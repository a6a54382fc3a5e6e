#include "matmul.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>

#include "device/fork.h"
#include "device/threads.h"

namespace tenon {
namespace {

using at::Tensor;

// Products whose sizes are at most this apart, as powers of two in all, are of one class: what is
// fastest for one is for the other, and nothing is timed where sizes change from step to step.
constexpr double kAlike = 1.0;

struct Choice {
  explicit Choice(MatmulRoute of, int64_t now) : route(of), used(now) {}
  const MatmulRoute route;
  std::atomic<int64_t> used;  // by `clock_ticks`
};

// No shared one, whose writer the child of a fork would not know for its own thread.
std::mutex& table_mutex() {
  return OnlyOne<MutexAtFork<ForkOrder::matmul_choices>>::get();
}

std::map<MatmulKey, Choice> table;
std::atomic<int64_t> clock_ticks{0}, asked{0}, evicted{0};
MatmulTuner tuner;
thread_local std::vector<MatmulChoice>* t_noted = nullptr;
std::atomic<void (*)(const tenon_matmul_t*)> generated{nullptr};
std::atomic<int64_t> choices_for{0};  // threads; 0: those that there are

constexpr std::array<at::ScalarType, 3> kDtypes = {at::kFloat, at::kBFloat16, at::kHalf};

// Which of row and column are dense in memory.
int64_t layout(const int64_t* strides) {
  return (strides[2] == 1 ? 1 : 0) | (strides[1] == 1 ? 2 : 0);
}

MatmulKey key_of(const tenon_matmul_t& p) {
  const auto layouts = layout(p.a_strides) | layout(p.b_strides) << 2;
  return {p.batch, p.m, p.n, p.k, p.dtype, layouts, p.threads, p.epilogue != nullptr};
}

// A host tensor over memory that outlives it: cheaper than from_blob, which asks who owns it.
Tensor operand(
    const tenon_matmul_t& p,
    const void* data,
    int64_t rows,
    int64_t columns,
    const int64_t* strides) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t(),
      SIZE_MAX / 4,
      c10::DataPtr(const_cast<void*>(data), c10::kCPU));
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(kDtypes[p.dtype]));
  const std::array<int64_t, 3> sizes = {p.batch, rows, columns};
  const size_t first = p.batch == 1 ? 1 : 0;
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      c10::IntArrayRef(sizes).slice(first), c10::IntArrayRef(strides, 3).slice(first));
  return result;
}

Tensor onednn(const Tensor& a, const Tensor& b) {
  using Linear = Tensor(
      const Tensor&,
      const Tensor&,
      const std::optional<Tensor>&,
      std::string_view,
      c10::List<std::optional<at::Scalar>>,
      std::optional<std::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Linear>();
  const at::AutoDispatchBelowADInplaceOrView guard;
  return op.call(a, b.t(), std::nullopt, "none", c10::List<std::optional<at::Scalar>>(), "");
}

Tensor& pytorch(const Tensor& a, const Tensor& b, Tensor& out) {
  return a.dim() == 2 ? at::cpu::mm_out(out, a, b) : at::cpu::bmm_out(out, a, b);
}

// The epilogue over a product that lies in memory, on all threads.
void run_epilogue(const tenon_matmul_t& p, const void* product, int64_t step, int64_t matrix) {
  const auto size = p.dtype == 0 ? 4 : 2;
  // A few long rows are cut into columns.
  const bool by_rows = p.batch * p.m >= 4 * p.threads || p.n < 1024;
  const auto work = by_rows ? p.batch * p.m : p.n;
  const auto grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, by_rows ? p.n : p.m));
  at::parallel_for(0, work, grain, [&](int64_t begin, int64_t end) {
    const auto piece = [&](int64_t number, int64_t r0, int64_t r1, int64_t c0, int64_t c1) {
      const std::array<int64_t, 5> box = {r0, r1, c0, c1, number};
      const auto* from =
          static_cast<const char*>(product) + (number * matrix + r0 * step + c0) * size;
      p.epilogue(from, step, box.data(), p.arguments, p.sizes, p.status);
    };
    if (!by_rows) {
      for (int64_t number = 0; number < p.batch; ++number)
        piece(number, 0, p.m, begin, end);
      return;
    }
    while (begin < end) {
      const auto number = begin / p.m, row = begin % p.m;
      const auto rows = std::min(end - begin, p.m - row);
      piece(number, row, row + rows, 0, p.n);
      begin += rows;
    }
  });
}

// The way of the product that is most like this one; none where none is like it. Under the table's
// lock. With `any` also one of quite other sizes is better than to know nothing.
std::optional<MatmulRoute> route_of_nearest(const MatmulKey& key, bool any) {
  constexpr size_t kSizes = 4;  // the first numbers of a key
  std::optional<MatmulRoute> nearest;
  double least = any ? std::numeric_limits<double>::infinity() : kAlike;
  for (const auto& [other, choice] : table) {
    if (!std::equal(key.begin() + kSizes, key.end(), other.begin() + kSizes))
      continue;
    double apart = 0;
    for (size_t k = 0; k < kSizes; ++k)
      apart += std::abs(std::log2(static_cast<double>(key[k]) / static_cast<double>(other[k])));
    if (apart <= least) {
      least = apart;
      nearest = choice.route;
    }
  }
  return nearest;
}

// Under the table's lock. Looking through all of it is little beside timing a product.
void keep_choice(const MatmulKey& key, MatmulRoute route) {
  while (table.size() >= kMostMatmulChoices) {
    table.erase(std::min_element(table.begin(), table.end(), [](const auto& a, const auto& b) {
      return a.second.used < b.second.used;
    }));
    ++evicted;
  }
  table.try_emplace(key, route, ++clock_ticks);
}

}  // namespace

MatmulChoices matmul_choices() {
  const std::lock_guard lock(table_mutex());
  const int64_t kept = table.size();
  return {kept, clock_ticks - asked, asked, evicted};
}

void set_matmul_tuner(MatmulTuner fresh) {
  const std::lock_guard lock(table_mutex());
  table.clear();
  tuner = std::move(fresh);
}

void set_threads_of_choices(int64_t threads) {
  choices_for = threads;
}

void set_matmul_driver(void (*driver)(const tenon_matmul_t*), std::shared_ptr<KernelOwner> owner) {
  // Another thread may be in the one before. There are one or two in a process.
  static auto* owners = new std::vector<std::shared_ptr<KernelOwner>>();
  const std::lock_guard lock(table_mutex());
  owners->push_back(std::move(owner));
  generated = driver;
}

bool has_matmul_driver() {
  return generated.load() != nullptr;
}

void adopt_matmul_choices(const std::vector<MatmulChoice>& choices) {
  const std::lock_guard lock(table_mutex());
  for (const auto& choice : choices)
    keep_choice(choice.key, choice.route);
}

void note_matmul_choices(std::vector<MatmulChoice>* noted) {
  t_noted = noted;
}

void multiply_by(MatmulRoute route, const tenon_matmul_t& p) {
  if (route == MatmulRoute::kGenerated) {
    generated.load()(&p);
    return;
  }
  const auto a = operand(p, p.a, p.m, p.k, p.a_strides);
  const auto b = operand(p, p.b, p.k, p.n, p.b_strides);
  Tensor product;
  const std::array<int64_t, 3> dense = {p.c_strides[0], p.c_strides[1], 1};
  if (p.c != nullptr)
    product = operand(p, p.c, p.m, p.n, dense.data());
  if (route == MatmulRoute::kOneDnn) {
    const auto result = onednn(a, b);
    if (product.defined() && (p.kept || p.epilogue == nullptr))
      product.copy_(result);
    else
      product = result;
  } else {
    if (!product.defined()) {
      const std::array<int64_t, 3> sizes = {p.batch, p.m, p.n};
      product = at::empty(c10::IntArrayRef(sizes).slice(p.batch == 1 ? 1 : 0), a.options());
    }
    pytorch(a, b, product);
  }
  if (p.epilogue != nullptr) {
    const auto step = product.stride(-2);
    run_epilogue(p, product.const_data_ptr(), step, p.batch == 1 ? 0 : product.stride(0));
  }
}

namespace {

// Stands for any epilogue while ways are timed: reads the product once, writes as much.
void copy_piece(
    const void* product,
    int64_t step,
    const int64_t* box,
    void* const* to,
    const int64_t* sizes,
    int64_t*) {
  const auto m = sizes[0], n = sizes[1], size = sizes[2];
  for (auto i = box[0]; i < box[1]; ++i)
    std::memcpy(
        static_cast<char*>(to[0]) + ((box[4] * m + i) * n + box[2]) * size,
        static_cast<const char*>(product) + (i - box[0]) * step * size,
        (box[3] - box[2]) * size);
}

int64_t threads_of_choices(const tenon_matmul_t& p) {
  const auto wanted = choices_for.load();
  return tenon_matmul_is_small(&p) ? 1 : wanted > 0 ? wanted : Threads::outside();
}

int64_t threads_of(const tenon_matmul_t& p) {
  return tenon_matmul_is_small(&p) ? 1 : at::get_num_threads();
}

// The way for a product of that key: from the table, or asked of the tuner.
MatmulRoute find_or_ask(const tenon_matmul_t& p, const MatmulKey& key) {
  {
    const std::lock_guard lock(table_mutex());
    const auto found = table.find(key);
    if (found != table.end()) {
      found->second.used = ++clock_ticks;
      return found->second.route;
    }
  }
  {
    const std::lock_guard lock(table_mutex());
    const auto nearest = route_of_nearest(key, /*any=*/!tuner);
    if (nearest)
      keep_choice(key, *nearest);
    if (nearest || !tuner)
      return nearest.value_or(MatmulRoute::kPyTorch);
  }
  // Trials write where the product goes, which is written again afterwards; an epilogue's own
  // results may replace what it reads, so that another epilogue stands in for it.
  auto trial = p;
  trial.threads = threads_of(p);
  Tensor scratch;
  const std::array<int64_t, 3> sizes = {p.m, p.n, p.dtype == 0 ? 4 : 2};
  void* to = nullptr;
  if (p.epilogue != nullptr) {
    scratch = at::empty({p.batch * p.m * p.n}, at::TensorOptions(kDtypes[p.dtype]));
    to = scratch.mutable_data_ptr();
    trial.epilogue = copy_piece;
    trial.arguments = &to;
    trial.sizes = sizes.data();
  }
  const auto route = tuner(key, [&](MatmulRoute way, int64_t repeats) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (int64_t k = 0; k < repeats; ++k)
      multiply_by(way, trial);
    return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
  });
  const std::lock_guard lock(table_mutex());
  ++asked;
  keep_choice(key, route);
  return route;
}

// The ways round differently, and which is fastest may differ from one process to the next:
// deterministic code always has the same.
MatmulRoute choose(const tenon_matmul_t& p) {
  if (p.windows != nullptr || p.places != nullptr)
    return MatmulRoute::kGenerated;  // the others know strides alone
  if (at::globalContext().deterministicAlgorithms())
    return MatmulRoute::kPyTorch;
  const auto key = key_of(p);
  const auto route = find_or_ask(p, key);
  if (t_noted != nullptr)
    t_noted->push_back({key, route});
  return route;
}

// Whether the fields of a product can describe these operands; fills them in.
bool describe(const Tensor& a, const Tensor& b, const Tensor& out, tenon_matmul_t& p) {
  const auto* dtype = std::find(kDtypes.begin(), kDtypes.end(), a.scalar_type());
  const auto d = a.dim();
  if (dtype == kDtypes.end() || b.scalar_type() != *dtype || out.scalar_type() != *dtype ||
      out.stride(-1) != 1 || out.numel() == 0 || a.size(-1) == 0 || a.is_neg() || b.is_neg() ||
      out.is_neg())
    return false;
  p.a = a.const_data_ptr();
  p.b = b.const_data_ptr();
  p.c = out.mutable_data_ptr();
  p.dtype = dtype - kDtypes.begin();
  p.batch = d == 3 ? a.size(0) : 1;
  p.m = a.size(-2);
  p.n = b.size(-1);
  p.k = a.size(-1);
  for (int64_t k = 3 - d; k < 3; ++k) {
    p.a_strides[k] = a.stride(k - 3 + d);
    p.b_strides[k] = b.stride(k - 3 + d);
    if (k < 2)
      p.c_strides[k] = out.stride(k - 3 + d);
  }
  p.threads = threads_of_choices(p);
  return true;
}

// Of two matrices or two batches of them.
Tensor& tuned_out(const Tensor& a, const Tensor& b, Tensor& out) {
  const auto d = a.dim();
  TORCH_CHECK(
      (d == 2 || d == 3) && b.dim() == d && a.size(-1) == b.size(-2) &&
          (d == 2 || a.size(0) == b.size(0)),
      d == 3 ? "tenon::bmm" : "tenon::mm",
      ": shapes ",
      a.sizes(),
      " and ",
      b.sizes(),
      " cannot be multiplied");
  tenon_matmul_t p{};
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  if (out.sizes() != sizes)
    at::native::resize_output(out, sizes);
  const bool described = describe(a, b, out, p);
  const Threads alone(described && tenon_matmul_is_small(&p) ? 1 : 0);
  const auto route = described ? choose(p) : MatmulRoute::kPyTorch;
  p.threads = threads_of(p);
  if (route == MatmulRoute::kPyTorch)
    return pytorch(a, b, out);
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, a);
  at::assert_no_overlap(out, b);
  multiply_by(route, p);
  return out;
}

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def("mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
  m.def("bmm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)");
}

TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  m.impl("mm.out", tuned_out);
  m.impl("bmm.out", tuned_out);
}

}  // namespace

void multiply(const tenon_matmul_t* product) {
  auto p = *product;
  p.threads = threads_of_choices(p);
  const Threads alone(tenon_matmul_is_small(&p) ? 1 : 0);
  const auto route = choose(p);
  p.threads = threads_of(p);
  multiply_by(route, p);
}

}  // namespace tenon
