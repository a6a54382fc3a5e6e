#include "execute/host_views.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include "device/host_allocator.h"
#include "device/pending.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_call.h"

namespace tenon {
namespace {

bool is_sparse(const at::Tensor& t) {
  return t.layout() == at::kSparse || at::sparse_csr::is_sparse_compressed(t);
}

// The strided tensors that a tensor consists of: itself, or what a sparse one has for its indices
// and values.
std::vector<at::Tensor> parts_of(const at::Tensor& t) {
  if (t.layout() == at::kSparse)
    return {t._indices(), t._values()};
  if (!at::sparse_csr::is_sparse_compressed(t))
    return {t};
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(t);
  return {impl->compressed_indices(), impl->plain_indices(), impl->values()};
}

// Makes a sparse tensor consist of `parts`, with the sizes of `like`.
void set_parts(
    c10::TensorImpl* impl, const std::vector<at::Tensor>& parts, const at::Tensor& like) {
  if (like.layout() == at::kSparse) {
    auto* coo = static_cast<at::SparseTensorImpl*>(impl);
    coo->raw_resize_(like.sparse_dim(), like.dense_dim(), like.sizes());
    coo->set_indices_and_values_unsafe(parts[0], parts[1]);
    coo->set_coalesced(like.is_coalesced());
  } else {
    static_cast<at::SparseCsrTensorImpl*>(impl)->set_member_tensors(
        parts[0], parts[1], parts[2], like.sizes());
  }
}

// The key for tensors of the kind of `like` (dense, sparse, quantised, nested) on a device.
c10::DispatchKeySet keys_on(c10::DeviceType device, const at::Tensor& like) {
  constexpr c10::DispatchKeySet kKinds{
      c10::DispatchKey::Dense,
      c10::DispatchKey::Sparse,
      c10::DispatchKey::SparseCsr,
      c10::DispatchKey::Quantized,
      c10::DispatchKey::NestedTensor};
  const auto backend =
      device == kTenon ? c10::BackendComponent::PrivateUse1Bit : c10::BackendComponent::CPUBit;
  return (like.key_set() & kKinds) | c10::DispatchKeySet(backend);
}

at::Tensor make_sparse(
    c10::Device device, const std::vector<at::Tensor>& parts, const at::Tensor& like) {
  const auto keys = keys_on(device.type(), like);
  auto result = like.layout() == at::kSparse
                    ? at::detail::make_tensor<at::SparseTensorImpl>(keys, like.dtype())
                    : at::detail::make_tensor<at::SparseCsrTensorImpl>(
                          keys, device, like.layout(), like.dtype());
  set_parts(result.unsafeGetTensorImpl(), parts, like);
  return result;
}

at::Tensor make_strided(c10::Device device, c10::Storage storage, const at::Tensor& like) {
  const auto keys = keys_on(device.type(), like);
  if (like.is_nested()) {
    const auto* nested = at::native::get_nested_tensor_impl(like);
    return at::detail::make_tensor<at::native::NestedTensorImpl>(
        std::move(storage),
        keys | c10::DispatchKeySet(c10::DispatchKey::AutogradNestedTensor),
        like.dtype(),
        nested->get_nested_sizes(),
        nested->get_nested_strides(),
        nested->get_storage_offsets());
  }
  auto result =
      like.is_quantized()
          ? at::detail::make_tensor<at::QTensorImpl>(
                std::move(storage), keys, like.dtype(), at::get_qtensorimpl(like)->quantizer())
          : at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  result._set_conj(like.is_conj());
  result._set_neg(like.is_neg());
  if (like.unsafeGetTensorImpl()->is_wrapped_number())
    impl->set_wrapped_number(true);
  return result;
}

void require_supported(const at::Tensor& t) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      t.layout() != at::kMkldnn && t.has_storage(),
      c10::str("tenon cannot hold a tensor of the layout ", t.layout(), " (dtype ", t.dtype()),
      c10::str(", sizes ", t.sizes(), "); convert it with to_dense() first"));
}

}  // namespace

at::Tensor HostViews::to_host(const at::Tensor& t, Use use) {
  if (!t.defined() || t.device().type() != kTenon)
    return t;
  // A kernel may ask whether two arguments are the same tensor.
  const auto found = views_.find(t.unsafeGetTensorImpl());
  if (found != views_.end()) {
    if (t.has_storage())
      note_use(*t.storage().unsafeGetStorageImpl(), use);
    return found->second.host;
  }
  at::Tensor host;
  if (t._is_zerotensor()) {
    host = at::_efficientzerotensor(t.sizes(), t.options().device(at::kCPU));
  } else if (is_sparse(t)) {
    auto parts = parts_of(t);
    for (auto& part : parts)
      part = to_host(part, use);
    host = make_sparse(at::kCPU, parts, t);
  } else {
    require_supported(t);
    host = make_strided(at::kCPU, host_storage(t.storage(), use), t);
  }
  views_.emplace(t.unsafeGetTensorImpl(), View{t, host});
  // Some kernels keep what only the backward needs, and look at their arguments to know.
  // (A whole number that a comparison wrote says that it requires a gradient, too.)
  if (c10::GradMode::is_enabled() && t.requires_grad() && (t.is_floating_point() || t.is_complex()))
    host.unsafeGetTensorImpl()->set_requires_grad(true);
  return host;
}

at::Tensor HostViews::to_device(const at::Tensor& host) {
  if (!host.defined() || host.device().type() == kTenon)
    return host;
  if (host._is_zerotensor())
    return at::_efficientzerotensor(host.sizes(), host.options().device(device_));
  if (is_sparse(host)) {
    auto parts = parts_of(host);
    for (auto& part : parts)
      part = to_device(part);
    return make_sparse(device_, parts, host);
  }
  require_supported(host);
  return make_strided(device_, device_storage(host.storage()), host);
}

const c10::Storage& HostViews::host_storage(const c10::Storage& device, Use use) {
  auto* impl = device.unsafeGetStorageImpl();
  const auto found = by_device_.find(impl);
  if (found != by_device_.end()) {
    note_use(*impl, use);
    return found->second.host;
  }
  const auto nbytes = device.nbytes();
  void* address = settled_address(
      *impl,
      use == Use::reads    ? Access::read
      : use == Use::writes ? Access::update
                           : Access::write);
  c10::DataPtr data;
  if (!target().host_memory) {
    data = c10::GetAllocator(c10::kCPU)->allocate(nbytes);
    copy_bytes(data.get(), address, nbytes, CopyKind::device_to_host, device.device().index());
    bytes_copied_ += static_cast<int64_t>(nbytes);
  } else if (own_buffer(*impl) != nullptr) {
    data = host_data_ptr(buffer_of(*impl));
  } else {
    data = kept_by(device, address);
  }
  const void* host_data = data.get();
  c10::Storage host(
      c10::Storage::use_byte_size_t{},
      nbytes,
      std::move(data),
      host_allocator(),
      impl->resizable());
  by_host_.emplace(host.unsafeGetStorageImpl(), device);
  Pair pair{device, std::move(host), host_data, use == Use::replaces};
  return by_device_.emplace(impl, std::move(pair)).first->second.host;
}

// One argument may be what another one reads.
void HostViews::note_use(const c10::StorageImpl& device, Use use) {
  const auto found = by_device_.find(&device);
  if (found == by_device_.end() || !found->second.replaced || use == Use::replaces)
    return;
  found->second.replaced = false;
  const auto buffer = buffer_of(device);
  if (buffer && use != Use::replaces_part)
    settle(*buffer, Access::read);  // for its error
}

c10::Storage HostViews::device_storage(const c10::Storage& host) {
  const auto found = by_host_.find(host.unsafeGetStorageImpl());
  if (found != by_host_.end())
    return found->second;
  const auto made = to_device_storage(host, device_.index());
  if (raw_address(*made.unsafeGetStorageImpl()) != host.data())
    bytes_copied_ += static_cast<int64_t>(host.nbytes());
  results_.push_back(host);
  by_host_.emplace(host.unsafeGetStorageImpl(), made);
  return made;
}

void HostViews::written(const at::Tensor& t, const at::Tensor& host) {
  if (!t.defined() || t.device().type() != kTenon || t._is_zerotensor())
    return;
  if (is_sparse(t)) {
    auto parts = parts_of(host);
    for (auto& part : parts)
      part = to_device(part);
    set_parts(t.unsafeGetTensorImpl(), parts, host);
  } else if (!t.is_nested()) {
    auto* impl = t.unsafeGetTensorImpl();
    if (!impl->storage().is_alias_of(device_storage(host.storage())))
      impl->set_storage_keep_dtype(device_storage(host.storage()));
    if (impl->sizes() != host.sizes() || impl->strides() != host.strides() ||
        impl->storage_offset() != host.storage_offset())
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    // Some kernels leave the conjugate of their result in an `out=`.
    t._set_conj(host.is_conj());
    t._set_neg(host.is_neg());
    // What is written to a quantised tensor brings its scale along.
    if (t.is_quantized() && host.is_quantized())
      at::get_qtensorimpl(t)->set_quantizer_(at::get_qtensorimpl(host)->quantizer());
  }
  for (const auto& part : parts_of(t)) {
    const auto pair = by_device_.find(part.storage().unsafeGetStorageImpl());
    if (pair != by_device_.end())
      pair->second.written = true;
  }
}

void HostViews::finish() {
  for (auto& [impl, pair] : by_device_) {
    take_over(pair);
    const auto buffer = pair.replaced ? buffer_of(*pair.device.unsafeGetStorageImpl()) : nullptr;
    if (buffer)
      note_contents(*buffer, /*whole=*/true);
  }
}

void HostViews::take_over(Pair& pair) {
  auto& device = *pair.device.unsafeGetStorageImpl();
  const auto index = device.device().index();
  const auto nbytes = pair.host.nbytes();
  const bool replaced = pair.host.data() != pair.host_data;
  if (replaced && target().host_memory)
    return replace_memory(device, to_device_storage(pair.host, index));
  if (nbytes != device.nbytes())
    resize_storage(device, nbytes);
  if (!target().host_memory && (replaced || pair.written)) {
    upload(device, pair.host);
    bytes_copied_ += static_cast<int64_t>(nbytes);
  }
}

HostAlias::HostAlias(c10::Storage storage)
    : TensorImpl(
          std::move(storage),
          c10::DispatchKeySet(c10::DispatchKey::CPU),
          c10::scalarTypeToTypeMeta(at::kFloat)),
      made_with_(storage_.unsafeGetStorageImpl()) {}

at::Tensor HostAlias::make() {
  // One that is made in inference mode stays for good what autograd refuses.
  auto& state = c10::AutogradState::get_tls_state();
  const Exchanged<c10::AutogradState> normal(state, {true, false, true, true});
  return at::detail::make_tensor<HostAlias>(borrowed(nullptr, 0));
}

void HostAlias::show(const c10::TensorImpl& like, void* data, size_t nbytes) {
  auto* storage = storage_.unsafeGetStorageImpl();
  storage->set_data_ptr_noswap({data, c10::Device(c10::kCPU)});
  storage->set_nbytes(nbytes);
  const auto keys = key_set_;
  copy_generic_tensor_metadata(&like, this);
  key_set_ = keys;
  device_opt_ = c10::Device(c10::kCPU);
  allow_tensor_metadata_change_ = true;
  extra_meta_.reset();
}

bool HostAlias::is_free() const {
  return storage_.unsafeGetStorageImpl() == made_with_ && storage_.use_count() == 1;
}

}  // namespace tenon
