#include "device/queue.h"

#include <array>
#include <chrono>
#include <cstring>

#include "device/fork.h"
#include "device/target.h"

namespace tenon {
namespace {

class HostQueue final : public Queue {
 public:
  void copy(void* dst, const void* src, size_t nbytes, CopyKind) override {
    std::memmove(dst, src, nbytes);
  }
  void launch(
      KernelFunction kernel,
      c10::ArrayRef<void*> pointers,
      c10::ArrayRef<int64_t> numbers,
      int64_t* status) override {
    kernel(pointers.data(), numbers.data(), status);
  }
  bool runs_calls() const override {
    return true;
  }
  void call(
      std::function<void(c10::ArrayRef<void*>)> work, c10::ArrayRef<void*> pointers) override {
    work(pointers);
  }
  Ticket commit() override {
    return 0;
  }
  bool passed(Ticket) override {
    return true;
  }
  void wait(Ticket) override {}
  double seconds(Ticket) override {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }
};

// Leaked on purpose: windows may be committed while the process exits.
std::array<std::mutex, kMostDevices>& mutexes() {
  static auto* made = new std::array<std::mutex, kMostDevices>();
  return *made;
}

thread_local std::array<bool, kMostDevices> t_held{};
thread_local int t_count = 0;

}  // namespace

std::unique_ptr<Queue> host_queue() {
  return std::make_unique<HostQueue>();
}

void take_queues_at_fork(c10::DeviceIndex count) {
  for (c10::DeviceIndex device = 0; device < count; ++device)
    take_at_fork(mutexes()[device], ForkOrder::queue);
}

bool QueueLock::holds(const std::mutex* mutex) {
  const auto& all = mutexes();
  return mutex >= all.data() && mutex < all.data() + all.size() && t_held[mutex - all.data()];
}

QueueLock::QueueLock(c10::DeviceIndex device) : device_(device) {
  if (!target().host_memory)
    deferred_.emplace();
  mutexes()[device].lock();
  t_held[device] = true;
  ++t_count;
}

QueueLock::~QueueLock() {
  --t_count;
  t_held[device_] = false;
  mutexes()[device_].unlock();
}

bool QueueLock::held(c10::DeviceIndex device) {
  return t_held[device];
}

bool QueueLock::held() {
  return t_count > 0;
}

}  // namespace tenon
