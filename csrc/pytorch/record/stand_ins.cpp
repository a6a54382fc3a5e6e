#include "record/stand_ins.h"

#include <ATen/ops/zeros.h>

#include <cstring>
#include <unordered_map>

#include "device/storage.h"
#include "device/target.h"
#include "record/layout.h"

namespace tenon {
namespace {

c10::Storage zeros_like(const c10::StorageImpl& storage) {
  auto made = new_storage(storage.nbytes(), storage.device().index());
  if (storage.nbytes() == 0)
    return made;
  auto& impl = *made.unsafeGetStorageImpl();
  if (target().host_memory) {
    std::memset(settled_address(impl, Access::write), 0, storage.nbytes());
    note_contents(*own_buffer(impl), /*whole=*/true);
  } else {
    upload(impl, at::zeros({static_cast<int64_t>(storage.nbytes())}, at::kByte).storage());
  }
  return made;
}

}  // namespace

torch::jit::Stack stand_ins_of(c10::ArrayRef<c10::IValue> arguments) {
  std::unordered_map<const void*, c10::Storage> storages;
  const auto stand_in = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.device().type() != kTenon)
      return tensor;
    const auto& storage = *tensor.storage().unsafeGetStorageImpl();
    auto& zeros = storages[&storage];
    if (!zeros)
      zeros = zeros_like(storage);
    auto impl = tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(/*version_counter=*/0, true);
    impl->set_storage_keep_dtype(zeros);
    impl->set_requires_grad(tensor.requires_grad());
    return at::Tensor(std::move(impl));
  };
  torch::jit::Stack found;
  for (const auto& argument : arguments)
    found.push_back(map_tensors(argument, stand_in));
  return found;
}

}  // namespace tenon
