#include "device/buffer.h"

#include <cstdlib>

#include "device/allocator.h"
#include "device/fork.h"
#include "device/host_allocator.h"
#include "device/interpreter.h"
#include "device/memory_history.h"
#include "device/pending.h"
#include "device/profile.h"
#include "device/ranges.h"
#include "device/target.h"

namespace tenon {
namespace {

struct Addresses {
  MutexAtFork<ForkOrder::addresses> mutex;
  Ranges<Buffer*> buffers;  // each removes itself when it ends
};

Addresses& addresses() {
  return OnlyOne<Addresses>::get();
}

}  // namespace

std::mutex& record_mutex() {
  return OnlyOne<MutexAtFork<ForkOrder::record>>::get();
}

namespace {

// Memory of buffers that ended on this thread.
struct Unused {
  struct Next {
    Next* next;
  };
  Next* first;
  size_t count;

  void* take() {
    if (first == nullptr)
      return nullptr;
    --count;
    return std::exchange(first, first->next);
  }
};
constexpr size_t kMostUnused = 2048;
thread_local Unused* t_unused = nullptr;

struct UnusedOfThread : Unused {
  UnusedOfThread() : Unused{nullptr, 0} {
    t_unused = this;
  }
  ~UnusedOfThread() {
    t_unused = nullptr;
    while (void* ptr = take())
      std::free(ptr);
  }
};

}  // namespace

void* Buffer::operator new(size_t size) {
  if (C10_UNLIKELY(t_unused == nullptr)) {
    static thread_local UnusedOfThread unused;
    (void)unused;
  }
  void* ptr = t_unused != nullptr ? t_unused->take() : nullptr;
  if (ptr == nullptr)
    ptr = std::malloc(size);
  TORCH_CHECK(ptr != nullptr, "the host has no memory for another tensor");
  return ptr;
}

void Buffer::operator delete(void* ptr) {
  if (t_unused == nullptr || t_unused->count >= kMostUnused)
    return std::free(ptr);
  auto* next = static_cast<Unused::Next*>(ptr);
  next->next = std::exchange(t_unused->first, next);
  ++t_unused->count;
}

Buffer::~Buffer() {
  forget_made(*this);
  free_memory();
}

void Buffer::expect() {
  device_allocator().expect(nbytes, device);
  expected_ = true;
}

void Buffer::stop_expecting() {
  if (std::exchange(expected_, false))
    device_allocator().stop_expecting(nbytes, device);
}

void* Buffer::memory() {
  if (!memory_) {
    stop_expecting();
    take(device_block(nbytes, device));
  }
  return memory_.get();
}

void Buffer::take(c10::DataPtr memory, bool is_block) {
  stop_expecting();
  memory_ = std::move(memory);
  note_memory_of(*this, memory_.get());
  // Beyond the device's limit a window's results come from the host, and count all the same.
  expected_ =
      !is_block && target().host_memory && !device_allocator().device_of(memory_.get()).has_value();
  if (expected_)
    device_allocator().count_overflow(nbytes, device);
}

void Buffer::free_memory() {
  stop_expecting();
  if (registered) {
    std::lock_guard<std::mutex> lock(addresses().mutex);
    addresses().buffers.remove(memory_.get());
    registered = false;
  }
  memory_.clear();
}

void settle(Buffer& buffer, Access access) {
  const auto touching = Touching::reason();
  const bool writes = access != Access::read && touching == CommitReason::host_read;
  ProfiledWait waits(name_of(writes ? CommitReason::host_write : touching), buffer.device);
  // What reads it may still run while it is read.
  if (!commit_uses(buffer, /*writes_alone=*/access == Access::read, touching)) {
    waits.cancel();  // what was submitted before is waited for below
    if (access == Access::read && touching == CommitReason::host_read)
      end_window_at_read(buffer.device);
  }
  Submission submission = 0;
  std::shared_ptr<Failure> failure;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    buffer.has_contents = true;  // what is in its memory by then
    submission = access == Access::read ? buffer.last_write : buffer.last_use;
  }
  wait_for_submission(
      buffer.device, submission, access == Access::read ? "the host reads" : "the host writes");
  if (access == Access::write)
    return;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    failure = buffer.failure;
  }
  if (failure)
    failure->raise();
}

std::pair<BufferRef, size_t> buffer_at(const void* ptr) {
  std::lock_guard<std::mutex> lock(addresses().mutex);
  const auto [found, offset] = addresses().buffers.find(ptr);
  if (found == nullptr)
    return {BufferRef(), 0};
  // One that ends on another thread waits for this lock, to take itself out: its count of uses is
  // there, and nobody may raise it from 0.
  return {BufferRef::reclaim(c10::raw::weak_intrusive_ptr::lock(*found)), offset};
}

void register_address(Buffer& buffer) {
  if (buffer.registered || buffer.address() == nullptr)
    return;
  buffer.registered = true;
  std::lock_guard<std::mutex> lock(addresses().mutex);
  addresses().buffers.add(buffer.address(), buffer.nbytes, &buffer);
}

}  // namespace tenon
