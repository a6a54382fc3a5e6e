// Storages of the device. The DataPtr of a storage owns its buffer.
//
// While nobody has asked for its address, a storage's data pointer is a token: an address without
// access rights. Asking for the memory (`data_ptr()`) settles the buffer and puts the address there
// (a storage's materializer); the next call that is recorded takes it away again.
#pragma once

#include <ATen/core/Tensor.h>

#include "device/buffer.h"

namespace tenon {

// An empty storage of `nbytes` on `device`, resizable; it has no memory yet.
c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device);
// The same over memory with contents.
c10::Storage storage_over(
    c10::DataPtr memory, size_t nbytes, c10::DeviceIndex device, bool is_block = false);
// A DataPtr with memory that may be written at once, for who does not know of buffers.
c10::DataPtr data_ptr_with_memory(size_t nbytes, c10::DeviceIndex device);

// A tensor's storage, which it has.
inline c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// The buffer of a storage that the device made; nullptr: it has no bytes, or somebody else made it.
inline Buffer* own_buffer(const c10::StorageImpl& storage);
// Whether the storage has a buffer of its own, or no bytes.
bool is_own(const c10::StorageImpl& storage);
// The buffer whose memory a storage lies in, own or not; nullptr where there is none.
BufferRef buffer_of(const c10::StorageImpl& storage);

// Where a storage's memory is, as it is; nullptr: it has none yet.
void* raw_address(const c10::StorageImpl& storage);

// Settles a storage's memory and gives its address. On a target whose memory is out of the host's
// reach it is one for the queue alone.
void* settled_address(const c10::StorageImpl& storage, Access access);
// Submits what was recorded with a storage, or alone what writes it. Gives its address for
// something that is enqueued next: the device orders that, and nobody waits.
void* address_in_queue(const c10::StorageImpl& storage, Access access = Access::update);

// From now on the address of a storage with that buffer has to be asked for before it is used.
// Under `record_mutex`. False: another thread is just being told, so let go of the lock and try
// again; not with `at_last`.
bool take_address_back(c10::StorageImpl& storage, Buffer& buffer, bool at_last);
inline bool withdraw_address(c10::StorageImpl& storage, Buffer& buffer, bool at_last) {
  return (storage.has_materializer() && buffer.shown_to == nullptr) ||
         take_address_back(storage, buffer, at_last);
}
// Gives it out.
void* give_address(c10::StorageImpl& storage);
// Gives it out, and the storage does not say when it is asked for.
void keep_address(c10::StorageImpl& storage);
// Gives it out for good: whatever uses the buffer runs at once from now on.
void share_address(c10::StorageImpl& storage);

// The storage's buffer is written by the host or by an op that runs at once. `whole`, for when it
// has been: all that it held is replaced, so an error that it had is gone.
void note_contents(Buffer& buffer, bool whole);
// What wrote a storage has failed on the way: who reads it gets that error.
void lose_contents(c10::StorageImpl& storage, std::shared_ptr<Failure> failure);

// Copies all that a host storage holds to the device, for a target whose memory the host cannot
// reach; the host's storage is kept until that is done, and nobody waits.
void upload(c10::StorageImpl& storage, const c10::Storage& host);

// A storage of that many bytes with what fits of another one's contents, and their error.
c10::Storage copy_of(const c10::StorageImpl& storage, size_t nbytes);
// Gives a storage another size; what fits of its content is kept, and so is its error.
void resize_storage(c10::StorageImpl& storage, size_t nbytes);
// Gives a storage another storage's memory and size.
void replace_memory(c10::StorageImpl& storage, c10::Storage by);

// A storage of `device` with what the host storage holds: over the same memory where that is a
// block of the device, else a copy. The block lives as long as both do.
c10::Storage to_device_storage(const c10::Storage& host, c10::DeviceIndex device);

// Makes a host tensor that a kernel has just made, over a block of the device, one of the device's.
// False: it is another one, or somebody else has it as well.
bool move_to_device(const at::Tensor& made, c10::DeviceIndex device);

// Memory of the host that lives as long as its keeper does, which this has.
template <class Keeper>
c10::DataPtr kept_by(Keeper keeper, void* data) {
  const auto let_go = [](void* kept) { delete static_cast<Keeper*>(kept); };
  return {data, new Keeper(std::move(keeper)), let_go, c10::Device(c10::kCPU)};
}
// All of a host storage's, and all of a buffer's where the host reaches it.
inline c10::DataPtr data_ptr_keeping(const c10::Storage& host) {
  return kept_by(host, const_cast<void*>(host.data()));
}
inline c10::DataPtr host_data_ptr(const BufferRef& buffer) {
  return kept_by(buffer, buffer->address());
}

void release_buffer(void* context);

inline Buffer* own_buffer(const c10::StorageImpl& storage) {
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get_deleter() == &release_buffer ? static_cast<Buffer*>(data.get_context()) : nullptr;
}

// While one lives, who asks PyTorch on this thread for the address of the device's tensor gets its
// token. Nothing runs: for code that asks and looks at layouts alone, as its iterators do.
class TokensDo {
 public:
  explicit TokensDo(bool here = true);
  ~TokensDo();
  TokensDo(const TokensDo&) = delete;
  TokensDo& operator=(const TokensDo&) = delete;

 private:
  const bool before_;
};

}  // namespace tenon
