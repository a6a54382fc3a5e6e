// The random ops, from the device's counter-based generator (device/generator.h). Element i of the
// output, in row-major order, is a function of the op's stream and of i (ops/random_numbers.h). So
// a generated kernel can make the same numbers. Argument checks are PyTorch's own templates; then a
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
#include <c10/util/BFloat16-math.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "device/counters.h"
#include "device/generator.h"
#include "device/storage.h"
#include "ops/random_numbers.h"
#include "record/graph.h"

namespace tenon {
namespace {

using OptionalGenerator = std::optional<at::Generator>;

// Elements from which a second thread is worth it: where other work has the processors, waiting for
// one takes longer than making a million numbers.
constexpr int64_t kGrain = int64_t{1} << 19;
constexpr int64_t kTile = 1024;  // numbers that are made at once: they stay in the nearest cache
// Of more values than that, a number is chosen by 64 bits and not by 32. So the chances of two
// values differ by less than one part in 2^12.
constexpr uint64_t kManyValues = uint64_t{1} << 20;

// host[i] = value(number i of the stream), for i in row-major order.
template <class scalar_t, class Kind, class Value>
void fill(const at::Tensor& host, const RandomStream& stream, Value&& value) {
  const auto dense = host.is_contiguous() ? host : at::empty(host.sizes(), host.options());
  auto* out = dense.mutable_data_ptr<scalar_t>();
  at::parallel_for(0, dense.numel(), kGrain, [&](int64_t begin, int64_t end) {
    typename Kind::type numbers[kTile];
    for (int64_t first = begin; first < end;) {
      const auto stop = std::min(end, (first / kTile + 1) * kTile);
      fill_random<Kind>(numbers, stream, first, stop - first);
#pragma omp simd
      for (int64_t i = first; i < stop; ++i)
        out[i] = static_cast<scalar_t>(value(numbers[i - first]));
      first = stop;
    }
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

// A distribution with its parameters as its formula needs them, or whole numbers in [base, base +
// range). The range is unsigned, and 0 for all of int64.
struct Drawn {
  std::string_view distribution;
  double a, b, c;
  int64_t base;
  uint64_t range;
};

template <class scalar_t>
void draw_integers(const at::Tensor& host, const RandomStream& stream, const Drawn& d) {
  const auto base = static_cast<uint64_t>(d.base), range = d.range;
  if (range == 0)
    fill<scalar_t, Bits>(host, stream, [=](int64_t bits) {
      return static_cast<int64_t>(static_cast<uint64_t>(bits) + base);
    });
  else if (range > kManyValues)
    fill<scalar_t, Bits>(host, stream, [=](int64_t bits) {
      const auto below = random_below(bits, static_cast<int64_t>(range));
      return static_cast<int64_t>(static_cast<uint64_t>(below) + base);
    });
  else
    fill<scalar_t, Words>(host, stream, [=](int64_t word) {
      return static_cast<int64_t>((static_cast<uint64_t>(word) * range >> 32) + base);
    });
}

// How many trials until one succeeds.
template <class scalar_t>
void draw_trials(const at::Tensor& host, const RandomStream& stream, const Drawn& d) {
  using made_t = std::conditional_t<std::numeric_limits<scalar_t>::is_integer, int64_t, double>;
  fill<scalar_t, Exponential<double>>(host, stream, [a = d.a](double x) {
    return static_cast<made_t>(std::max(1.0, std::ceil(x * a)));
  });
}

// In float, or for double in double. ops/lowerings/random.py has the same formulas.
template <class scalar_t>
void draw_floats(const at::Tensor& host, const RandomStream& stream, const Drawn& d) {
  using real = std::conditional_t<std::is_same_v<scalar_t, double>, double, float>;
  const auto a = static_cast<real>(d.a), b = static_cast<real>(d.b);
  if (d.distribution == "uniform") {
    const auto last =
        static_cast<real>(d.c);  // what rounds up to the end becomes the number before
    fill<scalar_t, Unit<real>>(host, stream, [=](real x) {
      const auto y = static_cast<real>(static_cast<scalar_t>(x * b + a));
      return y < last ? y : last;
    });
  } else if (d.distribution == "normal") {
    fill<scalar_t, Normal<real>>(host, stream, [=](real x) { return x * b + a; });
  } else if (d.distribution == "log_normal") {
    fill<scalar_t, Normal<real>>(host, stream, [=](real x) { return random_exp(x * b + a); });
  } else if (d.distribution == "cauchy") {
    fill<scalar_t, Cauchy<real>>(host, stream, [=](real x) { return x * b + a; });
  } else {
    TORCH_CHECK(d.distribution == "exponential", "no distribution '", d.distribution, "'");
    // Of rate 1 never 0, also after rounding: `multinomial` divides by it. Of rate infinity 0.
    const auto least = static_cast<real>(std::numeric_limits<scalar_t>::min());
    fill<scalar_t, Exponential<real>>(
        host, stream, [=](real x) { return (x > least ? x : least) * a; });
  }
}

at::Tensor& draw_on_host(
    at::Tensor& self,
    std::string_view distribution,
    double a,
    double b,
    double c,
    int64_t base,
    int64_t range,
    const at::Tensor& seed,
    const at::Tensor& offset) {
  if (self.is_meta())
    return self;  // asked for the layout alone
  const RandomStream stream{
      static_cast<uint64_t>(seed.item<int64_t>()), static_cast<uint64_t>(offset.item<int64_t>())};
  const Drawn drawn{distribution, a, b, c, base, static_cast<uint64_t>(range)};
  dispatch_all(self, [&](auto zero) {
    using scalar_t = decltype(zero);
    if (distribution == "integers") {
      draw_integers<scalar_t>(self, stream, drawn);
    } else if (distribution == "bernoulli") {
      const auto p = static_cast<float>(a);
      fill<scalar_t, Unit<float>>(self, stream, [p](float x) { return x < p; });
    } else if (distribution == "geometric") {
      draw_trials<scalar_t>(self, stream, drawn);
    } else if constexpr (std::numeric_limits<scalar_t>::is_integer) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, '"', distribution, "\" not implemented for '", self.scalar_type(), "'");
    } else {
      draw_floats<scalar_t>(self, stream, drawn);
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
void draw_into(const at::Tensor& self, const OptionalGenerator& generator, const Drawn& drawn) {
  check_generator(self.device(), generator);
  if (generator.has_value() && *generator != default_generator(self.device().index()))
    refuse_in_capture("a generator other than the device's own");
  const auto stream = draw(generator, self.device().index());
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tenon::draw_", "")
                             .typed<decltype(draw_on_host)>();
  const at::AutoDispatchBelowADInplaceOrView below;
  const TokensDo not_here(false);
  auto target = self;
  op.call(
      target,
      drawn.distribution,
      drawn.a,
      drawn.b,
      drawn.c,
      drawn.base,
      static_cast<int64_t>(drawn.range),
      c10::scalar_to_tensor(static_cast<int64_t>(stream.seed)),
      c10::scalar_to_tensor(static_cast<int64_t>(stream.offset)));
}

void draw_integers_into(
    const at::Tensor& self, const OptionalGenerator& generator, int64_t base, uint64_t range) {
  draw_into(self, generator, {"integers", 0, 0, 0, base, range});
}

// The greatest number of a tensor's dtype that is less than `high`.
double last_below(double high, at::ScalarType dtype) {
  double found = high;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "uniform_", [&] {
    const auto nearest = static_cast<scalar_t>(high);
    const auto before = std::nextafter(nearest, std::numeric_limits<scalar_t>::lowest());
    found = static_cast<double>(static_cast<double>(nearest) < high ? nearest : before);
  });
  return found;
}

// A distribution whose op has the arguments `a` and `b`.
Drawn drawn_of(std::string_view distribution, double a, double b, at::ScalarType dtype) {
  if (distribution == "uniform")
    return {distribution, a, b - a, a == b ? b : last_below(b, dtype), 0, 0};
  if (distribution == "exponential")
    return {distribution, 1 / a, 0, 0, 0, 0};
  if (distribution == "geometric")
    return {distribution, -1 / std::log1p(-a), 0, 0, 0, 0};
  return {distribution, a, b, 0, 0, 0};
}

// On the host, and for the layout alone; the device records them.
TORCH_LIBRARY_FRAGMENT(tenon, m) {
  constexpr auto kHere = c10::DispatchKey::CompositeExplicitAutograd;
  m.def(
      "draw_(Tensor(a!) self, str distribution, float a, float b, float c, int base, int range, "
      "Tensor seed, Tensor offset) -> Tensor(a!)",
      torch::dispatch(kHere, draw_on_host));
  m.def(
      "draw(Tensor self, str distribution, float a, float b, float c, int base, int range, "
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
      draw(output(target), a, b, gen);
    }
    template <class Target>
    void operator()(Target&& target, double a, const OptionalGenerator& gen) {
      draw(output(target), a, 0, gen);
    }
    void draw(const at::Tensor& self, double a, double b, const OptionalGenerator& gen) {
      TORCH_CHECK(
          distribution != kExponential || at::isFloatingType(self.scalar_type()),
          "Exponential distribution is a continuous probability distribution. dtype must be a "
          "floating point but you specified ",
          self.scalar_type());
      draw_into(self, gen, drawn_of(distribution, a, b, self.scalar_type()));
    }
  };
};

template <class RNG>
struct RandomFromToKernel {
  // In [base, base + range).
  void operator()(
      at::TensorIteratorBase& iter, uint64_t range, int64_t base, OptionalGenerator gen) {
    draw_integers_into(iter.output(), gen, base, range);
  }
  // All of int64.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    draw_integers_into(iter.output(), gen, 0, 0);
  }
};

template <class RNG>
struct RandomKernel {
  // Every value of an integer type that is not negative. Of a floating one every integer up to its
  // precision, which it holds exactly.
  void operator()(at::TensorIteratorBase& iter, OptionalGenerator gen) {
    uint64_t range = 0;
    dispatch_all(iter.output(), [&](auto zero) {
      using Limits = std::numeric_limits<decltype(zero)>;
      const auto power = Limits::digits < 64 ? uint64_t{1} << (Limits::digits % 64) : 0;
      range = Limits::is_integer ? power : power + 1;
    });
    draw_integers_into(iter.output(), gen, 0, range);
  }
};

// The chances are looked at, so what was recorded of them runs first.
template <class RNG>
struct BernoulliTensorKernel {
  void operator()(const at::Tensor& self, const at::Tensor& p, OptionalGenerator gen) {
    check_generator(self.device(), gen);
    // As the CPU's kernel does, in its words.
    TORCH_CHECK_NOT_IMPLEMENTED(
        at::isFloatingType(p.scalar_type()),
        "\"bernoulli_tensor_cpu_p_\" not implemented for '",
        p.scalar_type(),
        "'");
    TORCH_CHECK_NOT_IMPLEMENTED(
        !self.is_complex(),
        "\"bernoulli_tensor_cpu_self_\" not implemented for '",
        self.scalar_type(),
        "'");
    const auto chances = p.expand(self.sizes()).to(self.device(), at::kFloat);
    const auto [least, most] = at::aminmax(p);
    for (const auto p_in : {least.item<double>(), most.item<double>()})
      TORCH_CHECK(p_in >= 0 && p_in <= 1);  // the CPU's words: it names no more either
    const auto numbers = at::empty(self.sizes(), chances.options());
    draw_into(numbers, gen, drawn_of(kUniform, 0, 1, at::kFloat));
    self.copy_(numbers.lt(chances));
  }
};

at::Tensor& random_to(at::Tensor& self, int64_t to, OptionalGenerator gen) {
  return at::native::templates::random_from_to_impl<RandomFromToKernel, GeneratorImpl>(
      self, 0, to, gen);
}

// 16-bit floats as float: what is computed of them is rounded once, at the end, by reference as in
// registers.
at::Tensor widened(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

double widened(double x) {
  return x;
}

// Normal numbers whose mean or deviation are tensors, made of normal numbers without them.
template <class Mean, class Std>
at::Tensor normal_of(Mean mean, Std std, OptionalGenerator gen) {
  using namespace at::native::templates;
  const auto made =
      normal_impl<Distribution<kNormal>::Kernel, GeneratorImpl>(widened(mean), widened(std), gen);
  if constexpr (std::is_same_v<Mean, double>)
    return made.to(std.scalar_type());
  else
    return made.to(mean.scalar_type());
}

template <class Mean, class Std>
at::Tensor& normal_out(Mean mean, Std std, OptionalGenerator gen, at::Tensor& out) {
  using namespace at::native::templates;
  if (!at::isReducedFloatingType(out.scalar_type()))
    return normal_out_impl<Distribution<kNormal>::Kernel, GeneratorImpl>(out, mean, std, gen);
  auto wide = at::empty(out.sizes(), out.options().dtype(at::kFloat));
  normal_out_impl<Distribution<kNormal>::Kernel, GeneratorImpl>(
      wide, widened(mean), widened(std), gen);
  return out.resize_(wide.sizes()).copy_(wide);
}

// One of PyTorch's templates, which builds an iterator over the tensor: that asks for the address.
template <auto kernel>
struct ByLayout;
template <class Result, class... Arguments, Result (*kernel)(Arguments...)>
struct ByLayout<kernel> {
  static Result call(Arguments... arguments) {
    const TokensDo here;
    return kernel(std::forward<Arguments>(arguments)...);
  }
};

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace at::native::templates;
  using Rng = GeneratorImpl;
  using InPlace = at::Tensor& (*)(at::Tensor&, double, OptionalGenerator);
  using InPlaceOfTensor = at::Tensor& (*)(at::Tensor&, const at::Tensor&, OptionalGenerator);
  const auto add = [&m](const char* op, auto* kernel) { m.impl(op, counted(op, kernel)); };
  add("aten::uniform_", ByLayout<&uniform_impl_<Distribution<kUniform>::Kernel, Rng>>::call);
  add("aten::normal_", normal_impl_<Distribution<kNormal>::Kernel, Rng>);
  using Tensor = const at::Tensor&;
  add("aten::normal.Tensor_float", normal_of<Tensor, double>);
  add("aten::normal.float_Tensor", normal_of<double, Tensor>);
  add("aten::normal.Tensor_Tensor", normal_of<Tensor, Tensor>);
  add("aten::normal.Tensor_float_out", normal_out<Tensor, double>);
  add("aten::normal.float_Tensor_out", normal_out<double, Tensor>);
  add("aten::normal.Tensor_Tensor_out", normal_out<Tensor, Tensor>);
  add("aten::log_normal_",
      ByLayout<&log_normal_impl_<Distribution<kLogNormal>::Kernel, Rng>>::call);
  add("aten::exponential_",
      ByLayout<&exponential_impl_<Distribution<kExponential>::Kernel, Rng>>::call);
  add("aten::cauchy_", ByLayout<&cauchy_impl_<Distribution<kCauchy>::Kernel, Rng>>::call);
  add("aten::geometric_", ByLayout<&geometric_impl_<Distribution<kGeometric>::Kernel, Rng>>::call);
  add("aten::random_", ByLayout<&random_impl<RandomKernel, Rng>>::call);
  add("aten::random_.from", ByLayout<&random_from_to_impl<RandomFromToKernel, Rng>>::call);
  add("aten::random_.to", ByLayout<&random_to>::call);
  add("aten::bernoulli_.float", InPlace(bernoulli_impl_<Distribution<kBernoulli>::Kernel, Rng>));
  add("aten::bernoulli_.Tensor", InPlaceOfTensor(bernoulli_impl_<BernoulliTensorKernel, Rng>));
  add("aten::native_dropout", at::native::native_dropout_cpu);
}

}  // namespace
}  // namespace tenon
