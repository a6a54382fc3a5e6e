#include "device/storage.h"

#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "device/allocator.h"
#include "device/host_allocator.h"
#include "device/memory_history.h"
#include "device/pending.h"
#include "device/target.h"

namespace tenon {
namespace {

constexpr size_t kTokens = size_t{1} << 36;  // tokens lie in so many bytes
constexpr size_t kTokenStep = 64;
constexpr size_t kReservation = size_t{1} << 40;  // and the largest tensors end in here
constexpr int kMostTries = 100;  // to have a buffer settled that other threads record calls with

// Where tokens lie.
char* first_token() {
  static char* const base = [] {
    void* got = mmap(
        nullptr,
        kReservation,
        PROT_NONE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        /*fd=*/-1,
        /*offset=*/0);
    // Where so much cannot be reserved: the first page of a process is never there.
    return got != MAP_FAILED ? static_cast<char*>(got) : nullptr;
  }();
  return base;
}

const auto* const storage_at_load [[maybe_unused]] = first_token();

// An address that stands for the buffer's memory: who reads or writes there is stopped at once.
void* token_of(const Buffer* buffer) {
  char* const base = first_token();
  // No two buffers share one but by chance, and nothing depends on it.
  const auto offset = reinterpret_cast<uintptr_t>(buffer) / kTokenStep * kTokenStep % kTokens;
  return base != nullptr ? base + kTokenStep + offset : reinterpret_cast<void*>(kTokenStep);
}

using StorageRef = c10::intrusive_ptr<c10::StorageImpl>;

thread_local bool t_tokens_do = false;
thread_local std::vector<StorageRef> t_asked;  // while they do
thread_local bool t_only_address = false;      // that changes, of a storage that lives on

// A mark of the calling thread.
const void* this_thread() {
  return &t_tokens_do;
}

// PyTorch takes it away when it comes back.
void materialize(c10::StorageImpl* storage) {
  if (t_tokens_do)
    t_asked.push_back(StorageRef::reclaim_copy(storage));
  else
    give_address(*storage);
}

c10::DataPtr data_ptr_of(BufferRef buffer, void* address) {
  const c10::Device device(kTenon, buffer->device);
  return {address, buffer.release(), &release_buffer, device};
}

// Nothing but the pointer changes at any time: another thread that looks for the buffer finds it.
// Under `record_mutex`.
void set_address(c10::StorageImpl& storage, Buffer& buffer, void* address) {
  t_only_address = true;
  storage._mutable_data_ptr_no_checks() = data_ptr_of(BufferRef::reclaim_copy(&buffer), address);
  t_only_address = false;
}

// The storage's DataPtr, whatever it holds now, is replaced.
void set_data_ptr(c10::StorageImpl& storage, c10::DataPtr data) {
  if (storage.has_materializer())
    storage.clear_materializer();
  storage.set_data_ptr_noswap(std::move(data));
}

c10::Storage make_storage(size_t nbytes, c10::DataPtr data) {
  return c10::Storage(
      c10::Storage::use_byte_size_t{},
      nbytes,
      std::move(data),
      &device_allocator(),
      /*resizable=*/true);
}

c10::Storage storage_of(BufferRef buffer) {
  const auto nbytes = buffer->nbytes;
  void* token = token_of(buffer.get());
  auto storage = make_storage(nbytes, data_ptr_of(std::move(buffer), token));
  storage.unsafeGetStorageImpl()->set_materializer(&materialize);
  return storage;
}

// The keys of a plain tensor, on the host and on the device, made in inference mode or not.
class PlainKeys : public c10::TensorImpl {
 public:
  // Those on the device that a tensor of the host with such keys has there; none for another kind.
  static std::optional<c10::DispatchKeySet> on_device(c10::DispatchKeySet host) {
    static const std::array<std::array<c10::DispatchKeySet, 2>, 2> all{
        {both_of(/*inference=*/false), both_of(/*inference=*/true)}};
    for (const auto& [on_host, on_device] : all) {
      if (host == on_host)
        return on_device;
    }
    return std::nullopt;
  }

  static void set(c10::TensorImpl& tensor, c10::DispatchKeySet keys, c10::Device device) {
    tensor.*(&PlainKeys::key_set_) = keys;
    tensor.*(&PlainKeys::device_opt_) = device;
  }

 private:
  static std::array<c10::DispatchKeySet, 2> both_of(bool inference) {
    const c10::InferenceMode mode(inference);
    const auto of = [](c10::DispatchKey key, c10::DeviceType device) {
      return c10::TensorImpl(c10::DispatchKeySet(key), caffe2::TypeMeta::Make<float>(), device)
          .key_set();
    };
    return {of(c10::DispatchKey::CPU, c10::kCPU), of(c10::DispatchKey::PrivateUse1, kTenon)};
  }
};

}  // namespace

TokensDo::TokensDo(bool here) : before_(std::exchange(t_tokens_do, here)) {}

TokensDo::~TokensDo() {
  t_tokens_do = before_;
  const auto asked = std::exchange(t_asked, {});
  std::lock_guard<std::mutex> lock(record_mutex());
  for (const auto& storage : asked) {
    const auto* buffer = own_buffer(*storage);
    if (buffer != nullptr && buffer->shown_to == nullptr && !storage->has_materializer())
      storage->set_materializer(&materialize);
  }
}

void release_buffer(void* context) {
  const auto buffer = BufferRef::reclaim(static_cast<Buffer*>(context));
  if (buffer.use_count() > 1 && !t_only_address)
    storage_died(*buffer);
}

bool is_own(const c10::StorageImpl& storage) {
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return own_buffer(storage) != nullptr || data.get() == nullptr;
}

BufferRef buffer_of(const c10::StorageImpl& storage) {
  if (auto* own = own_buffer(storage))
    return BufferRef::reclaim_copy(own);
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return data.get() != nullptr ? buffer_at(data.get()).first : BufferRef();
}

c10::Storage new_storage(size_t nbytes, c10::DeviceIndex device) {
  if (nbytes == 0)
    return make_storage(0, c10::DataPtr(nullptr, c10::Device(kTenon, device)));
  auto buffer = c10::make_intrusive<Buffer>(nbytes, device);
  note_made(*buffer);
  buffer->expect();
  return storage_of(std::move(buffer));
}

c10::Storage storage_over(
    c10::DataPtr memory, size_t nbytes, c10::DeviceIndex device, bool is_block) {
  if (nbytes == 0)
    return new_storage(0, device);
  auto buffer = c10::make_intrusive<Buffer>(nbytes, device);
  note_made(*buffer);
  buffer->take(std::move(memory), is_block);
  buffer->has_contents = true;
  return storage_of(std::move(buffer));
}

c10::DataPtr data_ptr_with_memory(size_t nbytes, c10::DeviceIndex device) {
  if (nbytes == 0)
    return {nullptr, c10::Device(kTenon, device)};
  auto buffer = c10::make_intrusive<Buffer>(nbytes, device);
  note_made(*buffer);
  buffer->take(new_block(nbytes, device));
  void* address = buffer->address();
  buffer->has_contents = true;  // or will have, and nobody says when
  register_address(*buffer);
  return data_ptr_of(std::move(buffer), address);
}

bool take_address_back(c10::StorageImpl& storage, Buffer& buffer, bool at_last) {
  const auto* shown_to = std::exchange(buffer.shown_to, nullptr);
  const bool elsewhere = shown_to != nullptr && shown_to != this_thread();
  // PyTorch takes the materializer away once it has the address, and would take away ours.
  if (elsewhere && storage.has_materializer() && !at_last) {
    buffer.shown_to = shown_to;
    return false;
  }
  // Another thread may not have looked yet at what it was told.
  if (!elsewhere)
    set_address(storage, buffer, token_of(&buffer));
  if (!storage.has_materializer())
    storage.set_materializer(&materialize);
  return true;
}

void* give_address(c10::StorageImpl& storage) {
  const auto buffer = own_buffer(storage) != nullptr ? buffer_of(storage) : BufferRef();
  if (!buffer || storage.nbytes() == 0)
    return storage._mutable_data_ptr_no_checks().get();
  for (int tries = 1;; ++tries) {
    const auto last_use = [&] {
      std::lock_guard<std::mutex> lock(record_mutex());
      return buffer->last_use;
    }();
    void* address = settled_address(storage, Access::update);
    std::lock_guard<std::mutex> lock(record_mutex());
    // Meanwhile another thread may have recorded a call that uses it.
    const bool settled = buffer->uses.empty() && buffer->last_use == last_use;
    if (!settled && tries < kMostTries)
      continue;
    register_address(*buffer);
    set_address(storage, *buffer, address);
    buffer->shown_to = this_thread();
    return address;
  }
}

void keep_address(c10::StorageImpl& storage) {
  if (own_buffer(storage) == nullptr)
    return;
  give_address(storage);
  if (storage.has_materializer())
    storage.clear_materializer();
}

void share_address(c10::StorageImpl& storage) {
  const auto buffer = buffer_of(storage);
  if (!buffer)
    return;
  // First, so that a call that another thread records from here on is not left pending.
  const auto set_shared = [&](bool shared) {
    std::lock_guard<std::mutex> lock(record_mutex());
    return std::exchange(buffer->shared, shared);
  };
  const bool before = set_shared(true);
  try {
    keep_address(storage);
  } catch (...) {
    set_shared(before);
    throw;
  }
}

void* raw_address(const c10::StorageImpl& storage) {
  if (const auto* own = own_buffer(storage))
    return own->address();
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

namespace {

// `see_to` is given the buffer, where there is one, before its address is taken.
void* address_after(const c10::StorageImpl& storage, c10::function_ref<void(Buffer&)> see_to) {
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  const auto buffer = buffer_of(storage);
  if (!buffer)
    return data.get();
  see_to(*buffer);
  if (own_buffer(storage) == nullptr)
    return data.get();
  if (void* address = buffer->address())
    return address;
  const QueueTurn turn(buffer->device);
  return buffer->memory();
}

}  // namespace

void* settled_address(const c10::StorageImpl& storage, Access access) {
  return address_after(storage, [&](Buffer& buffer) { settle(buffer, access); });
}

void* address_in_queue(const c10::StorageImpl& storage, Access access) {
  return address_after(storage, [access](Buffer& buffer) {
    commit_uses(buffer, /*writes_alone=*/access == Access::read, Touching::reason());
  });
}

void note_contents(Buffer& buffer, bool whole) {
  std::shared_ptr<Failure> before;  // ends after the lock: it may be Python's
  std::lock_guard<std::mutex> lock(record_mutex());
  buffer.has_contents = true;
  if (whole)
    before = std::move(buffer.failure);
}

void lose_contents(c10::StorageImpl& storage, std::shared_ptr<Failure> failure) {
  const auto buffer = buffer_of(storage);
  if (!buffer)
    return;
  std::lock_guard<std::mutex> lock(record_mutex());
  buffer->failure.swap(failure);  // that of before ends after the lock: it may be Python's
  buffer->quiet.store(false, std::memory_order_relaxed);
  if (own_buffer(storage) == buffer.get() && !buffer->shared)
    withdraw_address(storage, *buffer, /*at_last=*/true);
}

void upload(c10::StorageImpl& storage, const c10::Storage& host) {
  const auto nbytes = std::min(storage.nbytes(), host.nbytes());
  if (nbytes == 0)
    return;
  const auto device = storage.device().index();
  void* address = settled_address(storage, Access::write);
  if (target().host_memory)
    return copy_bytes(address, host.data(), nbytes, CopyKind::host_to_device, device);
  enqueue_upload(*buffer_of(storage), address, host.data(), nbytes, /*replaces=*/false, [host] {});
}

c10::Storage to_device_storage(const c10::Storage& host, c10::DeviceIndex device) {
  const auto nbytes = host.nbytes();
  void* data = const_cast<void*>(host.data());
  if (nbytes > 0 && target().host_memory && device_allocator().device_of(data) == device)
    return storage_over(data_ptr_keeping(host), nbytes, device, /*is_block=*/true);
  auto made = new_storage(nbytes, device);
  if (nbytes == 0)
    return made;
  upload(*made.unsafeGetStorageImpl(), host);
  return made;
}

bool move_to_device(const at::Tensor& made, c10::DeviceIndex device) {
  auto* impl = made.unsafeGetTensorImpl();
  auto* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const auto keys = PlainKeys::on_device(impl->key_set());
  if (!keys || made.use_count() > 1 || impl->autograd_meta() != nullptr ||
      c10::raw::intrusive_ptr::use_count(storage) > 1)
    return false;
  auto& data = storage->_mutable_data_ptr_no_checks();
  if (!is_device_block(data))
    return false;
  auto buffer = c10::make_intrusive<Buffer>(storage->nbytes(), device);
  buffer->take(std::move(data), /*is_block=*/true);
  buffer->has_contents = true;
  void* token = token_of(buffer.get());
  storage->set_data_ptr_noswap(data_ptr_of(std::move(buffer), token));
  storage->set_allocator(&device_allocator());
  storage->set_materializer(&materialize);
  PlainKeys::set(*impl, *keys, {kTenon, device});
  return true;
}

c10::Storage copy_of(const c10::StorageImpl& storage, size_t nbytes) {
  const auto device = storage.device().index();
  auto made = new_storage(nbytes, device);
  const auto kept = std::min(nbytes, storage.nbytes());
  const auto* before = own_buffer(storage);
  if (kept > 0 && (before == nullptr || before->has_contents)) {
    auto& after = *made.unsafeGetStorageImpl();
    void* from = settled_address(storage, Access::write);  // whatever its error
    copy_bytes(
        settled_address(after, Access::write), from, kept, CopyKind::device_to_device, device);
    const auto held = buffer_of(storage);
    std::lock_guard<std::mutex> lock(record_mutex());
    own_buffer(after)->failure = held ? held->failure : nullptr;
  }
  return made;
}

void resize_storage(c10::StorageImpl& storage, size_t nbytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  replace_memory(storage, copy_of(storage, nbytes));
}

void replace_memory(c10::StorageImpl& storage, c10::Storage by) {
  auto& from = *by.unsafeGetStorageImpl();
  const bool token = from.has_materializer();
  if (token)
    from.clear_materializer();
  set_data_ptr(storage, std::move(from._mutable_data_ptr_no_checks()));
  storage.set_nbytes(from.nbytes());
  if (token)
    storage.set_materializer(&materialize);
}

}  // namespace tenon
