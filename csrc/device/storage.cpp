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

}  // namespace

c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device) {
  auto& allocator = device_allocator();
  return c10::Storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      data_ptr_of_block(allocator.allocate_block(nbytes, device), device),
      &allocator,
      /*resizable=*/true);
}

c10::DataPtr adopt_host_storage(const c10::Storage& host, c10::DeviceIndex device) {
  return {
      const_cast<void*>(host.data()),
      new c10::Storage(host),
      &release_host_storage,
      c10::Device(kTenon, device)};
}

bool is_device_storage(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  const auto deleter = data.get_deleter();
  static const auto own = device_allocator().raw_deleter();
  return deleter == own || deleter == &release_host_storage || data.get() == nullptr;
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  recorded().settle(storage);
  const auto device = storage.device().index();
  auto data = data_ptr_of_block(device_allocator().allocate_block(nbytes, device), device);
  const auto kept = std::min(nbytes, storage.nbytes());
  if (kept > 0)
    copy_bytes(data.get(), storage.data(), kept, CopyKind::device_to_device, device);
  storage.set_data_ptr(std::move(data));  // the old block is free again
  storage.set_nbytes(nbytes);
}

}  // namespace tenon
