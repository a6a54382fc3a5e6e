// The random ops, from the device's counter-based generator (device/generator.h). Element i of the
// output, counted in row-major order of its sizes, is a function of the words of counter i, so a
// generated kernel can make the same numbers. Argument checks are PyTorch's own templates; then a
// call of `tenon::draw_` is recorded.

#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "device/generator.h"
#include "device/target.h"
#include "execute/counters.h"
#include "execute/host_views.h"

namespace tenon {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

constexpr double kPi = 3.14159265358979323846;
constexpr int64_t kGrain = 4096;  // elements for a thread to be worth it

uint64_t low_64(const PhiloxWords& w) {
  return (static_cast<uint64_t>(w[1]) << 32) | w[0];
}

uint64_t high_64(const PhiloxWords& w) {
  return (static_cast<uint64_t>(w[3]) << 32) | w[2];
}

// In (0, 1), symmetric, neither end possible: the top 52 bits, and half a step.
double open_uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// In [0, 1), on the grid of the floating-point type that computes for `scalar_t`.
template <class scalar_t>
double half_open_uniform(const PhiloxWords& w) {
  if constexpr (std::is_same_v<scalar_t, double>)
    return static_cast<double>(low_64(w) >> 11) * 0x1p-53;
  else
    return (w[0] >> 8) * 0x1p-24;
}

// A comparison in float, as vectors do it fastest.
bool bernoulli(const PhiloxWords& w, double p) {
  return half_open_uniform<float>(w) < static_cast<float>(p);
}

double standard_normal(const PhiloxWords& w) {  // Box and Muller, 1958
  return std::sqrt(-2 * std::log(open_uniform(low_64(w)))) *
         std::cos(2 * kPi * open_uniform(high_64(w)));
}

// In [base, base + range); 0: all of int64.
int64_t integer(const PhiloxWords& w, int64_t base, uint64_t range) {
  constexpr uint64_t kHalf = uint64_t{1} << 63;
  const auto bits = low_64(w);
  const auto below = range == 0 ? bits : range > kHalf ? bits % range : (bits % kHalf) % range;
  return static_cast<int64_t>(below + static_cast<uint64_t>(base));
}

// Runs `fill(host)` on a contiguous host tensor with the sizes and dtype of `host`, and brings what
// it wrote there.
template <class Fill>
void fill_dense(const at::Tensor& host, Fill&& fill) {
  if (host.is_contiguous())
    return fill(host);
  const auto dense = at::empty(host.sizes(), host.options());
  fill(dense);
  host.copy_(dense);
}

// host[i] = value(words of counter i, i), for i in row-major order.
template <class scalar_t, class Value>
void fill(const at::Tensor& host, const RandomStream& stream, Value&& value) {
  fill_dense(host, [&](const at::Tensor& dense) {
    auto* out = dense.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = static_cast<scalar_t>(value(stream(i), i));
    });
  });
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
  if (distribution == "integers") {
    dispatch_all(self, [&](auto zero) {
      fill<decltype(zero)>(self, stream, [=](const PhiloxWords& w, int64_t) {
        return integer(w, base, static_cast<uint64_t>(range));
      });
    });
    return self;
  }
  if (distribution == "bernoulli") {
    dispatch_all(self, [&](auto zero) {
      fill<decltype(zero)>(
          self, stream, [=](const PhiloxWords& w, int64_t) { return bernoulli(w, a); });
    });
    return self;
  }
  if (distribution == "geometric") {
    dispatch_all(self, [&](auto zero) {
      fill<decltype(zero)>(self, stream, [=](const PhiloxWords& w, int64_t) {
        return std::max(1.0, std::ceil(std::log(open_uniform(low_64(w))) / std::log1p(-a)));
      });
    });
    return self;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "random", [&] {
    const auto with = [&](auto value) {
      fill<scalar_t>(self, stream, [=](const PhiloxWords& w, int64_t) { return value(w); });
    };
    if (distribution == "uniform") {
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
        return a + b * std::tan(kPi * (open_uniform(low_64(w)) - 0.5));
      });
    } else {
      TORCH_CHECK(distribution == "exponential", "no distribution '", distribution, "'");
      // Never 0, also after rounding: `multinomial` divides by it.
      const double least = std::numeric_limits<scalar_t>::min();
      with([=](const PhiloxWords& w) {
        return std::max(-std::log(open_uniform(low_64(w))) / a, least);
      });
    }
  });
  return self;
}

at::Tensor draw_functional_on_host(
    const at::Tensor& self,
    std::string_view distribution,
    double a,
    double b,
    int64_t base,
    int64_t range,
    const at::Tensor& seed,
    const at::Tensor& offset) {
  auto made = at::empty_like(self);
  return draw_on_host(made, distribution, a, b, base, range, seed, offset);
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

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def(
      "draw_(Tensor(a!) self, str distribution, float a, float b, int base, int range, "
      "Tensor seed, Tensor offset) -> Tensor(a!)");
  m.def(
      "draw(Tensor self, str distribution, float a, float b, int base, int range, "
      "Tensor seed, Tensor offset) -> Tensor");
}

TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  m.impl("draw_", draw_on_host);
  m.impl("draw", draw_functional_on_host);
}

TORCH_LIBRARY_IMPL(tenon, Meta, m) {
  m.impl("draw_", draw_on_host);
  m.impl("draw", draw_functional_on_host);
}

// The kernels that PyTorch's templates call once the arguments are checked. `RNG` is theirs.

template <class RNG>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "uniform", from, to);
  }
};

template <class RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double std, OptionalGenerator gen) {
    draw_into(self, gen, "normal", mean, std);
  }
};

template <class RNG>
struct LogNormalKernel {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "log_normal", mean, std);
  }
};

template <class RNG>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "exponential", lambda);
  }
};

template <class RNG>
struct CauchyKernel {
  void operator()(
      at::TensorIteratorBase& iter, double median, double sigma, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "cauchy", median, sigma);
  }
};

template <class RNG>
struct GeometricKernel {
  void operator()(at::TensorIteratorBase& iter, double p, OptionalGenerator gen) {
    draw_into(iter.output(), gen, "geometric", p);
  }
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
    uint64_t range = 2;
    dispatch_all(iter.output(), [&](auto zero) {
      using scalar_t = decltype(zero);
      constexpr auto digits = std::numeric_limits<scalar_t>::digits;
      if constexpr (std::is_same_v<scalar_t, bool>)
        range = 2;
      else if constexpr (std::is_integral_v<scalar_t>)
        range = digits < 64 ? uint64_t{1} << (digits % 64) : 0;
      else
        range = (uint64_t{1} << digits) + 1;
    });
    draw_into(iter.output(), gen, "integers", 0, 0, 0, range);
  }
};

template <class RNG>
struct BernoulliScalarKernel {
  void operator()(const at::Tensor& self, double p, OptionalGenerator gen) {
    draw_into(self, gen, "bernoulli", p);
  }
};

// The chances are looked at, so this runs at once.
template <class RNG>
struct BernoulliTensorKernel {
  void operator()(const at::Tensor& self, const at::Tensor& p, OptionalGenerator gen) {
    check_generator(self.device(), gen);
    const auto chance = p.to(at::kCPU).to(at::kDouble).expand(self.sizes()).contiguous();
    const auto* chances = chance.template const_data_ptr<double>();
    for (int64_t i = 0; i < chance.numel(); ++i) {
      const auto p_in = chances[i];
      TORCH_CHECK(p_in >= 0 && p_in <= 1);  // the CPU's words: it names no more either
    }
    const auto stream = draw(gen, self.device().index());
    HostViews views(self.device());
    const auto host = views.to_host(self);
    dispatch_all(host, [&](auto zero) {
      fill<decltype(zero)>(
          host, stream, [=](const PhiloxWords& w, int64_t i) { return bernoulli(w, chances[i]); });
    });
    views.written(self, host);
    views.finish();
  }
};

namespace templates = at::native::templates;
using Rng = GeneratorImpl;

at::Tensor& uniform_(at::Tensor& self, double from, double to, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::uniform_");
  return templates::uniform_impl_<UniformKernel, Rng>(self, from, to, gen);
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::normal_");
  return templates::normal_impl_<NormalKernel, Rng>(self, mean, std, gen);
}

at::Tensor& log_normal_(at::Tensor& self, double mean, double std, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::log_normal_");
  return templates::log_normal_impl_<LogNormalKernel, Rng>(self, mean, std, gen);
}

at::Tensor& exponential_(at::Tensor& self, double lambda, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::exponential_");
  return templates::exponential_impl_<ExponentialKernel, Rng>(self, lambda, gen);
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::cauchy_");
  return templates::cauchy_impl_<CauchyKernel, Rng>(self, median, sigma, gen);
}

at::Tensor& geometric_(at::Tensor& self, double p, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::geometric_");
  return templates::geometric_impl_<GeometricKernel, Rng>(self, p, gen);
}

at::Tensor& random_(at::Tensor& self, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::random_");
  return templates::random_impl<RandomKernel, Rng>(self, gen);
}

at::Tensor& random_from(
    at::Tensor& self, int64_t from, std::optional<int64_t> to, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::random_.from");
  return templates::random_from_to_impl<RandomFromToKernel, Rng>(self, from, to, gen);
}

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::random_.to");
  return templates::random_from_to_impl<RandomFromToKernel, Rng>(self, 0, to, gen);
}

at::Tensor& bernoulli_scalar(at::Tensor& self, double p, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::bernoulli_.float");
  return templates::bernoulli_impl_<BernoulliScalarKernel, Rng>(self, p, gen);
}

at::Tensor& bernoulli_tensor(at::Tensor& self, const at::Tensor& p, OptionalGenerator gen) {
  TENON_COUNT_KERNEL("aten::bernoulli_.Tensor");
  return templates::bernoulli_impl_<BernoulliTensorKernel, Rng>(self, p, gen);
}

std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  TENON_COUNT_KERNEL("aten::native_dropout");
  if (input.numel() == 0)
    return {input, at::empty_like(input, input.options())};
  if (train.has_value() && !*train)
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  auto mask = at::empty_like(input, input.options().dtype(at::kBool));
  bernoulli_scalar(mask, 1 - p, std::nullopt);
  if (p == 1)
    return {at::zeros_like(input), mask};
  return {input.mul(mask).mul_(1 / (1 - p)), mask};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("uniform_", uniform_);
  m.impl("normal_", normal_);
  m.impl("log_normal_", log_normal_);
  m.impl("exponential_", exponential_);
  m.impl("cauchy_", cauchy_);
  m.impl("geometric_", geometric_);
  m.impl("random_", random_);
  m.impl("random_.from", random_from);
  m.impl("random_.to", random_to);
  m.impl("bernoulli_.float", bernoulli_scalar);
  m.impl("bernoulli_.Tensor", bernoulli_tensor);
  m.impl("native_dropout", native_dropout);
}

}  // namespace
}  // namespace tenon
