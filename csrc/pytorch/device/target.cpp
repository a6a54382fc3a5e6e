#include "device/target.h"

#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <thread>

#include "device/counters.h"
#include "device/fork.h"
#include "device/generator.h"
#include "device/interpreter.h"
#include "device/interrupts.h"
#include "device/profile.h"
#include "runtime/several_queues.h"

namespace tenon {
namespace {

// Of a wait in which signals are looked for: how long it only yields; then it sleeps a share of
// what it has taken, at most so long. How often it looks for signals.
constexpr std::chrono::microseconds kMostYielding{50};
constexpr int kShare = 32;
constexpr std::chrono::milliseconds kLongestSleep{2};
constexpr std::chrono::milliseconds kBetweenSignals{20};

// Leaked on purpose: tensors may die after static destructors have run.
std::optional<Target>& slot() {
  static auto* target = new std::optional<Target>();
  return *target;
}

void note_queue_use() {
  TORCH_CHECK(
      !lost_by_fork(),
      "this process was forked from one that uses tenon, and the queue of the target '",
      target().name,
      "' stayed there; start it by spawn: multiprocessing.get_context('spawn')");
  note_queue_in_use();
}

struct Waits {
  MutexAtFork<ForkOrder::waits> mutex;
  std::list<Waiting> all;
};

Waits& waits() {
  return OnlyOne<Waits>::get();
}

// The calling thread waits, until the end of the scope.
class NotedWait {
 public:
  NotedWait(c10::DeviceIndex device, const char* reason) {
    const std::lock_guard<std::mutex> lock(waits().mutex);
    waits().all.push_front({device, reason, host_seconds(), syscall(SYS_gettid)});
    noted_ = waits().all.begin();
  }
  ~NotedWait() {
    const std::lock_guard<std::mutex> lock(waits().mutex);
    waits().all.erase(noted_);
  }
  NotedWait(const NotedWait&) = delete;
  NotedWait& operator=(const NotedWait&) = delete;

 private:
  std::list<Waiting>::iterator noted_;
};

// Returns once the device has passed a commit. The `wait` of a library cannot be interrupted, so
// the library is asked now and then. Raises what a signal's handler raises.
void wait_for_signals_as_well(Commit& commit) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  auto looked = start;
  while (!commit.passed()) {
    const auto now = Clock::now();
    if (now - start < kMostYielding) {
      std::this_thread::yield();
      continue;
    }
    if (now - looked > kBetweenSignals) {
      looked = now;
      run_signal_handlers();
    }
    const std::chrono::nanoseconds share = (now - start) / kShare;
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(share, kLongestSleep));
  }
}

}  // namespace

void set_target(Target target) {
  TORCH_CHECK(!slot().has_value(), "tenon has the target '", slot()->name, "' already");
  TORCH_CHECK(
      target.device_count >= 1, "The target '", target.name, "' has no devices to work with");
  slot() = std::move(target);
  take_queues_at_fork(slot()->device_count);
  take_generators_at_fork();
  all_locks_made();
}

const Target& target() {
  TORCH_CHECK(slot().has_value(), "tenon has no target: import torch_tenon first");
  return *slot();
}

bool has_target() noexcept {
  return slot().has_value();
}

c10::DeviceIndex device_count() noexcept {
  return has_target() ? slot()->device_count : c10::DeviceIndex{0};
}

Queue& queue_of(c10::DeviceIndex device) {
  note_queue_use();
  return *target().queues[device];
}

c10::DeviceIndex check_index(c10::DeviceIndex index) {
  if (index == -1)
    return current_device();
  const auto count = target().device_count;
  TORCH_CHECK(
      index >= 0 && index < count,
      "tenon:",
      static_cast<int>(index),
      " does not exist: the target '",
      target().name,
      "' has ",
      static_cast<int>(count),
      count == 1 ? " device, tenon:0" : " devices, counted from tenon:0",
      " (TENON_DEVICES sets how many the cpu target has)");
  return index;
}

Ticket commit_part(c10::DeviceIndex device) {
  auto ticket = queue_of(device).commit();
  if (QueueLock::held(device) && ticket)
    QueueLock::commits(device).push_back(ticket);
  return ticket;
}

Ticket commit_whole(c10::DeviceIndex device) {
  auto last = commit_part(device);
  const auto& parts = QueueLock::commits(device);
  return QueueLock::held(device) && parts.size() > 1 ? all_of(parts) : last;
}

void drain(c10::DeviceIndex device) noexcept {
  try {
    if (const auto ticket = commit_part(device))
      ticket->wait();
  } catch (...) {  // such a device is lost, and the first error says more
  }
}

void wait_for(c10::DeviceIndex device, const Ticket& ticket, const char* reason) {
  note_queue_use();
  if (!ticket || ticket->passed())
    return;
  const CountedCall counted(counter("wait", reason));
  const ProfiledWait waits(reason, device);
  const WithoutInterpreter no_gil;
  const NotedWait noted(device, reason);
  if (!target().python_queue && !QueueLock::held() && signals_come_here())
    wait_for_signals_as_well(*ticket);
  ticket->wait();
}

std::vector<Waiting> all_waiting() {
  const std::lock_guard<std::mutex> lock(waits().mutex);
  return {waits().all.begin(), waits().all.end()};
}

void wait_for_success(c10::DeviceIndex device, const Ticket& ticket, const char* reason) {
  wait_for(device, ticket, reason);
  if (!ticket)
    return;
  if (const auto failure = ticket->failure())
    failure->raise();
}

namespace {

// Enqueues a copy with `enqueue`, commits it and waits.
template <class Enqueue>
void copy_and_wait(size_t nbytes, CopyKind kind, c10::DeviceIndex device, const Enqueue& enqueue) {
  Profiled profiled(Activity::copy, device);
  if (profiled)
    note_copy(profiled, nbytes, kind);
  auto& queue = queue_of(device);
  if (target().host_memory)
    return enqueue(queue);
  const DeferredInterrupts until_the_host_s_side_is_free;
  QueueTurn turn(device);
  enqueue(queue);
  profiled.enqueued();
  const auto ticket = commit_whole(device);
  turn.end();
  // Kernels that run beside it are nothing to it.
  const auto own = ticket ? ticket->own() : nullptr;
  wait_for_success(device, own ? own : ticket, "copy");
}

}  // namespace

void copy_bytes(void* dst, const void* src, size_t nbytes, CopyKind kind, c10::DeviceIndex device) {
  if (nbytes == 0 || dst == src)
    return;
  copy_and_wait(nbytes, kind, device, [&](Queue& queue) { queue.copy(dst, src, nbytes, kind); });
}

void copy_bytes_between(
    void* dst, c10::DeviceIndex device, const void* src, c10::DeviceIndex from, size_t nbytes) {
  copy_and_wait(nbytes, CopyKind::device_to_device, device, [&](Queue& queue) {
    queue.copy_from(dst, src, from, nbytes);
  });
}

}  // namespace tenon
