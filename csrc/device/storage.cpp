#include "device/storage.h"

#include <algorithm>

#include "device/allocator.h"
#include "device/target.h"

namespace tenon {

c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device) {
  auto& allocator = device_allocator();
  return c10::Storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      data_ptr_of_block(allocator.allocate_block(nbytes, device), device),
      &allocator,
      /*resizable=*/true);
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  const auto device = storage.device().index();
  auto data = data_ptr_of_block(device_allocator().allocate_block(nbytes, device), device);
  const auto kept = std::min(nbytes, storage.nbytes());
  if (kept > 0)
    copy_bytes(data.get(), storage.data(), kept, CopyKind::device_to_device, device);
  storage.set_data_ptr(std::move(data));  // the old block is free again
  storage.set_nbytes(nbytes);
}

}  // namespace tenon
