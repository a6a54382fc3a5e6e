#include "distributed/host_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "device/interpreter.h"
#include "device/storage.h"
#include "device/target.h"

namespace tenon {
namespace {

// What keeps memory that the host works on: the storage, and its buffer, where somebody gives the
// storage another size meanwhile.
struct Kept {
  c10::Storage storage;
  BufferRef buffer;
};

// Gloo takes the number of elements from a tensor's place on: those with gaps have others there.
bool has_gaps(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_non_overlapping_and_dense();
}

}  // namespace

// Over the device's memory, whose storage lives as long as the host's does.
at::Tensor HostTensors::over_memory_of(const at::Tensor& t, Use use) {
  auto* impl = t.storage().unsafeGetStorageImpl();
  void* address = settled_address(
      *impl,
      use == Use::reads     ? Access::read
      : use == Use::updates ? Access::update
                            : Access::write);
  auto buffer = buffer_of(*impl);
  if (buffer && use == Use::writes && t.is_non_overlapping_and_dense() &&
      t.nbytes() == impl->nbytes())
    replaced_.push_back(t);
  c10::Storage host(
      c10::Storage::use_byte_size_t{},
      impl->nbytes(),
      kept_by(Kept{t.storage(), std::move(buffer)}, address));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(host), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  // Some of Gloo's collectives divide by the first size.
  const int64_t one = 1;
  const bool is_number = t.dim() == 0;
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      is_number ? at::IntArrayRef(one) : t.sizes(),
      is_number ? at::IntArrayRef(one) : t.strides(),
      t.storage_offset());
  return made;
}

at::Tensor HostTensors::to_host(const at::Tensor& t, Use use) {
  TORCH_CHECK(t.defined(), collective_, ": a tensor is undefined");
  if (!device_)
    device_ = t.device();
  TORCH_CHECK(
      t.device() == *device_ && t.device().type() == kTenon,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      c10::str(*device_, " and ", t.device(), "! (in the collective ", collective_, ")"));
  TORCH_CHECK_NOT_IMPLEMENTED(
      (t.layout() == at::kStrided || t.layout() == at::kSparse) && !t.is_nested() &&
          !t.is_quantized() && !t.is_conj() && !t.is_neg() && !t._is_zerotensor(),
      c10::str(collective_, " takes dense and sparse tensors, not one of layout ", t.layout()),
      c10::str(", dtype ", t.dtype(), ", sizes ", t.sizes()),
      " that is nested, quantised, or the conjugate or negative of another (resolve_conj(), "
      "resolve_neg())");
  if (t.layout() == at::kStrided && target().host_memory && !has_gaps(t))
    return over_memory_of(t, use);
  return copy_of(t, use);
}

at::Tensor HostTensors::copy_of(const at::Tensor& t, Use use) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::Tensor host;
  if (t.layout() == at::kSparse) {
    host = t.to(at::kCPU);
  } else {
    const auto pinned = t.options().device(at::kCPU).pinned_memory(true);
    if (t.dim() == 0)
      host = at::empty({1}, pinned);
    else if (has_gaps(t))
      host = at::empty(t.sizes(), pinned);
    else
      host = at::empty_strided(t.sizes(), t.strides(), pinned);
    if (use != Use::writes)
      host.copy_(t);
  }
  if (use != Use::reads)
    written_.push_back({t, host});
  return host;
}

std::vector<at::Tensor> HostTensors::to_host(const std::vector<at::Tensor>& tensors, Use use) {
  std::vector<at::Tensor> host;
  host.reserve(tensors.size());
  for (const auto& t : tensors)
    host.push_back(to_host(t, use));
  return host;
}

std::vector<std::vector<at::Tensor>> HostTensors::to_host(
    const std::vector<std::vector<at::Tensor>>& lists, Use use) {
  std::vector<std::vector<at::Tensor>> host;
  host.reserve(lists.size());
  for (const auto& tensors : lists)
    host.push_back(to_host(tensors, use));
  return host;
}

void HostTensors::bring_back() {
  const WithoutInterpreter no_gil;  // another thread that copies may need it
  const std::lock_guard<std::mutex> lock(mutex_);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (auto& [device, host] : written_)
    device.copy_(host.dim() != device.dim() ? host.squeeze() : host, /*non_blocking=*/true);
  written_.clear();
  for (const auto& t : replaced_) {
    if (const auto buffer = buffer_of(*t.storage().unsafeGetStorageImpl()))
      note_contents(*buffer, /*whole=*/true);
  }
  replaced_.clear();
}

}  // namespace tenon
