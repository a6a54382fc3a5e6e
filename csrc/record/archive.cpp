#include "record/archive.h"

#include <ATen/ops/scalar_tensor.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <fstream>

#include "record/op_key.h"

namespace tenon {
namespace {

using c10::IValue;

enum class Kind : int {
  nothing,
  integer,
  real,
  truth,
  text,
  list,
  undefined,
  number,
  device,
  complex
};

// The types of elements that lists of arguments have.
const std::vector<c10::TypePtr>& element_types() {
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
  const auto& all = element_types();
  for (size_t k = 0; k < all.size(); ++k) {
    if (*all[k] == *type)
      return static_cast<int64_t>(k);
  }
  TORCH_CHECK(false, "a list of ", type->str(), " cannot be kept");
}

void write_number(Writer& archive, const at::Tensor& tensor, bool any) {
  if (tensor.dim() == 0 && tensor.is_cpu() && is_complex_number(tensor)) {
    const auto value = complex_number(tensor);
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    return archive(Kind::complex, tensor.scalar_type(), value.real(), value.imag(), wrapped);
  }
  const auto kind = tensor.dim() == 0 && tensor.is_cpu() ? number_kind(tensor) : kNoNumber;
  TORCH_CHECK(kind != kNoNumber, "a tensor ", tensor.sizes(), " cannot be kept");
  archive(
      Kind::number,
      tensor.scalar_type(),
      any ? int64_t{0} : number_bits(tensor),
      tensor.unsafeGetTensorImpl()->is_wrapped_number());
}

IValue read_number(Reader& archive) {
  at::ScalarType dtype{};
  int64_t bits = 0;
  bool wrapped = false;
  archive(dtype, bits, wrapped);
  double real = 0;
  std::memcpy(&real, &bits, sizeof(real));
  TORCH_CHECK(
      dtype >= at::kByte && dtype <= at::kBFloat16 && !c10::isComplexType(dtype) &&
          !c10::isQIntType(dtype),
      "no dtype of a number");
  const auto value = c10::isFloatingType(dtype) ? c10::Scalar(real) : c10::Scalar(bits);
  auto tensor = at::scalar_tensor(value, at::TensorOptions(at::kCPU).dtype(dtype));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
  return tensor;
}

// Of a number without a dtype, that is `Undefined`.
IValue read_complex(Reader& archive) {
  at::ScalarType dtype{};
  double real = 0, imag = 0;
  bool wrapped = false;
  archive(dtype, real, imag, wrapped);
  const c10::complex<double> value(real, imag);
  if (dtype == at::ScalarType::Undefined)
    return value;
  TORCH_CHECK(dtype == at::kComplexFloat || dtype == at::kComplexDouble, "no dtype of a number");
  auto tensor = at::scalar_tensor(value, at::TensorOptions(at::kCPU).dtype(dtype));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(wrapped);
  return tensor;
}

}  // namespace

uint64_t checksum(std::string_view bytes, uint64_t seed) {
  auto sum = mixed(seed, static_cast<int64_t>(bytes.size()));
  for (size_t k = 0; k < bytes.size(); k += sizeof(int64_t)) {
    int64_t word = 0;
    std::memcpy(&word, bytes.data() + k, std::min(sizeof(word), bytes.size() - k));
    sum = mixed(sum, word);
  }
  return sum;
}

bool write_whole(const std::string& path, std::string_view bytes) {
  static std::atomic<int> count{0};
  const auto fresh = c10::str(path, ".", getpid(), ".", count++);
  std::ofstream file(fresh, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file && std::rename(fresh.c_str(), path.c_str()) == 0)
    return true;
  std::remove(fresh.c_str());
  return false;
}

void write_value(Writer& archive, const IValue& value, bool any_number) {
  if (value.isNone()) {
    archive(Kind::nothing);
  } else if (value.isInt()) {
    archive(Kind::integer, value.toInt());
  } else if (value.isDouble()) {
    archive(Kind::real, any_number ? 0.0 : value.toDouble());
  } else if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    archive(Kind::complex, at::ScalarType::Undefined, number.real(), number.imag(), false);
  } else if (value.isBool()) {
    archive(Kind::truth, value.toBool());
  } else if (value.isString()) {
    archive(Kind::text, value.toStringRef());
  } else if (value.isDevice()) {
    archive(Kind::device, value.toDevice().str());
  } else if (value.isTensor()) {
    if (value.toTensor().defined())
      write_number(archive, value.toTensor(), any_number);
    else
      archive(Kind::undefined);
  } else {
    TORCH_CHECK(value.isList(), "a value of type ", value.tagKind(), " cannot be kept");
    const auto list = value.toList();
    archive(Kind::list, element_type_number(list.elementType()), list.size());
    for (const IValue& element : list.vec())
      archive(element);
  }
}

IValue read_value(Reader& archive) {
  Kind kind{};
  int64_t integer = 0;
  double real = 0;
  std::string text;
  archive(kind);
  switch (kind) {
    case Kind::nothing:
      return {};
    case Kind::integer:
      archive(integer);
      return integer;
    case Kind::truth:
      archive(integer);
      return integer != 0;
    case Kind::real:
      archive(real);
      return real;
    case Kind::text:
      archive(text);
      return text;
    case Kind::device:
      archive(text);
      return c10::Device(text);
    case Kind::undefined:
      return at::Tensor();
    case Kind::number:
      return read_number(archive);
    case Kind::complex:
      return read_complex(archive);
    case Kind::list: {
      size_t size = 0;
      archive(integer, size);
      const auto& type = element_types().at(integer);
      c10::impl::GenericList list(type);
      archive.within([&] {
        for (size_t k = 0; k < size; ++k) {
          auto value = read_value(archive);
          TORCH_CHECK(value.type()->isSubtypeOf(*type), "an element of another type");
          list.push_back(std::move(value));
        }
        return true;
      });
      return list;
    }
  }
  TORCH_CHECK(false, "no value");
}

}  // namespace tenon
