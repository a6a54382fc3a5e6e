#include "device/fork.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "device/interpreter.h"
#include "device/target.h"

namespace tenon {
namespace {

using Lock = std::pair<ForkOrder, std::mutex*>;

struct Locks {
  std::mutex mutex;       // the fork takes it first
  std::vector<Lock> all;  // in their order
};

Locks& locks() {
  static auto* instance = new Locks();
  return *instance;
}

thread_local std::vector<std::mutex*> t_taken;
thread_local std::vector<const std::mutex*> t_held;  // by what may fork
thread_local bool t_forking = false;
bool g_all_made = false;  // by the locks' mutex
bool g_lost = false;
std::atomic<bool> g_in_use{false};

// Whether this thread has it already: it forks inside of what the lock guards.
bool is_held_here(const std::mutex* mutex) {
  return QueueLock::holds(mutex) ||
         std::find(t_held.begin(), t_held.end(), mutex) != t_held.end() ||
         std::find(t_taken.begin(), t_taken.end(), mutex) != t_taken.end();
}

void take(bool long_held) {
  if (!std::exchange(t_forking, true))
    locks().mutex.lock();
  for (const auto& [order, mutex] : locks().all) {
    if ((order <= ForkOrder::submissions) == long_held && !is_held_here(mutex)) {
      mutex->lock();
      t_taken.push_back(mutex);
    }
  }
}

void prepare() {
  take_long_held_locks();
  take(/*long_held=*/false);
}

void let_go() {
  for (auto mutex = t_taken.rbegin(); mutex != t_taken.rend(); ++mutex)
    (*mutex)->unlock();
  t_taken.clear();
  t_forking = false;
  locks().mutex.unlock();
}

void let_go_in_child() {
  g_lost = g_lost || !survives_fork();
  let_go();
}

}  // namespace

void take_long_held_locks() {
  const WithoutInterpreter no_gil;
  take(/*long_held=*/true);
}

void take_at_fork(std::mutex& made, ForkOrder order) {
  auto& l = locks();
  std::lock_guard<std::mutex> lock(l.mutex);
  TORCH_INTERNAL_ASSERT(!g_all_made, "a lock that no fork takes");
  static const int registered = pthread_atfork(&prepare, &let_go, &let_go_in_child);
  (void)registered;
  const auto after = [](ForkOrder order, const Lock& lock) { return order < lock.first; };
  l.all.insert(std::upper_bound(l.all.begin(), l.all.end(), order, after), {order, &made});
}

HeldWhileForking::HeldWhileForking(std::mutex& mutex) : mutex_(mutex) {
  mutex_.lock();
  t_held.push_back(&mutex);
}

HeldWhileForking::~HeldWhileForking() {
  t_held.pop_back();
  mutex_.unlock();
}

void all_locks_made() {
  std::lock_guard<std::mutex> lock(locks().mutex);
  g_all_made = true;
}

void note_queue_in_use() {
  g_in_use.store(true, std::memory_order_relaxed);
}

bool survives_fork() {
  return !g_in_use || !has_target() || target().host_memory;
}

bool lost_by_fork() {
  return g_lost;
}

}  // namespace tenon
