#include "device/queue.h"

#include <array>

#include "device/fork.h"
#include "device/target.h"

namespace tenon {
namespace {

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

thread_local std::array<bool, kMostDevices> t_held_queues{};
thread_local int t_count = 0;

}  // namespace

void take_queues_at_fork(c10::DeviceIndex count) {
  for (c10::DeviceIndex device = 0; device < count; ++device)
    take_at_fork(mutexes()[device], ForkOrder::queue);
}

bool QueueLock::holds(const std::mutex* one) {
  const auto& all = mutexes();
  return one >= all.data() && one < all.data() + all.size() && t_held_queues[one - all.data()];
}

QueueLock::QueueLock(c10::DeviceIndex device) : device_(device) {
  if (!target().host_memory && target().python_queue)
    deferred_.emplace();
  mutexes()[device].lock();
  t_held_queues[device] = true;
  ++t_count;
}

QueueLock::~QueueLock() {
  std::vector<Ticket> over;  // they may take the interpreter's lock to go
  over.swap(all_commits()[device_]);
  --t_count;
  t_held_queues[device_] = false;
  mutexes()[device_].unlock();
}

std::vector<Ticket>& QueueLock::commits(c10::DeviceIndex device) {
  return all_commits()[device];
}

bool QueueLock::held(c10::DeviceIndex device) {
  return t_held_queues[device];
}

bool QueueLock::held() {
  return t_count > 0;
}

}  // namespace tenon
