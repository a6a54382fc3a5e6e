#include "execute/host_alias.h"

#include <c10/core/AutogradState.h>

#include "device/host_allocator.h"
#include "execute/host_call.h"

namespace tenon {

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
