#include "record/op_key.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/neg.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "device/target.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

using c10::IValue;

// The first word of every argument: what it is. The words so far tell how many more follow, so
// different arguments never make the same words.
enum Tag : int64_t {
  kNone,
  kTensor,
  kUndefined,
  kHostScalar,
  kNumber,
  kComplex,
  kList,
  kString,
  kOther,
};

constexpr int64_t kLeftOut = -1;     // in place of a size
constexpr int64_t kIsOpen = 1 << 8;  // beside a number's kind: its bits do not follow

// Whether no two elements are the same memory, as far as the dimensions by themselves tell.
bool lies_apart(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1)
      dims.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;  // of the dimensions inside
  for (const auto& [stride, size] : dims) {
    if (stride < extent)
      return false;
    extent = stride * (size - 1) + extent;
  }
  return true;
}

}  // namespace

bool is_recordable(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet kOdd{
      c10::DispatchKey::Conjugate,
      c10::DispatchKey::Negative,
      c10::DispatchKey::ZeroTensor,
      c10::DispatchKey::Python};
  return tensor.layout() == at::kStrided && !tensor.key_set().has_any(kOdd) &&
         !tensor.is_quantized() && !tensor.is_nested() && tensor.has_storage();
}

std::vector<IValue> as_memory_has_them(
    c10::ArrayRef<IValue> arguments, const std::vector<bool>& written) {
  const auto holds_others = [](const IValue& value) {
    return value.isTensor() && value.toTensor().defined() &&
           value.toTensor().device().type() == kTenon &&
           (value.toTensor().is_conj() || value.toTensor().is_neg());
  };
  if (std::none_of(arguments.begin(), arguments.end(), holds_others))
    return {};
  std::vector<IValue> found(arguments.begin(), arguments.end());
  for (size_t i = 0; i < found.size(); ++i) {
    if (!holds_others(found[i]))
      continue;
    if (written[i])
      return {};
    auto tensor = found[i].toTensor();
    if (tensor.is_conj())
      tensor = at::conj_physical(at::_conj(tensor.is_neg() ? at::_neg_view(tensor) : tensor));
    else
      tensor = at::_neg_view(tensor);
    found[i] = found[i].toTensor().is_neg() ? at::neg(tensor) : tensor;
  }
  return found;
}

void OpKey::clear() {
  words_.clear();
  tensors_.clear();
  storages_.clear();
  scalars_.clear();
  sizes_.clear();
  without_sizes_ = shares_ = false;
  differing_ = Differing::kNothing;
  number_ = {};
  hash_ = 0;
  device_ = -1;
}

bool OpKey::build(
    c10::ArrayRef<IValue> arguments,
    const std::vector<NumberArgument>& numbers,
    bool open_scalars,
    const std::vector<Differing>* differing) {
  clear();
  without_sizes_ = differing != nullptr;
  put(surroundings());
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (without_sizes_)
      differing_ = (*differing)[i];
    number_ = numbers[i];
    if (!add(arguments[i], open_scalars))
      return false;
  }
  return device_ >= 0;
}

// What 0 and 1 mean to an op is no matter of size: one element is repeated, none is computed.
void OpKey::put_size(int64_t size, bool differs) {
  if (!differs || size < 2) {
    put(size);
    return;
  }
  put(kLeftOut);
  sizes_.push_back(size);
}

// How the dimensions lie in memory, which results may take over: which is before which, where both
// are there, and whether there are gaps or overlaps.
void OpKey::put_order(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  const auto before = [&](size_t d, size_t e) {
    return strides[d] != 0 && strides[e] != 0 &&
           std::make_pair(strides[d], sizes[d]) < std::make_pair(strides[e], sizes[e]);
  };
  uint64_t order = 3;
  if (tensor.is_contiguous())
    order = 1;
  else if (tensor.is_non_overlapping_and_dense())
    order = 2;
  else if (lies_apart(sizes, strides))
    order = 0;
  for (size_t d = 1; d < strides.size(); ++d) {
    for (size_t e = 0; e < d; ++e)
      order = order * 3 + (before(d, e) ? 2 : before(e, d) ? 0 : 1);
  }
  put(static_cast<int64_t>(order));
}

bool OpKey::shares_parts() const {
  if (!shares_)
    return false;
  for (size_t i = 1; i < tensors_.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto &a = *tensors_[i], &b = *tensors_[j];
      if (storages_[i] == storages_[j] && (a.sizes() != b.sizes() || a.strides() != b.strides() ||
                                           a.storage_offset() != b.storage_offset()))
        return true;
    }
  }
  return false;
}

void OpKey::add_number(int64_t kind, int64_t bits, bool open) {
  put(kind | (open ? kIsOpen : 0));
  if (!open)
    put(bits);
  scalars_.push_back(bits);
}

void OpKey::add_complex(c10::complex<double> value) {
  put(std::bit_cast<int64_t>(value.real()));
  put(std::bit_cast<int64_t>(value.imag()));
}

bool OpKey::add_tensor(const at::Tensor& tensor, bool open_scalars) {
  if (!tensor.defined()) {
    put(kUndefined);
    return true;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  if (impl->device_type() != kTenon) {
    if (!tensor.is_cpu() || impl->dim() != 0 || !is_recordable(tensor))
      return false;
    const auto kind = number_kind(tensor);
    if (kind == kNoNumber && !is_complex_number(tensor))
      return false;
    put(kHostScalar | static_cast<int64_t>(tensor.scalar_type()) << 8 |
        (impl->is_wrapped_number() ? 1 << 16 : 0));
    if (kind == kNoNumber)
      add_complex(complex_number(tensor));
    else
      add_number(kind, number_bits(tensor), open_scalars);
    return true;
  }
  if (!is_recordable(tensor))
    return false;
  const auto device = impl->device().index();
  if (device_ >= 0 && device != device_)
    return false;
  device_ = device;
  const void* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  size_t alias = 0;
  while (alias < storages_.size() && storages_[alias] != storage)
    ++alias;
  shares_ |= alias < storages_.size();
  storages_.push_back(storage);
  tensors_.push_back(&tensor);
  const auto sizes = impl->sizes(), strides = impl->strides();
  const bool differentiable = c10::GradMode::is_enabled() && tensor.requires_grad();
  put(kTensor | static_cast<int64_t>(tensor.scalar_type()) << 8 | (differentiable ? 1 << 16 : 0) |
      (impl->is_wrapped_number() ? 1 << 17 : 0) | static_cast<int64_t>(sizes.size()) << 24 |
      static_cast<int64_t>(alias) << 32);
  const bool differ = differing_ == Differing::kSizes;
  for (size_t d = 0; d < sizes.size(); ++d)
    put_size(sizes[d], differ || (d == 0 && differing_ == Differing::kBatch));
  for (const auto k : strides)
    put_size(k, differ);
  put_size(impl->storage_offset(), differing_ != Differing::kNothing);
  if (without_sizes_)
    put_order(tensor);
  return true;
}

bool OpKey::add(const IValue& value, bool open_scalars) {
  if (value.isTensor())
    return add_tensor(value.toTensor(), open_scalars);
  if (value.isNone()) {
    put(kNone);
  } else if (value.isDouble()) {
    put(kNumber);
    add_number(kDouble, std::bit_cast<int64_t>(value.toDouble()), open_scalars);
  } else if (value.isComplexDouble()) {
    put(kComplex);
    add_complex(value.toComplexDouble());
  } else if (number_.takes(value) && (open_scalars || differing_ != Differing::kSizes)) {
    put(kNumber | kInt << 8 | 1 << 17);
    add_number(kInt, value.toInt(), open_scalars);
  } else if (value.isInt()) {
    // Not a run-time value: most are dimensions, sizes and counts.
    const auto number = value.toInt();
    const bool left_out = differing_ == Differing::kSizes && number >= 2;
    put(kNumber | kInt << 8 | (left_out ? 1 << 16 : 0));
    if (left_out)
      sizes_.push_back(number);
    else
      put(number);
  } else if (value.isBool()) {
    put(kNumber | kBool << 8);
    put(value.toBool() ? 1 : 0);
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    put(kList | static_cast<int64_t>(elements.size()) << 8);
    for (const auto& element : elements) {
      if (!add(element, open_scalars))
        return false;
    }
  } else if (value.isString()) {
    const auto& text = value.toStringRef();
    put(kString | static_cast<int64_t>(text.size()) << 8);
    for (size_t i = 0; i < text.size(); i += sizeof(int64_t)) {
      int64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      put(word);
    }
  } else if (value.isDevice()) {
    put(kOther);
    put(static_cast<int64_t>(value.toDevice().type()) << 16 | value.toDevice().index());
    return value.toDevice().type() == kTenon;
  } else {
    return false;  // a generator, a stream, an object
  }
  return true;
}

}  // namespace tenon
