#include "record/values.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstring>

#include "record/op_key.h"

namespace tenon {
namespace {

using c10::IValue;
using Kind = Value::Kind;

const std::vector<c10::TypePtr>& types_of_elements() {
  static const auto* all = new std::vector<c10::TypePtr>{
      c10::IntType::get(),
      c10::FloatType::get(),
      c10::BoolType::get(),
      c10::StringType::get(),
      c10::TensorType::get(),
      c10::OptionalType::ofTensor(),
      c10::NumberType::get(),
      c10::OptionalType::create(c10::IntType::get()),
      c10::AnyType::get()};
  return *all;
}

int64_t element_type_number(const c10::TypePtr& type) {
  const auto& all = types_of_elements();
  for (size_t k = 0; k < all.size(); ++k) {
    if (*all[k] == *type)
      return static_cast<int64_t>(k);
  }
  TORCH_CHECK(false, "a list of ", type->str(), " cannot be kept");
}

Value number_of(const at::Tensor& tensor, bool any) {
  Value data;
  data.dtype = static_cast<DType>(tensor.scalar_type());
  data.wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (tensor.dim() == 0 && tensor.is_cpu() && is_complex_number(tensor)) {
    const auto value = complex_number(tensor);
    data.kind = Kind::complex;
    data.real = value.real();
    data.imaginary = value.imag();
    return data;
  }
  const auto kind = tensor.dim() == 0 && tensor.is_cpu() ? number_kind(tensor) : kNoNumber;
  TORCH_CHECK(kind != kNoNumber, "a tensor ", tensor.sizes(), " cannot be kept");
  data.kind = Kind::number;
  data.integer = any ? 0 : number_bits(tensor);
  return data;
}

IValue tensor_from(const Value& data, const c10::Scalar& value) {
  const auto options = at::TensorOptions(at::kCPU).dtype(static_cast<at::ScalarType>(data.dtype));
  auto tensor = at::scalar_tensor(value, options);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(data.wrapped);
  return tensor;
}

IValue number_from(const Value& data) {
  const auto dtype = static_cast<at::ScalarType>(data.dtype);
  double real = 0;
  std::memcpy(&real, &data.integer, sizeof(real));
  const bool is_real = c10::isFloatingType(dtype) || c10::isIntegralType(dtype, true) ||
                       dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
  check_data(is_real, "no dtype of a number");
  return tensor_from(
      data, c10::isFloatingType(dtype) ? c10::Scalar(real) : c10::Scalar(data.integer));
}

// Of a number without a dtype, that is `Undefined`.
IValue complex_from(const Value& data) {
  const c10::complex<double> value(data.real, data.imaginary);
  if (data.dtype == kNoDType)
    return value;
  const auto dtype = static_cast<at::ScalarType>(data.dtype);
  check_data(dtype == at::kComplexFloat || dtype == at::kComplexDouble, "no dtype of a number");
  return tensor_from(data, value);
}

IValue list_from(const Value& data) {
  const auto& types = types_of_elements();
  check_data(
      data.integer >= 0 && static_cast<size_t>(data.integer) < types.size(), "no type of a list");
  const auto& type = types[data.integer];
  c10::impl::GenericList list(type);
  for (const auto& element : data.elements) {
    auto value = value_from(element);
    check_data(takes(*type, value), "an element of another type");
    list.push_back(std::move(value));
  }
  return list;
}

}  // namespace

std::vector<std::string> element_types() {
  std::vector<std::string> names;
  for (const auto& type : types_of_elements())
    names.push_back(type->annotation_str());
  return names;
}

bool takes(const c10::Type& type, const IValue& value) {
  return value.type()->isSubtypeOf(type) ||
         (value.isBool() && c10::NumberType::get()->isSubtypeOf(type));
}

Value value_of(const IValue& value, bool any_number) {
  Value data;
  if (value.isNone()) {
    data.kind = Kind::nothing;
  } else if (value.isInt()) {
    data.kind = Kind::integer;
    data.integer = any_number ? 0 : value.toInt();
  } else if (value.isDouble()) {
    data.kind = Kind::real;
    data.real = any_number ? 0.0 : value.toDouble();
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    data.kind = Kind::complex;
    data.real = number.real();
    data.imaginary = number.imag();
  } else if (value.isBool()) {
    data.kind = Kind::truth;
    data.integer = value.toBool();
  } else if (value.isString()) {
    data.kind = Kind::text;
    data.text = value.toStringRef();
  } else if (value.isDevice()) {
    data.kind = Kind::device;
    data.text = value.toDevice().str();
  } else if (value.isTensor()) {
    if (value.toTensor().defined())
      return number_of(value.toTensor(), any_number);
    data.kind = Kind::undefined;
  } else {
    TORCH_CHECK(value.isList(), "a value of type ", value.tagKind(), " cannot be kept");
    const auto list = value.toList();
    data.kind = Kind::list;
    data.integer = element_type_number(list.elementType());
    for (const IValue& element : list.vec())
      data.elements.push_back(value_of(element));
  }
  return data;
}

IValue value_from(const Value& data) {
  switch (data.kind) {
    case Kind::nothing:
      return {};
    case Kind::integer:
      return data.integer;
    case Kind::truth:
      return data.integer != 0;
    case Kind::real:
      return data.real;
    case Kind::text:
      return data.text;
    case Kind::device:
      return c10::Device(data.text);
    case Kind::undefined:
      return at::Tensor();
    case Kind::number:
      return number_from(data);
    case Kind::complex:
      return complex_from(data);
    case Kind::list:
      return list_from(data);
  }
  fail(ErrorKind::damaged, "no value");
}

ArgumentPlan argument_from(const Argument& data) {
  check_data(
      data.kind >= Argument::Kind::constant && data.kind <= Argument::Kind::list,
      "no kind of an argument");
  ArgumentPlan found;
  found.kind = static_cast<ArgumentPlan::Kind>(data.kind);
  found.value = value_from(data.value);
  for (const auto& element : data.elements)
    found.elements.push_back(argument_from(element));
  return found;
}

std::string name_of(const c10::OperatorHandle& op) {
  return op.operator_name().name + "\n" + op.operator_name().overload_name;
}

c10::OperatorHandle op_of(const std::string& name) {
  const auto end = name.find('\n');
  check_data(end != std::string::npos, "no name of an op");
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, end).c_str(), name.substr(end + 1).c_str());
}

}  // namespace tenon
