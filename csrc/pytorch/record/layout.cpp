#include "record/layout.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/GradMode.h>

#include "device/target.h"

namespace tenon {
namespace {

// The runtime knows PyTorch's dtypes by their numbers, with their names and sizes.
const bool layout_at_load [[maybe_unused]] = [] {
  for (int8_t k = 0; k < static_cast<int8_t>(kNoDType); ++k) {
    const auto dtype = static_cast<at::ScalarType>(k);
    TORCH_INTERNAL_ASSERT(
        c10::isQIntType(dtype) || item_size(DType{k}) == c10::elementSize(dtype),
        "the runtime takes elements of ",
        dtype,
        " for others");
    const auto name = c10::getDtypeNames(dtype).first;
    TORCH_INTERNAL_ASSERT(
        name_of(DType{k}) == c10::str("torch.", name), "the runtime has another name for ", name);
  }
  return true;
}();

}  // namespace

TensorLayout layout_of(const at::Tensor& tensor) {
  return {
      static_cast<DType>(tensor.scalar_type()),
      tensor.sizes().vec(),
      tensor.strides().vec(),
      tensor.storage_offset(),
      at::detail::computeStorageNbytes(
          tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset()),
      tensor.requires_grad() && c10::GradMode::is_enabled() &&
          (tensor.is_floating_point() || tensor.is_complex()),
      tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

at::Tensor tensor_over(c10::Storage storage, const TensorLayout& layout, int64_t start) {
  const auto key =
      storage.device_type() == kTenon ? c10::DispatchKey::PrivateUse1 : c10::DispatchKey::CPU;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(scalar_type(layout)));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      layout.sizes, layout.strides, start + layout.offset);
  return tensor;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  return value.isList() ? value.toTensorVector() : std::vector{value.toTensor()};
}

}  // namespace tenon
