#include "record/numbers.h"

#include <ATen/ops/_local_scalar_dense_native.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tenon {
namespace {

using c10::IValue;

// The numbers that all of some dtypes have.
struct Range {
  double least = -std::numeric_limits<float>::max(), most = std::numeric_limits<float>::max();
  bool whole = false;

  void keep_to(const at::Tensor& tensor) {
    if (!tensor.defined())
      return;
    const auto dtype = tensor.scalar_type();
    if (dtype == at::kHalf) {
      keep_to(std::numeric_limits<c10::Half>::lowest(), std::numeric_limits<c10::Half>::max());
    } else if (dtype == at::kBFloat16) {
      keep_to(
          std::numeric_limits<c10::BFloat16>::lowest(), std::numeric_limits<c10::BFloat16>::max());
    } else if (c10::isIntegralType(dtype, /*includeBool=*/false)) {
      const int bits = 8 * static_cast<int>(c10::elementSize(dtype));
      whole = true;
      if (c10::isSignedType(dtype))
        keep_to(-std::ldexp(1., bits - 1), std::ldexp(1., bits - 1) - 1);
      else
        keep_to(0, std::ldexp(1., bits) - 1);
    }
  }
  bool has(double number) const {
    return std::isfinite(number) ? number >= least && number <= most
                                 : !whole && !std::isnan(number);
  }

 private:
  void keep_to(double from, double to) {
    least = std::max(least, from);
    most = std::min(most, to);
  }
};

Range range_of(c10::ArrayRef<IValue> arguments) {
  Range range;
  for (const auto& value : arguments) {
    if (value.isTensor())
      range.keep_to(value.toTensor());
    else if (value.isTensorList())
      for (const IValue& element : value.toListRef())
        range.keep_to(element.toTensor());
  }
  return range;
}

template <class Condition>
bool any_number(const IValue& value, const NumberArgument& number, const Condition& condition) {
  if (value.isDouble())
    return condition(value.toDouble());
  if (value.isInt())
    return number.is_one && condition(static_cast<double>(value.toInt()));
  if (!value.isList())
    return false;
  const auto elements = value.toListRef();
  return std::any_of(elements.begin(), elements.end(), [&](const IValue& element) {
    return (element.isDouble() || element.isInt()) && any_number(element, number, condition);
  });
}

bool is_nan(const IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined())
    return false;
  const auto& tensor = value.toTensor();
  return tensor.is_cpu() && tensor.dim() == 0 && number_kind(tensor) == kDouble &&
         std::isnan(tensor.item<double>());
}

}  // namespace

NumberArgument number_argument(const c10::Argument& argument) {
  auto type = argument.type();
  if (type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::ListType)
    type = type->containedType(0);
  NumberArgument found{type->kind() == c10::TypeKind::NumberType, std::nullopt};
  if (found.is_one && argument.default_value() && argument.default_value()->isInt())
    found.usual = argument.default_value()->toInt();
  return found;
}

bool has_no_place(const std::vector<NumberArgument>& numbers, c10::ArrayRef<IValue> arguments) {
  const auto any = [&](const auto& condition) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (any_number(arguments[i], numbers[i], condition))
        return true;
    }
    return false;
  };
  if (std::any_of(arguments.begin(), arguments.end(), is_nan))
    return true;
  // Every dtype has those from 0 to 127, so that nearly all calls end here.
  if (!any([](double number) { return !(number >= 0 && number <= 127); }))
    return false;
  const auto range = range_of(arguments);
  return any([&](double number) { return !range.has(number); });
}

NumberKind number_kind(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (dtype == at::kBool)
    return kBool;
  if (c10::isIntegralType(dtype, /*includeBool=*/false))
    return dtype == at::kUInt64 ? kNoNumber : kInt;
  return c10::isFloatingType(dtype) && dtype <= at::kBFloat16 ? kDouble : kNoNumber;
}

bool is_complex_number(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kComplexFloat || tensor.scalar_type() == at::kComplexDouble;
}

c10::complex<double> complex_number(const at::Tensor& tensor) {
  return at::native::_local_scalar_dense_cpu(tensor).toComplexDouble();
}

int64_t number_bits(const at::Tensor& tensor) {
  // The kernel by itself: `item` goes through the dispatcher.
  const auto value = at::native::_local_scalar_dense_cpu(tensor);
  return value.isFloatingPoint() ? std::bit_cast<int64_t>(value.toDouble()) : value.toLong();
}

}  // namespace tenon
