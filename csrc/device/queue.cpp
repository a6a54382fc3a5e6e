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
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return passed_at(std::chrono::duration<double>(now).count());
  }
};

class PassedCommit final : public Commit {
 public:
  PassedCommit(double seconds, std::shared_ptr<Failure> failure)
      : seconds_(seconds), failure_(std::move(failure)) {}
  bool passed() override {
    return true;
  }
  void wait() override {}
  double seconds() override {
    return seconds_;
  }
  std::shared_ptr<Failure> failure() override {
    return failure_;
  }

 private:
  const double seconds_;
  const std::shared_ptr<Failure> failure_;
};

// Leaked on purpose: windows may be committed while the process exits.
std::array<std::mutex, kMostDevices>& mutexes() {
  static auto* made = new std::array<std::mutex, kMostDevices>();
  return *made;
}

// Each by the lock of its device.
std::array<std::vector<Ticket>, kMostDevices>& all_commits() {
  static auto* made = new std::array<std::vector<Ticket>, kMostDevices>();
  return *made;
}

thread_local std::array<bool, kMostDevices> t_held{};
thread_local int t_count = 0;

}  // namespace

std::unique_ptr<Queue> host_queue() {
  return std::make_unique<HostQueue>();
}

Ticket passed_at(double seconds, std::shared_ptr<Failure> failure) {
  return std::make_shared<PassedCommit>(seconds, std::move(failure));
}

void take_queues_at_fork(c10::DeviceIndex count) {
  for (c10::DeviceIndex device = 0; device < count; ++device)
    take_at_fork(mutexes()[device], ForkOrder::queue);
}

bool QueueLock::holds(const void* mutex) {
  const auto& all = mutexes();
  const auto* one = static_cast<const std::mutex*>(mutex);
  return one >= all.data() && one < all.data() + all.size() && t_held[one - all.data()];
}

QueueLock::QueueLock(c10::DeviceIndex device) : device_(device) {
  if (!target().host_memory)
    deferred_.emplace();
  mutexes()[device].lock();
  t_held[device] = true;
  ++t_count;
}

QueueLock::~QueueLock() {
  std::vector<Ticket> over;  // they may take the interpreter's lock to go
  over.swap(all_commits()[device_]);
  --t_count;
  t_held[device_] = false;
  mutexes()[device_].unlock();
}

std::vector<Ticket>& QueueLock::commits(c10::DeviceIndex device) {
  return all_commits()[device];
}

bool QueueLock::held(c10::DeviceIndex device) {
  return t_held[device];
}

bool QueueLock::held() {
  return t_count > 0;
}

}  // namespace tenon
