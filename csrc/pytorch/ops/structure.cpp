// Kernels for tensors as such: making them, viewing them, copying them, and changing their storage.
// Views are metadata; none of them copies.

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_foreach_copy_native.h>
#include <ATen/ops/_has_same_storage_numel_native.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_new_zeros_with_same_feature_meta_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/is_same_size_native.h>
#include <ATen/ops/resize_as_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tensor_split_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "device/allocator.h"
#include "device/counters.h"
#include "device/pending.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_views.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/record.h"

// PyTorch installs no header that declares it.
namespace at::native {
DECLARE_DISPATCH(Tensor (*)(const Tensor&, IntArrayRef), flatten_indices_stub)
}  // namespace at::native

namespace tenon {
namespace {

constexpr c10::DispatchKeySet kDense{c10::DispatchKey::PrivateUse1};

c10::Device device_or_current(std::optional<at::Device> device) {
  return {kTenon, check_index(device.has_value() ? device->index() : c10::DeviceIndex{-1})};
}

at::Tensor tensor_of_type(size_t nbytes, caffe2::TypeMeta type) {
  if (type == at::kComplexHalf)  // as PyTorch's own tensors, which are made by `empty_generic`
    TORCH_WARN_ONCE("ComplexHalf support is experimental and many operators don't support it yet.");
  return at::detail::make_tensor_base<c10::TensorImpl>(
      new_storage(nbytes, current_device()), kDense, type);
}

// Checks the options of a new tensor and makes it on its device.
template <class Make>
at::Tensor make_empty(
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    Make&& make) {
  TORCH_CHECK(
      c10::layout_or_default(layout) == at::kStrided,
      "empty: expected a strided layout, got ",
      c10::layout_or_default(layout));
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  const c10::DeviceGuard guard(device_or_current(device));
  at::Tensor result = make();
  if (at::globalContext().deterministicAlgorithms() &&
      at::globalContext().deterministicFillUninitializedMemory())
    at::native::fill_empty_deterministic_(result);
  return result;
}

at::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory,
    std::optional<at::MemoryFormat> memory_format) {
  TENON_COUNT_KERNEL("aten::empty.memory_format");
  return make_empty(layout, device, pin_memory, [&] {
    at::detail::check_size_nonnegative(size);
    const auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
    const auto nbytes = at::detail::computeStorageNbytesContiguous(size, type.itemsize());
    auto made = tensor_of_type(nbytes, type);
    if (size.size() != 1 || size[0] != 0)
      made.unsafeGetTensorImpl()->generic_set_sizes_contiguous(size);
    if (memory_format.has_value() && *memory_format != at::MemoryFormat::Contiguous)
      made.unsafeGetTensorImpl()->empty_tensor_restride(*memory_format);
    return made;
  });
}

at::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> layout,
    std::optional<at::Device> device,
    std::optional<bool> pin_memory) {
  TENON_COUNT_KERNEL("aten::empty_strided");
  return make_empty(layout, device, pin_memory, [&] {
    at::detail::check_size_nonnegative(size);
    const auto type = c10::scalarTypeToTypeMeta(c10::dtype_or_default(dtype));
    const auto nbytes = at::detail::computeStorageNbytes(size, stride, type.itemsize());
    auto made = tensor_of_type(nbytes, type);
    made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride);
    return made;
  });
}

at::Tensor efficient_zero_tensor(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>,
    std::optional<at::Device> device,
    std::optional<bool>) {
  TENON_COUNT_KERNEL("aten::_efficientzerotensor");
  // All zeros and no memory: the dispatch key tells.
  at::native::ZeroTensorAllocator allocator(device_or_current(device));
  constexpr auto keys = kDense | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(
      size, &allocator, keys, c10::dtype_or_default(dtype), std::nullopt);
}

// Gives a tensor other sizes and, where they are given, strides; its storage grows as needed.
void resize(
    c10::TensorImpl* self, at::IntArrayRef size, at::OptionalIntArrayRef stride = std::nullopt) {
  if (self->sizes() == size && (!stride.has_value() || self->strides() == *stride))
    return;
  at::native::resize_impl_cpu_(self, size, stride, /*resize_storage=*/false);
  const auto nbytes = at::detail::computeStorageNbytes(
      self->sizes(), self->strides(), self->dtype().itemsize(), self->storage_offset());
  if (nbytes > self->storage().nbytes())
    resize_storage(*self->unsafe_storage().unsafeGetStorageImpl(), nbytes);
}

const at::Tensor& resize_(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> memory_format) {
  TENON_COUNT_KERNEL("aten::resize_");
  const c10::DeviceGuard guard(self.device());
  at::detail::check_size_nonnegative(size);
  const auto old_nbytes = self.storage().nbytes();
  resize(self.unsafeGetTensorImpl(), size);
  at::native::resize_(self, size, memory_format);  // strides in that format
  if (at::globalContext().deterministicAlgorithms() &&
      at::globalContext().deterministicFillUninitializedMemory())
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(old_nbytes));
  return self;
}

at::Tensor& set_storage_offset(
    at::Tensor& self,
    at::Storage source,
    int64_t storage_offset,
    at::IntArrayRef size,
    at::IntArrayRef stride) {
  TENON_COUNT_KERNEL("aten::set_.source_Storage_storage_offset");
  at::native::checkSetStorage(self, source, storage_offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(storage_offset);
  resize(
      self.unsafeGetTensorImpl(),
      size,
      stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt);
  return self;
}

// Whether a tensor can take the place of another one inside of the same object (`x.data = y`,
// `module.to("tenon")`). As between the CPU and the devices that PyTorch knows: when both are dense
// or both are sparse.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  using c10::BackendComponent;
  const c10::DispatchKeySet backends{BackendComponent::CPUBit, BackendComponent::PrivateUse1Bit};
  const auto a = self.key_set(), b = from.key_set();
  for (const auto functionality : {c10::DispatchKey::Dense, c10::DispatchKey::Sparse}) {
    const c10::DispatchKeySet keys(functionality);
    if (a.has_any(keys) && b.has_any(keys) && a.has_any(backends) && b.has_any(backends))
      return true;
  }
  return self.unsafeGetTensorImpl()->has_compatible_shallow_copy_type(b);
}

at::Tensor& set_empty(at::Tensor& self) {
  return set_storage_offset(self, new_storage(0, self.device().index()), 0, {0}, {});
}

bool is_plain(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_nested() && !t.is_quantized() && !t._is_zerotensor();
}

bool on_device(const at::Tensor& t) {
  return t.device().type() == kTenon;
}

CopyKind kind_of(const at::Tensor& dst, const at::Tensor& src) {
  if (!on_device(src))
    return CopyKind::host_to_device;
  return on_device(dst) ? CopyKind::device_to_device : CopyKind::device_to_host;
}

// Whether it copies one run of bytes to another, in the same order.
bool is_byte_copy(const at::Tensor& dst, const at::Tensor& src) {
  return dst.dtype() == src.dtype() && dst.sizes() == src.sizes() &&
         dst.strides() == src.strides() && dst.is_non_overlapping_and_dense() &&
         dst.is_conj() == src.is_conj() && dst.is_neg() == src.is_neg();
}

void* first_byte(const at::Tensor& t, void* storage) {
  return static_cast<char*>(storage) + t.storage_offset() * t.itemsize();
}

void copy_run_of_bytes(const at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  const auto kind = kind_of(self, src);
  auto& target_storage = *self.storage().unsafeGetStorageImpl();
  const auto& source_storage = *src.storage().unsafeGetStorageImpl();
  const void* from = kind == CopyKind::host_to_device
                         ? src.const_data_ptr()
                         : first_byte(src, settled_address(source_storage, Access::read));
  if (kind == CopyKind::device_to_host)
    return copy_bytes(self.mutable_data_ptr(), from, self.nbytes(), kind, src.device().index());
  const bool whole = self.nbytes() == target_storage.nbytes();
  if (kind == CopyKind::host_to_device && !target().host_memory) {
    void* to = first_byte(self, address_in_queue(target_storage));
    const auto buffer = buffer_of(target_storage);
    if (buffer) {
      // The source may change as soon as this is over, unless somebody said that it does not.
      const bool stays = non_blocking && at::detail::getPrivateUse1Hooks().isPinnedPtr(from);
      const auto staged = stays ? src : src.clone();
      enqueue_upload(*buffer, to, staged.const_data_ptr(), self.nbytes(), whole, [staged] {});
      return note_contents(*buffer, /*whole=*/false);
    }
  }
  void* to = first_byte(self, settled_address(target_storage, Access::write));
  const auto device = self.device().index();
  if (kind == CopyKind::device_to_device && src.device() != self.device() && !target().host_memory)
    copy_bytes_between(to, device, from, src.device().index(), self.nbytes());
  else
    copy_bytes(to, from, self.nbytes(), kind, device);
  if (const auto buffer = buffer_of(target_storage))  // else an error of what was there stays
    note_contents(*buffer, whole);
}

// Whether the target moves bytes from one of its devices to another.
bool moves_between(const at::Tensor& self, const at::Tensor& src) {
  return on_device(self) && on_device(src) && self.device() != src.device() &&
         !target().host_memory && queue_of(self.device().index()).copies_from_devices();
}

// As bytes: what is not dense, or of another dtype, is made so where it is.
void copy_between(const at::Tensor& self, const at::Tensor& src) {
  if (src.numel() > 0 && is_byte_copy(self, src))
    return copy_run_of_bytes(self, src, /*non_blocking=*/false);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto dense = src.resolve_conj().resolve_neg().contiguous();
  if (dense.numel() > 0 && is_byte_copy(self, dense))
    return copy_run_of_bytes(self, dense, /*non_blocking=*/false);
  const auto there = at::empty(dense.sizes(), dense.options().device(self.device()));
  if (dense.numel() > 0)
    copy_run_of_bytes(there, dense, /*non_blocking=*/false);
  self.copy_(there);
}

at::Tensor& copy(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  TENON_COUNT_KERNEL("aten::copy_");
  TORCH_CHECK(self.defined() && src.defined(), "copy_: tensors must be defined");
  if (self.is_same(src))
    return self;
  TORCH_CHECK_NOT_IMPLEMENTED(
      (on_device(self) || self.is_cpu()) && (on_device(src) || src.is_cpu()),
      "copy_: tenon copies to and from the CPU only, not ",
      src.device(),
      " to ",
      self.device(),
      " (sizes ",
      self.sizes(),
      "); go by way of the CPU");
  if (src._is_zerotensor()) {
    TORCH_CHECK(
        at::is_expandable_to(src.sizes(), self.sizes()),
        "The size of tensor a ",
        self.sizes(),
        " must match the size of tensor b ",
        src.sizes());
    return self.zero_();
  }
  if (self.device() == src.device() && on_device(self) && is_plain(self) && is_plain(src) &&
      record_copy(self, src, non_blocking))
    return self;
  refuse_in_capture("a copy that the host takes part in");
  const auto device = on_device(self) ? self.device() : src.device();
  const c10::DeviceGuard guard(device);
  if (moves_between(self, src) && is_plain(self) && is_plain(src)) {
    copy_between(self, src);
    return self;
  }
  // The target's own copy moves bytes within one device, or between it and the host. What happens
  // within one memory the host's kernel says: it refuses parts that overlap.
  const bool direct =
      !self.is_alias_of(src) && (target().host_memory || self.device() == src.device() ||
                                 !on_device(self) || !on_device(src));
  if (direct && is_plain(self) && is_plain(src) && is_byte_copy(self, src)) {
    if (self.numel() > 0) {
      copy_run_of_bytes(self, src, non_blocking);
    }
    return self;
  }
  HostViews views(device);
  const bool whole = is_plain(self) && self.is_non_overlapping_and_dense() &&
                     self.nbytes() == self.storage().nbytes();
  const auto host =
      views.to_host(self, whole ? HostViews::Use::replaces : HostViews::Use::replaces_part);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    host.copy_(views.to_host(src), non_blocking);
  }
  views.written(self, host);
  views.finish();
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  return dst.resize_(self.sizes()).copy_(self);
}

// A copy at once. PyTorch shares memory until one of the two is written. For that it takes the
// context of a data pointer for the memory's address, which here is the storage's buffer.
at::Tensor lazy_clone(const at::Tensor& self) {
  TENON_COUNT_KERNEL("aten::_lazy_clone");
  const auto& storage = *self.storage().unsafeGetStorageImpl();
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      copy_of(storage, storage.nbytes()), self.key_set(), self.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      self.sizes(), self.strides(), self.storage_offset());
  return made;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TENON_COUNT_KERNEL("aten::_local_scalar_dense");
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  if (target().host_memory && is_plain(self) && !self.is_conj() && !self.is_neg()) {
    refuse_in_capture("reading a number");
    const auto& storage = *self.storage().unsafeGetStorageImpl();
    static thread_local at::Tensor alias = HostAlias::make();
    void* data = settled_address(storage, Access::read);
    HostAlias::of(alias).show(*self.unsafeGetTensorImpl(), data, storage.nbytes());
    return at::native::_local_scalar_dense_cpu(alias);
  }
  // One element, not its storage.
  at::Tensor host = at::empty({}, self.options().device(at::kCPU));
  return copy(host, at::native::as_strided_tensorimpl(self, {}, {}), false).item();
}

// Where to split is for the host to know, wherever the indices lie.
std::vector<at::Tensor> tensor_split(
    const at::Tensor& self, const at::Tensor& indices_or_sections, int64_t dim) {
  return at::native::tensor_split(self, indices_or_sections.cpu(), dim);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_efficientzerotensor", efficient_zero_tensor);
  // PyTorch's own asks for a kernel by device, and has none to ask for here.
  m.impl("kaiser_window", torch::CppFunction::makeFromBoxedFunction<&run_reference>());
  m.impl("kaiser_window.periodic", torch::CppFunction::makeFromBoxedFunction<&run_reference>());
  m.impl("kaiser_window.beta", torch::CppFunction::makeFromBoxedFunction<&run_reference>());
  m.impl("as_strided", counted("aten::as_strided", at::native::as_strided_tensorimpl));
  m.impl("view", counted("aten::view", at::native::view));
  // The host's is a view as well, which its schema does not say.
  m.impl("_unsafe_view", counted("aten::view", at::native::view));
  m.impl("_reshape_alias", counted("aten::_reshape_alias", at::native::_reshape_alias));
  m.impl("unfold", counted("aten::unfold", at::native::unfold));
  m.impl("view_as_real", counted("aten::view_as_real", at::native::view_as_real));
  m.impl("view_as_complex", counted("aten::view_as_complex", at::native::view_as_complex));
  m.impl("resize_", resize_);
  m.impl("resize_as_", at::native::resize_as_);  // the template may be anywhere
  m.impl("set_.source_Storage", at::native::set_);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("set_", set_empty);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("convolution", at::native::convolution);  // calls _convolution, which can be traced
  m.impl("_lazy_clone", lazy_clone);
  // What forward-mode AD asks of a tensor and its tangent. These may lie on different devices when
  // one is copied to the other.
  m.impl("is_same_size", counted("aten::is_same_size", at::native::is_same_size));
  m.impl("_has_same_storage_numel", at::native::_has_same_storage_numel);
  m.impl("_new_zeros_with_same_feature_meta", at::native::_new_zeros_with_same_feature_meta);
  m.impl("copy_", copy);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  // The queue is in order: a block that is handed out again is written by later work.
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  m.impl("tensor_split.tensor_indices_or_sections", tensor_split);
  m.impl("_foreach_copy_", at::native::foreach_tensor_copy_list_kernel_slow_);
}

// Composed of slices, also for autograd.
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("tensor_split.tensor_indices_or_sections", tensor_split);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("copy_", copy);
  // What loads, unpickles and deep-copies a tensor puts its storage into an empty one.
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_quantized_);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}

// Where elements with these indices (D, N) lie in a dense tensor (N). PyTorch asks it by no op of
// its own, and its kernels cannot be called from here.
at::Tensor flatten_indices(const at::Tensor& indices, at::IntArrayRef size) {
  const auto strides = c10::contiguous_strides(size);
  const auto factors = at::tensor(at::IntArrayRef(strides), at::kLong).unsqueeze(1);
  return indices.cpu().mul(factors).sum(0).to(indices.device());
}

}  // namespace
}  // namespace tenon

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(flatten_indices_stub, &tenon::flatten_indices);
}  // namespace at::native
