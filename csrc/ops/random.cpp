// The random ops, from the device's counter-based generator (device/generator.h). Element i of the
// output, counted in row-major order of its sizes, is a function of the words of counter i, so a
// generated kernel can make the same numbers. Argument checks are PyTorch's own templates; then a
// call of `tenon::draw_` is recorded.

#include <ATen/Dispatch_v2.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_dropout_native.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "device/counters.h"
#include "device/generator.h"

namespace tenon {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kGrain = 4096;  // elements for a thread to be worth it

// The first or the second 64 bits.
uint64_t bits_of(const PhiloxWords& w, int half) {
  return (static_cast<uint64_t>(w[2 * half + 1]) << 32) | w[2 * half];
}

// In (0, 1), symmetric, neither end possible: the top 52 bits, and half a step.
double open_uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// In [0, 1), on the grid of the floating-point type that computes for `scalar_t`.
template <class scalar_t>
double half_open_uniform(const PhiloxWords& w) {
  if constexpr (std::is_same_v<scalar_t, double>)
    return static_cast<double>(bits_of(w, 0) >> 11) * 0x1p-53;
  else
    return (w[0] >> 8) * 0x1p-24;
}

double standard_normal(const PhiloxWords& w) {  // Box and Muller, 1958
  return std::sqrt(-2 * std::log(open_uniform(bits_of(w, 0)))) *
         std::cos(2 * kPi * open_uniform(bits_of(w, 1)));
}

// In [base, base + range); 0: all of int64.
int64_t integer(const PhiloxWords& w, int64_t base, uint64_t range) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const auto bits = bits_of(w, 0);
  const auto below = range == 0 ? bits : range > kHalf ? bits % range : (bits % kHalf) % range;
  return static_cast<int64_t>(below + static_cast<uint64_t>(base));
}

// host[i] = value(words of counter i), for i in row-major order.
template <class scalar_t, class Value>
void fill(const at::Tensor& host, const RandomStream& stream, Value&& value) {
  const auto dense = host.is_contiguous() ? host : at::empty(host.sizes(), host.options());
  auto* out = dense.mutable_data_ptr<scalar_t>();
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      out[i] = static_cast<scalar_t>(value(stream(i)));
  });
  if (!dense.is_same(host))
    host.copy_(dense);
}

template <class F>
void dispatch_all(const at::Tensor& t, F&& f) {
  AT_DISPATCH_V2(
      t.scalar_type(),
      "random numbers",
      AT_WRAP([&] { f(scalar_t{}); }),
      AT_EXPAND(AT_ALL_TYPES),
      at::kBool,
      at::kHalf,
      at::kBFloat16,
      AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

// The distributions. `a` and `b` are their parameters in the order of the ops' arguments; whole
// numbers lie in [base, base + range), with range as unsigned and 0 for all of int64.
// ops/lowerings/creation.py makes the same numbers of those that it has.
at::Tensor& draw_on_host(
    at::Tensor& self,
    std::string_view distribution,
    double a,
    double b,
    int64_t base,
    int64_t range,
    const at::Tensor& seed,
    const at::Tensor& offset) {
  if (self.is_meta())
    return self;  // asked for the layout alone
  const RandomStream stream{
      static_cast<uint64_t>(seed.item<int64_t>()), static_cast<uint64_t>(offset.item<int64_t>())};
  dispatch_all(self, [&](auto zero) {
    using scalar_t = decltype(zero);
    const auto with = [&](auto value) { fill<scalar_t>(self, stream, value); };
    if (distribution == "integers") {
      with([=](const PhiloxWords& w) { return integer(w, base, static_cast<uint64_t>(range)); });
    } else if (distribution == "bernoulli") {
      // A comparison in float, as vectors do it fastest.
      with([p = static_cast<float>(a)](const PhiloxWords& w) {
        return half_open_uniform<float>(w) < p;
      });
    } else if (distribution == "geometric") {
      with([=](const PhiloxWords& w) {
        return std::max(1.0, std::ceil(std::log(open_uniform(bits_of(w, 0))) / std::log1p(-a)));
      });
    } else if constexpr (std::numeric_limits<scalar_t>::is_integer) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, '"', distribution, "\" not implemented for '", self.scalar_type(), "'");
    } else if (distribution == "uniform") {
      // What rounds up to `b` becomes the number before it.
      constexpr int digits = std::numeric_limits<scalar_t>::digits;
      const auto last = static_cast<scalar_t>(b - (b - a) * std::ldexp(1.0, -digits));
      with([=](const PhiloxWords& w) {
        const auto x = static_cast<scalar_t>(half_open_uniform<scalar_t>(w) * (b - a) + a);
        return static_cast<double>(x) < b || a == b ? x : last;
      });
    } else if (distribution == "normal") {
      with([=](const PhiloxWords& w) { return a + b * standard_normal(w); });
    } else if (distribution == "log_normal") {
      with([=](const PhiloxWords& w) { return std::exp(a + b * standard_normal(w)); });
    } else if (distribution == "cauchy") {
      with([=](const PhiloxWords& w) {
        return a + b * std::tan(kPi * (open_uniform(bits_of(w, 0)) - 0.5));
      });
    } else {
      TORCH_CHECK(distribution == "exponential", "no distribution '", distribution, "'");
      // Of rate 1 never 0, also after rounding: `multinomial` divides by it. Of rate infinity 0.
      const double least = std::numeric_limits<scalar_t>::min();
      with([=](const PhiloxWords& w) {
        return std::max(-std::log(open_uniform(bits_of(w, 0))), least) / a;
      });
    }
  });
  return self;
}

// An op in place as one that makes its result, with the layout of the first argument.
template <class... Rest>
auto functional(at::Tensor& (*in_place)(at::Tensor&, Rest...)) {
  return [in_place](const at::Tensor& self, Rest... rest) {
    auto made = at::empty_like(self);
    in_place(made, rest...);
    return made;
  };
}

// What every random op on the device becomes: a call that is recorded like any other, with the
// generator's state at this moment as two numbers.
void draw_into(
    const at::Tensor& self,
    const OptionalGenerator& generator,
    std::string_view distribution,
    double a,
    double b = 0,
    int64_t base = 0,
    uint64_t range = 0) {
  check_generator(self.device(), generator);
  const auto stream = draw(generator, self.device().index());
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tenon::draw_", "")
                             .typed<decltype(draw_on_host)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  auto target = self;
  op.call(
      target,
      distribution,
      a,
      b,
      base,
      static_cast<int64_t>(range),
      c10::scalar_to_tensor(static_cast<int64_t>(stream.seed)),
      c10::scalar_to_tensor(static_cast<int64_t>(stream.offset)));
}

// On the host, and for the layout alone; the device records them.
TORCH_LIBRARY_FRAGMENT(tenon, m) {
  constexpr auto kHere = c10::DispatchKey::CompositeExplicitAutograd;
  m.def(
      "draw_(Tensor(a!) self, str distribution, float a, float b, int base, int range, "
      "Tensor seed, Tensor offset) -> Tensor(a!)",
      torch::dispatch(kHere, draw_on_host));
  m.def(
      "draw(Tensor self, str distribution, float a, float b, int base, int range, "
      "Tensor seed, Tensor offset) -> Tensor",
      torch::dispatch(kHere, functional(draw_on_host)));
}

// The kernels that PyTorch's templates call once the arguments are checked. `RNG` is theirs.

const at::Tensor& output(at::TensorIteratorBase& iter) {
  return iter.output();
}

const at::Tensor& output(const at::Tensor& self) {
  return self;
}

constexpr char kUniform[] = "uniform", kNormal[] = "normal", kLogNormal[] = "log_normal";
constexpr char kExponential[] = "exponential", kCauchy[] = "cauchy", kGeometric[] = "geometric";
constexpr char kBernoulli[] = "bernoulli";

// Of a distribution with one parameter or two.
template <const char* distribution>
struct Distribution {
  template <class RNG>
  struct Kernel {
    template <class Target>
    void operator()(Target&& target, double a, double b, const OptionalGenerator& gen) {
      draw_into(output(target), gen, distribution, a, b);
    }
    template <class Target>
    void operator()(Target&& target, double a, const OptionalGenerator& gen) {
      draw_into(output(target), gen, distribution, a);
    }
  };
};

template <class RNG>
struct RandomFromToKernel {
  // In [base, base + range).
  void operator()(
      at::TensorIteratorBase& iter, uint64_t range, int64_t base, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "integers", 0, 0, base, range);
  }
  // All of int64.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "integers", 0);
  }
};

template <class RNG>
struct RandomKernel {
  // Every value of an integer type that is not negative, every integer that a floating one holds
  // exactly up to its precision.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    uint64_t range = 0;
    dispatch_all(iter.output(), [&](auto zero) {
      using Limits = std::numeric_limits<decltype(zero)>;
      const auto power = Limits::digits < 64 ? uint64_t{1} << (Limits::digits % 64) : 0;
      range = Limits::is_integer ? power : power + 1;
    });
    draw_into(iter.output(), gen, "integers", 0, 0, 0, range);
  }
};

// The chances are looked at, so what was recorded of them runs first.
template <class RNG>
struct BernoulliTensorKernel {
  void operator()(const at::Tensor& self, const at::Tensor& p, OptionalGenerator gen) {
    check_generator(self.device(), gen);
    const auto chances = p.expand(self.sizes()).to(self.device(), at::kFloat);
    const auto [least, most] = at::aminmax(p);
    for (const auto p_in : {least.item<double>(), most.item<double>()})
      TORCH_CHECK(p_in >= 0 && p_in <= 1);  // the CPU's words: it names no more either
    const auto numbers = at::empty(self.sizes(), chances.options());
    draw_into(numbers, gen, kUniform, 0, 1);
    self.copy_(numbers.lt(chances));
  }
};

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator gen) {
  return at::native::templates::random_from_to_impl<RandomFromToKernel, GeneratorImpl>(
      self, 0, to, gen);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native::templates;
  using Rng = GeneratorImpl;
  using InPlace = at::Tensor& (*)(at::Tensor&, double, OptionalGenerator);
  using InPlaceOfTensor = at::Tensor& (*)(at::Tensor&, const at::Tensor&, OptionalGenerator);
  const auto add = [&m](const char* op, auto* kernel) { m.impl(op, counted(op, kernel)); };
  add("aten::uniform_", uniform_impl_<Distribution<kUniform>::Kernel, Rng>);
  add("aten::normal_", normal_impl_<Distribution<kNormal>::Kernel, Rng>);
  add("aten::log_normal_", log_normal_impl_<Distribution<kLogNormal>::Kernel, Rng>);
  add("aten::exponential_", exponential_impl_<Distribution<kExponential>::Kernel, Rng>);
  add("aten::cauchy_", cauchy_impl_<Distribution<kCauchy>::Kernel, Rng>);
  add("aten::geometric_", geometric_impl_<Distribution<kGeometric>::Kernel, Rng>);
  add("aten::random_", random_impl<RandomKernel, Rng>);
  add("aten::random_.from", random_from_to_impl<RandomFromToKernel, Rng>);
  add("aten::random_.to", random_to);
  add("aten::bernoulli_.float", InPlace(bernoulli_impl_<Distribution<kBernoulli>::Kernel, Rng>));
  add("aten::bernoulli_.Tensor", InPlaceOfTensor(bernoulli_impl_<BernoulliTensorKernel, Rng>));
  add("aten::native_dropout", at::native::native_dropout_cpu);
}

}  // namespace
}  // namespace tenon
