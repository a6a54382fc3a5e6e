#include "device/storage.h"

#include <algorithm>

#include "device/allocator.h"
#include "device/recorded.h"
#include "device/target.h"

namespace tenon {
namespace {

void release_host_storage(void* keep) {
  delete static_cast<c10::Storage*>(keep);
}

c10::Storage storage_over(c10::DataPtr data, size_t nbytes) {
  return c10::Storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      std::move(data),
      &device_allocator(),
      /*resizable=*/true);
}

}  // namespace

c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device, bool brief) {
  auto& allocator = device_allocator();
  void* block = brief ? allocator.promise_block(nbytes, device) : nullptr;
  if (block == nullptr)
    block = allocator.allocate_block(nbytes, device);
  return storage_over(data_ptr_of_block(block, device), nbytes);
}

c10::Storage to_device_storage(const c10::Storage& host, c10::DeviceIndex device) {
  const auto nbytes = host.nbytes();
  void* data = const_cast<void*>(host.data());
  if (nbytes > 0 && target().host_memory && device_allocator().device_of(data) == device) {
    return storage_over(
        {data, new c10::Storage(host), &release_host_storage, c10::Device(kTenon, device)}, nbytes);
  }
  auto made = new_storage(nbytes, device);
  copy_bytes(made.mutable_data(), data, nbytes, CopyKind::host_to_device, device);
  return made;
}

bool is_device_storage(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  const auto deleter = data.get_deleter();
  static const auto own = device_allocator().raw_deleter();
  return deleter == own || deleter == &release_host_storage || data.get() == nullptr;
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  settle(storage);
  const auto device = storage.device().index();
  auto data = data_ptr_of_block(device_allocator().allocate_block(nbytes, device), device);
  const auto kept = std::min(nbytes, storage.nbytes());
  if (kept > 0)
    copy_bytes(data.get(), storage.data(), kept, CopyKind::device_to_device, device);
  storage.set_data_ptr(std::move(data));  // the old block is free again
  storage.set_nbytes(nbytes);
}

}  // namespace tenon
