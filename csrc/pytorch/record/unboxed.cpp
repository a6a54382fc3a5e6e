// Kernels that the dispatcher calls with C++ arguments.
//
// Boxing holds a reference to every tensor. The first one beside a Python object's takes the
// interpreter's lock, as does its end. That is a seventh of what a call of a small op takes. So the
// values that a record sees count no references.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>

#include "record/direct.h"
#include "record/record.h"

namespace tenon {
namespace {

using at::Scalar;
using at::ScalarType;
using at::Tensor;
using c10::IValue;
using c10::SymInt;
using torch::jit::Stack;

using Maybe = std::optional<Tensor>;
using T = const Tensor&;
using Ts = at::TensorList;
using Ints = at::IntArrayRef;
using SymInts = c10::SymIntArrayRef;

// A call's arguments as boxed values, for as long as both live.
class Uncounted {
 public:
  template <class... A>
  explicit Uncounted(const A&... arguments) {
    (add(arguments), ...);
  }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
  ~Uncounted() {
    for (auto& value : values_) {
      if (value.isTensor()) {
        take_back(std::move(value).toTensor());
      } else if (value.isTensorList()) {
        const auto list = std::move(value).toTensorList();
        for (size_t i = 0; i < list.size(); ++i)
          take_back(list.extract(i));
      }
    }
  }

  c10::ArrayRef<IValue> values() const {
    return values_;
  }

  // The same values, which hold what they refer to.
  Stack held() const {
    Stack all(values_.begin(), values_.end());
    for (auto& value : all) {
      if (value.isTensorList())
        value = value.toTensorList().copy();
    }
    return all;
  }

 private:
  static Tensor borrow(T tensor) {
    using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    return Tensor(Pointer::reclaim(tensor.unsafeGetTensorImpl()));
  }
  static void take_back(Tensor tensor) {
    tensor.unsafeReleaseTensorImpl();
  }

  void add(T tensor) {
    values_.emplace_back(borrow(tensor));
  }
  void add(const Maybe& tensor) {
    values_.emplace_back();
    if (tensor)
      values_.back() = borrow(*tensor);
  }
  template <class List>
  void add_all(const List& tensors) {
    c10::List<Tensor> list;
    list.reserve(tensors.size());
    for (T tensor : tensors)
      list.push_back(borrow(tensor));
    values_.emplace_back(std::move(list));
  }
  void add(const Ts& tensors) {
    add_all(tensors);
  }
  void add(const at::ITensorListRef& tensors) {
    add_all(tensors);
  }
  template <class V>
  void add(const V& value) {
    values_.emplace_back(value);
  }

  c10::SmallVector<IValue, 10> values_;
};

// The argument that is written: the last that is no constant.
template <class... A>
Tensor& written(A&&... arguments) {
  Tensor* found = nullptr;
  const auto look = [&](auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), Tensor&>)
      found = &argument;
  };
  (look(arguments), ...);
  return *found;
}

// What is the same for every signature, and compiled once.
class UnboxedKernel : public c10::OperatorKernel {
 public:
  explicit UnboxedKernel(const c10::OperatorHandle& op) : kernel_(op) {}

  RecordKernel& boxed() {
    return kernel_;
  }

 protected:
  // Runs a call that was not recorded.
  Stack run(const Recording& call, const Uncounted& arguments) {
    auto stack = arguments.held();
    kernel_.run(call, &stack);
    return stack;
  }

  RecordKernel kernel_;
};

template <class Signature>
class Unboxed;
template <class R, class... A>
class Unboxed<R(A...)> final : public UnboxedKernel {
 public:
  explicit Unboxed(const c10::OperatorHandle& op) : UnboxedKernel(op), op_(op.typed<R(A...)>()) {}

  R operator()(c10::DispatchKeySet, A... arguments) {
    if (C10_UNLIKELY(next_is_direct()) && kernel_.info().recordable) {
      DirectCall call(kernel_.info());
      // In braces they are taken in their order.
      ByHost by_host{op_, call, call.host(arguments)...};
      if (by_host.made) {
        if constexpr (!kWrites)
          return *std::move(by_host.made);
        else if constexpr (std::is_same_v<R, Tensor&>)
          return written(arguments...);
        else
          return;
      }
    }
    CallInWork until_its_results_are_there;
    const Uncounted values(arguments...);
    auto call = kernel_.record(until_its_results_are_there, values.values());
    Stack stack;
    if (call.entry == nullptr) {
      stack = run(call, values);
    } else if constexpr (std::is_same_v<R, Tensor>) {
      return std::move(call.results[0]);
    } else if constexpr (!kWrites) {
      kernel_.give(call, {}, &stack);
    }
    return result_of(stack, arguments...);
  }

 private:
  static constexpr bool kWrites = std::is_reference_v<R> || std::is_void_v<R>;

  // Runs a call when it is made, if that is possible, on what its kernel gets for the arguments.
  struct ByHost {
    template <class... Host>
    ByHost(const c10::TypedOperatorHandle<R(A...)>& op, DirectCall& call, Host&&... host) {
      if (!call.possible())
        return;
      const auto run = [&]() -> R {
        return op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), host...);
      };
      if constexpr (kWrites) {
        call.run(run);
        call.take_over();
        made = true;
      } else {
        made = call.to_device(call.run(run));
      }
    }

    std::conditional_t<kWrites, bool, std::optional<R>> made{};
  };

  static R result_of(Stack& results, A&... arguments) {
    if constexpr (std::is_same_v<R, Tensor&>)
      return written(arguments...);
    else if constexpr (!kWrites)
      return c10::impl::PopResult<R>::call(results);
  }

  c10::TypedOperatorHandle<R(A...)> op_;
};

// A signature as a schema spells it.
std::string spelled(const c10::FunctionSchema& schema, const std::vector<bool>& written) {
  std::string text;
  for (size_t i = 0; i < schema.arguments().size(); ++i)
    text += schema.arguments()[i].real_type()->str() + (written[i] ? "!," : ",");
  text += "->";
  for (const auto& result : schema.returns())
    text += result.real_type()->str() + ",";
  return text;
}

// ... and as C++ types do. PyTorch's own schema of them takes as long to compile as the kernels.
using Name = std::string (*)();

template <class A>
std::string name_of() {
  return c10::getTypePtrCopy<std::decay_t<A>>()->str() + (std::is_same_v<A, Tensor&> ? "!," : ",");
}
template <class R>
struct Results {
  static constexpr std::array<Name, 1> names{&name_of<std::decay_t<R>>};
};
template <>
struct Results<void> {
  static constexpr std::array<Name, 0> names{};
};
template <class... R>
struct Results<std::tuple<R...>> {
  static constexpr std::array<Name, sizeof...(R)> names{&name_of<R>...};
};

std::string spelled(std::span<const Name> arguments, std::span<const Name> results) {
  std::string text;
  for (const auto name : arguments)
    text += name();
  text += "->";
  for (const auto name : results)
    text += name();
  return text;
}

}  // namespace
}  // namespace tenon

namespace c10::impl {

// A boxed call is recorded as it is. To unbox it for a kernel that boxes it would be of no use, and
// take as long to compile as the kernels.
template <class Signature>
struct make_boxed_from_unboxed_functor<tenon::Unboxed<Signature>, false> {
  static void call(
      OperatorKernel* kernel, const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    static_cast<tenon::UnboxedKernel*>(kernel)->boxed()(op, keys, stack);
  }
};

}  // namespace c10::impl

namespace tenon {
namespace {

using Make = c10::KernelFunction (*)(const c10::OperatorHandle& op);
using Makers = std::unordered_multimap<std::string, Make>;

void add_maker(
    Makers& makers, std::span<const Name> arguments, std::span<const Name> results, Make make) {
  makers.emplace(spelled(arguments, results), make);
}

template <class Signature>
struct Maker;
template <class R, class... A>
struct Maker<R(A...)> {
  static c10::KernelFunction make(const c10::OperatorHandle& op) {
    op.typed<R(A...)>();  // raises where it is another one
    std::unique_ptr<c10::OperatorKernel> kernel(new Unboxed<R(A...)>(op));
    return c10::KernelFunction::makeFromUnboxedFunctor<false, Unboxed<R(A...)>>(std::move(kernel));
  }
  static void add(Makers& makers) {
    static constexpr std::array<Name, sizeof...(A)> arguments{&name_of<A>...};
    add_maker(makers, arguments, Results<R>::names, &make);
  }
};

// A signature and those of the variants that write in place and into `out`.
template <class Signature>
struct Variants : Maker<Signature> {};
template <class... A>
struct Variants<Tensor(T, A...)> {
  static void add(Makers& makers) {
    Maker<Tensor(T, A...)>::add(makers);
    Maker<Tensor&(Tensor&, A...)>::add(makers);
    Maker<Tensor&(T, A..., Tensor&)>::add(makers);
  }
};
template <class... A>
struct Variants<std::vector<Tensor>(Ts, A...)> {
  static void add(Makers& makers) {
    Maker<std::vector<Tensor>(Ts, A...)>::add(makers);
    Maker<void(Ts, A...)>::add(makers);
  }
};

template <class... Signature>
Makers makers_of() {
  Makers makers;
  (Variants<Signature>::add(makers), ...);
  return makers;
}

const Makers& usual_signatures() {
  using Two = std::tuple<Tensor, Tensor>;
  using Three = std::tuple<Tensor, Tensor, Tensor>;
  using List = std::vector<Tensor>;
  using Scalars = at::ArrayRef<Scalar>;
  static const auto makers = makers_of<
      Tensor(T),
      Tensor(T, T),
      Tensor(T, T, T),
      Tensor(T, const Scalar&),
      Tensor(T, T, const Scalar&),
      Tensor(T, T, T, const Scalar&),
      Tensor(T, const Scalar&, const Scalar&),
      Tensor(T, T, T, const Scalar&, const Scalar&),
      Tensor(T, const std::optional<Scalar>&, const std::optional<Scalar>&),
      Tensor(T, c10::string_view),
      Tensor(T, T, c10::string_view),
      Tensor(T, std::optional<ScalarType>),
      Tensor(T, int64_t, std::optional<ScalarType>),
      Tensor(T, at::OptionalIntArrayRef, bool, std::optional<ScalarType>),
      Tensor(T, at::OptionalIntArrayRef, const std::optional<Scalar>&, bool),
      Tensor(T, Ints),
      Tensor(T, Ints, bool),
      Tensor(T, SymInt),
      Tensor(T, SymInts),
      Tensor(T, SymInts, Ints),
      Tensor(T, SymInts, const Scalar&),
      Tensor(T, const Scalar&, at::OptionalIntArrayRef, bool, std::optional<ScalarType>),
      Tensor(T, int64_t, bool),
      Tensor(T, std::optional<int64_t>, bool),
      Two(T, int64_t, bool),
      Two(T, SymInt, int64_t, bool, bool),
      Tensor(T, T, int64_t, ScalarType),
      Tensor(T, int64_t, T),
      Tensor(T, int64_t, T, bool),
      Tensor(T, int64_t, T, T),
      Tensor(T, int64_t, T, const Scalar&),
      Tensor(T, const c10::List<Maybe>&),
      Tensor(T, const c10::List<Maybe>&, T, bool),
      Tensor(T, std::optional<at::MemoryFormat>),
      Tensor(T, T, SymInt, bool, bool),
      Tensor(const at::ITensorListRef&, int64_t),
      Tensor(Ts, int64_t),
      Two(T, T, const Maybe&, int64_t, SymInt),
      Three(T, SymInts, const Maybe&, const Maybe&, double),
      Three(T, const Maybe&, const Maybe&, const Maybe&, const Maybe&, bool, double, double),
      Two(T, Ints, Ints, Ints, Ints, bool),
      List(Ts),
      List(Ts, Ts),
      List(Ts, T),
      List(Ts, const Scalar&),
      List(Ts, Scalars),
      List(Ts, Ts, const Scalar&),
      List(Ts, Ts, Ts, const Scalar&),
      List(Ts, Ts, Ts, Scalars)>();
  return makers;
}

}  // namespace

c10::KernelFunction record_kernel(const c10::OperatorHandle& op) {
  std::vector<bool> written;
  for (const auto& argument : op.schema().arguments()) {
    const bool tensor = argument.type()->isSubtypeOf(*c10::TensorType::get());
    written.push_back(tensor && is_written(argument));
  }
  // Ops of others may have no kernel yet that tells their C++ signature.
  const bool known = op.schema().getNamespace() == "aten";
  const auto range = usual_signatures().equal_range(known ? spelled(op.schema(), written) : "");
  for (auto maker = range.first; maker != range.second; ++maker) {
    try {
      return maker->second(op);
    } catch (const c10::Error&) {  // one that is spelled alike
    }
  }
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(op));
}

}  // namespace tenon
