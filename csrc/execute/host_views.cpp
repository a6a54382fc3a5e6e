#include "execute/host_views.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/GradMode.h>

#include "device/allocator.h"
#include "device/recorded.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_allocator.h"

namespace tenon {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// The parts of a sparse compressed tensor that hold plain indices: crow and col, or ccol and row.
std::pair<at::Tensor, at::Tensor> compressed_indices(const at::Tensor& t) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
  return {impl->compressed_indices(), impl->plain_indices()};
}

const at::Tensor& compressed_values(const at::Tensor& t) {
  return at::sparse_csr::get_sparse_csr_impl(t)->values();
}

at::Tensor make_coo(
    DispatchKey key, const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values) {
  auto result = at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(key), like.dtype());
  auto* impl = static_cast<at::SparseTensorImpl*>(result.unsafeGetTensorImpl());
  impl->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(like.is_coalesced());
  return result;
}

at::Tensor make_compressed(
    DispatchKey key,
    c10::Device device,
    const at::Tensor& like,
    const at::Tensor& compressed,
    const at::Tensor& plain,
    const at::Tensor& values) {
  auto result = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      DispatchKeySet(key), device, like.layout(), like.dtype());
  static_cast<at::SparseCsrTensorImpl*>(result.unsafeGetTensorImpl())
      ->set_member_tensors(compressed, plain, values, like.sizes());
  return result;
}

const at::native::NestedTensorImpl& nested_impl(const at::Tensor& t) {
  return *static_cast<const at::native::NestedTensorImpl*>(t.unsafeGetTensorImpl());
}

// Conjugate and negative bits: what a tensor carries beside its layout.
void copy_marks(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_conj())
    to._set_conj(true);
  if (from.is_neg())
    to._set_neg(true);
  if (from.unsafeGetTensorImpl()->is_wrapped_number())
    to.unsafeGetTensorImpl()->set_wrapped_number(true);
}

at::Tensor make_strided(
    c10::Storage storage,
    DispatchKey dense_key,
    DispatchKey quantized_key,
    DispatchKey nested_key,
    const at::Tensor& like) {
  if (like.is_nested()) {
    const auto& nested = nested_impl(like);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        std::move(storage),
        DispatchKeySet(nested_key) | DispatchKeySet(DispatchKey::AutogradNestedTensor),
        like.dtype(),
        nested.get_nested_sizes(),
        nested.get_nested_strides(),
        nested.get_storage_offsets());
  }
  at::Tensor result;
  if (like.is_quantized()) {
    result = at::detail::make_tensor<at::QTensorImpl>(
        std::move(storage),
        DispatchKeySet(quantized_key),
        like.dtype(),
        at::get_qtensorimpl(like)->quantizer());
  } else {
    result = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), DispatchKeySet(dense_key), like.dtype());
  }
  result.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  copy_marks(like, result);
  return result;
}

void require_supported(const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      t.layout() != at::kMkldnn && t.has_storage(),
      "tenon cannot hold a tensor of the layout ",
      t.layout(),
      " (dtype ",
      t.dtype(),
      ", sizes ",
      t.sizes(),
      "); convert it with to_dense() first");
}

}  // namespace

at::Tensor HostViews::to_host(const at::Tensor& t) {
  if (!t.defined() || t.device().type() != kTenon)
    return t;
  // A kernel may ask whether two arguments are the same tensor.
  const auto found = views_.find(t.unsafeGetTensorImpl());
  if (found != views_.end())
    return found->second;
  const auto host = view_on_host(t);
  views_.emplace(t.unsafeGetTensorImpl(), host);
  // Some kernels keep what only the backward needs, and look at their arguments to know.
  if (c10::GradMode::is_enabled() && t.requires_grad())
    host.unsafeGetTensorImpl()->set_requires_grad(true);
  return host;
}

at::Tensor HostViews::view_on_host(const at::Tensor& t) {
  if (t.layout() == at::kSparse) {
    return make_coo(DispatchKey::SparseCPU, t, to_host(t._indices()), to_host(t._values()));
  }
  if (at::sparse_csr::is_sparse_compressed(t)) {
    const auto [compressed, plain] = compressed_indices(t);
    return make_compressed(
        DispatchKey::SparseCsrCPU,
        c10::Device(c10::kCPU),
        t,
        to_host(compressed),
        to_host(plain),
        to_host(compressed_values(t)));
  }
  return dense_to_host(t);
}

at::Tensor HostViews::to_device(const at::Tensor& host) {
  if (!host.defined() || host.device().type() == kTenon)
    return host;
  if (host.layout() == at::kSparse) {
    return make_coo(
        DispatchKey::SparsePrivateUse1,
        host,
        to_device(host._indices()),
        to_device(host._values()));
  }
  if (at::sparse_csr::is_sparse_compressed(host)) {
    const auto [compressed, plain] = compressed_indices(host);
    return make_compressed(
        DispatchKey::SparseCsrPrivateUse1,
        device_,
        host,
        to_device(compressed),
        to_device(plain),
        to_device(compressed_values(host)));
  }
  return dense_to_device(host);
}

at::Tensor HostViews::dense_to_host(const at::Tensor& t) {
  if (t._is_zerotensor())
    return at::_efficientzerotensor(t.sizes(), t.options().device(at::kCPU));
  require_supported(t);
  return make_strided(
      host_storage(t.storage()),
      DispatchKey::CPU,
      DispatchKey::QuantizedCPU,
      DispatchKey::NestedTensorCPU,
      t);
}

at::Tensor HostViews::dense_to_device(const at::Tensor& host) {
  if (host._is_zerotensor())
    return at::_efficientzerotensor(host.sizes(), host.options().device(device_));
  require_supported(host);
  return make_strided(
      device_storage(host.storage()),
      DispatchKey::PrivateUse1,
      DispatchKey::QuantizedPrivateUse1,
      DispatchKey::NestedTensorPrivateUse1,
      host);
}

const c10::Storage& HostViews::host_storage(const c10::Storage& device) {
  auto* impl = device.unsafeGetStorageImpl();
  const auto found = by_device_.find(impl);
  if (found != by_device_.end())
    return found->second.host;
  recorded().settle(*impl);
  const auto nbytes = device.nbytes();
  c10::DataPtr data(device.mutable_data(), c10::Device(c10::kCPU));  // borrowed
  if (!target().host_memory) {
    const void* source = device.data();
    data = c10::GetAllocator(c10::kCPU)->allocate(nbytes);
    copy_bytes(data.get(), source, nbytes, CopyKind::device_to_host, device.device().index());
    bytes_copied_ += static_cast<int64_t>(nbytes);
  } else if (!target().idle(device.device().index())) {
    target().synchronize(device.device().index());
  }
  const void* host_data = data.get();
  c10::Storage host(
      c10::Storage::use_byte_size_t{},
      nbytes,
      std::move(data),
      host_allocator(),
      impl->resizable());
  by_host_.emplace(host.unsafeGetStorageImpl(), device);
  return by_device_.emplace(impl, Pair{device, std::move(host), host_data}).first->second.host;
}

c10::Storage HostViews::device_storage(const c10::Storage& host) {
  const auto found = by_host_.find(host.unsafeGetStorageImpl());
  if (found != by_host_.end())
    return found->second;
  const auto made = to_device_storage(host, device_.index());
  if (made.data() != host.data())
    bytes_copied_ += static_cast<int64_t>(host.nbytes());
  results_.push_back(host);
  by_host_.emplace(host.unsafeGetStorageImpl(), made);
  return made;
}

void HostViews::written(const at::Tensor& t, const at::Tensor& host) {
  if (!t.defined() || t.device().type() != kTenon)
    return;
  if (t.layout() == at::kSparse) {
    auto* impl = static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
    const auto indices = to_device(host._indices()), values = to_device(host._values());
    impl->raw_resize_(host.sparse_dim(), host.dense_dim(), host.sizes());
    impl->set_indices_and_values_unsafe(indices, values);
    impl->set_coalesced(host.is_coalesced());
  } else if (at::sparse_csr::is_sparse_compressed(t)) {
    const auto [compressed, plain] = compressed_indices(host);
    static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl())
        ->set_member_tensors(
            to_device(compressed),
            to_device(plain),
            to_device(compressed_values(host)),
            host.sizes());
  } else if (!t.is_nested() && !t._is_zerotensor()) {
    auto* impl = t.unsafeGetTensorImpl();
    if (!impl->storage().is_alias_of(device_storage(host.storage())))
      impl->set_storage_keep_dtype(device_storage(host.storage()));
    if (impl->sizes() != host.sizes() || impl->strides() != host.strides() ||
        impl->storage_offset() != host.storage_offset())
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    // Some kernels leave the conjugate of their result in an `out=`.
    t._set_conj(host.is_conj());
    t._set_neg(host.is_neg());
  }
  // Every storage that the tensor consists of, whatever its layout.
  const auto mark = [this](const at::Tensor& part) {
    const auto pair = by_device_.find(part.storage().unsafeGetStorageImpl());
    if (pair != by_device_.end())
      pair->second.written = true;
  };
  if (t.layout() == at::kSparse) {
    mark(t._indices());
    mark(t._values());
  } else if (at::sparse_csr::is_sparse_compressed(t)) {
    const auto [compressed, plain] = compressed_indices(t);
    mark(compressed);
    mark(plain);
    mark(compressed_values(t));
  } else if (!t._is_zerotensor()) {
    mark(t);
  }
}

void HostViews::finish() {
  for (auto& [impl, pair] : by_device_)
    take_over(pair);
}

void HostViews::take_over(Pair& pair) {
  auto& device = *pair.device.unsafeGetStorageImpl();
  const auto index = device.device().index();
  const auto nbytes = pair.host.nbytes();
  const bool replaced = pair.host.data() != pair.host_data;
  if (target().host_memory) {
    if (!replaced && nbytes == device.nbytes())
      return;
    if (replaced && nbytes > 0 && is_device_block(pair.host, index)) {
      device.set_data_ptr(adopt_host_storage(pair.host, index));
      device.set_nbytes(nbytes);
      return;
    }
    resize_storage(device, nbytes);
    if (replaced)
      copy_bytes(device.mutable_data(), pair.host.data(), nbytes, CopyKind::host_to_device, index);
    return;
  }
  if (nbytes != device.nbytes())
    resize_storage(device, nbytes);
  if (replaced || pair.written) {
    copy_bytes(device.mutable_data(), pair.host.data(), nbytes, CopyKind::host_to_device, index);
    bytes_copied_ += static_cast<int64_t>(nbytes);
  }
}

}  // namespace tenon
