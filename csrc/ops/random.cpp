// The random ops, from the device's counter-based generator (device/generator.h). Element i of the
// output, counted in row-major order of its sizes, is a function of the words of counter i, so a
// generated kernel can make the same numbers. Argument checks are PyTorch's own templates.

#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
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
double half_open_uniform(uint64_t bits) {
  constexpr int digits = std::numeric_limits<at::opmath_type<scalar_t>>::digits;
  return std::ldexp(static_cast<double>(bits >> (64 - digits)), -digits);
}

double standard_normal(const PhiloxWords& w) {  // Box and Muller, 1958
  return std::sqrt(-2 * std::log(open_uniform(low_64(w)))) *
         std::cos(2 * kPi * open_uniform(high_64(w)));
}

// Runs `fill(host)` on a contiguous host tensor with the sizes and dtype of `self`, and brings what
// it wrote to `self`.
template <class Fill>
void fill_on_host(const at::Tensor& self, Fill&& fill) {
  HostViews views(self.device());
  const auto host = views.to_host(self);
  if (host.is_contiguous()) {
    fill(host);
  } else {
    const auto dense = at::empty(host.sizes(), host.options());
    fill(dense);
    host.copy_(dense);
  }
  views.written(self, host);
  views.finish();
}

// self[i] = value(words of counter i), for i in row-major order.
template <class scalar_t, class Value>
void fill(const at::Tensor& self, const OptionalGenerator& generator, Value&& value) {
  check_generator(self.device(), generator);
  const auto stream = draw(generator, self.device().index());
  fill_on_host(self, [&](const at::Tensor& host) {
    auto* out = host.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, host.numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        out[i] = static_cast<scalar_t>(value(stream(i)));
    });
  });
}

// The kernels that PyTorch's templates call once the arguments are checked. `RNG` is theirs.

template <class RNG>
struct UniformKernel {
  void operator()(at::TensorIteratorBase& iter, double from, double to, OptionalGenerator gen) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "uniform_", [&] {
      // What rounds up to `to` becomes the number before it.
      constexpr int digits = std::numeric_limits<scalar_t>::digits;
      const auto last = static_cast<scalar_t>(to - std::ldexp(to - from, -digits));
      fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
        const auto x =
            static_cast<scalar_t>(half_open_uniform<scalar_t>(low_64(w)) * (to - from) + from);
        return static_cast<double>(x) < to || from == to ? x : last;
      });
    });
  }
};

template <class RNG>
struct NormalKernel {
  void operator()(const at::Tensor& self, double mean, double std, OptionalGenerator gen) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, self.scalar_type(), "normal_", [&] {
      fill<scalar_t>(
          self, gen, [=](const PhiloxWords& w) { return mean + std * standard_normal(w); });
    });
  }
};

template <class RNG>
struct LogNormalKernel {
  void operator()(at::TensorIteratorBase& iter, double mean, double std, OptionalGenerator gen) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, iter.output().scalar_type(), "log_normal_", [&] {
          fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
            return std::exp(mean + std * standard_normal(w));
          });
        });
  }
};

template <class RNG>
struct ExponentialKernel {
  void operator()(at::TensorIteratorBase& iter, double lambda, OptionalGenerator gen) {
    // Never 0, also after rounding: `multinomial` divides by it.
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "exponential_", [&] {
      const double least = std::numeric_limits<scalar_t>::min();
      fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
        return std::max(-std::log(open_uniform(low_64(w))) / lambda, least);
      });
    });
  }
};

template <class RNG>
struct CauchyKernel {
  void operator()(
      at::TensorIteratorBase& iter, double median, double sigma, OptionalGenerator gen) {
    AT_DISPATCH_FLOATING_TYPES_AND2(
        at::kHalf, at::kBFloat16, iter.output().scalar_type(), "cauchy_", [&] {
          fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
            return median + sigma * std::tan(kPi * (open_uniform(low_64(w)) - 0.5));
          });
        });
  }
};

template <class RNG>
struct GeometricKernel {
  void operator()(at::TensorIteratorBase& iter, double p, OptionalGenerator gen) {
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, iter.dtype(), "geometric_", [&] {
      fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
        return std::max(1.0, std::ceil(std::log(open_uniform(low_64(w))) / std::log1p(-p)));
      });
    });
  }
};

template <class RNG>
struct RandomFromToKernel {
  // In [base, base + range).
  void operator()(
      at::TensorIteratorBase& iter, uint64_t range, int64_t base, OptionalGenerator gen) {
    AT_DISPATCH_V2(
        iter.dtype(),
        "random_from_to",
        AT_WRAP([&] {
          fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
            return static_cast<int64_t>(low_64(w) % range + static_cast<uint64_t>(base));
          });
        }),
        AT_EXPAND(AT_ALL_TYPES),
        at::kBool,
        at::kHalf,
        at::kBFloat16,
        AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
  // All of int64.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    AT_DISPATCH_V2(
        iter.dtype(),
        "random_full_range",
        AT_WRAP([&] {
          fill<scalar_t>(iter.output(), gen, [](const PhiloxWords& w) {
            return static_cast<int64_t>(low_64(w));
          });
        }),
        at::kLong,
        at::kFloat,
        at::kDouble,
        at::kBFloat16);
  }
};

template <class RNG>
struct RandomKernel {
  // Every value of an integer type that is not negative, every integer that a floating one holds
  // exactly up to its precision.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    AT_DISPATCH_V2(
        iter.dtype(),
        "random_",
        AT_WRAP([&] {
          uint64_t range = 2;
          if constexpr (std::is_same_v<scalar_t, bool>)
            range = 2;
          else if constexpr (std::is_integral_v<scalar_t>)
            range =
                static_cast<uint64_t>(std::numeric_limits<scalar_t>::max()) + 1;  // 0: all 64 bits
          else
            range = (uint64_t{1} << std::numeric_limits<scalar_t>::digits) + 1;
          fill<scalar_t>(iter.output(), gen, [=](const PhiloxWords& w) {
            return range == 0 ? low_64(w) : low_64(w) % range;
          });
        }),
        AT_EXPAND(AT_ALL_TYPES),
        at::kBool,
        at::kHalf,
        at::kBFloat16,
        AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
  }
};

template <class F>
void dispatch_bernoulli(const at::Tensor& self, F&& f) {
  AT_DISPATCH_V2(
      self.scalar_type(),
      "bernoulli_",
      AT_WRAP([&] { f(scalar_t{}); }),
      AT_EXPAND(AT_ALL_TYPES),
      at::kBool,
      at::kHalf,
      at::kBFloat16,
      AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

template <class RNG>
struct BernoulliScalarKernel {
  void operator()(const at::Tensor& self, double p, OptionalGenerator gen) {
    dispatch_bernoulli(self, [&](auto zero) {
      fill<decltype(zero)>(self, gen, [=](const PhiloxWords& w) {
        return half_open_uniform<double>(low_64(w)) < p;
      });
    });
  }
};

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
    dispatch_bernoulli(self, [&](auto zero) {
      using scalar_t = decltype(zero);
      fill_on_host(self, [&](const at::Tensor& host) {
        auto* out = host.mutable_data_ptr<scalar_t>();
        at::parallel_for(0, host.numel(), kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            out[i] =
                static_cast<scalar_t>(half_open_uniform<double>(low_64(stream(i))) < chances[i]);
        });
      });
    });
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
