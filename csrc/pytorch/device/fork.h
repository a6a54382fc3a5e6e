// Locks that a fork takes, so that none is held by a thread that the child does not have.
#pragma once

#include <mutex>

namespace tenon {

// In the order in which threads take them. Those up to `submissions` may be held while the
// interpreter's lock is waited for; the others never are.
enum class ForkOrder : int {
  replays,
  known_calls_file,
  queue,
  finishing,
  submissions,
  builder,
  plan_files,
  kernel_files,
  matmul_choices,
  plans,
  room,
  paces,
  record,
  known_calls,
  addresses,
  blocks,
  memory_history,
  pinned,
  generators,
  counters,
  profile,
  waits
};

// From now on a fork takes the lock, in the parent and for the child. Locks are all made while the
// package is loaded: one that a thread makes while it holds others would wait for a fork that waits
// for these. A lock that no fork takes says beside it why a child does not wait for it.
void take_at_fork(std::mutex& mutex, ForkOrder order);

// One that a fork takes from its making on; for good.
template <ForkOrder order>
struct MutexAtFork : std::mutex {
  MutexAtFork() {
    take_at_fork(*this, order);
  }
};

// The only one of its kind, made while the package is loaded, as its locks have to be. It never
// ends: threads may use it, and tensors die, when static destructors have run.
template <class T>
class OnlyOne {
 public:
  static T& get() {
    static auto* made = new T();
    (void)at_load;
    return *made;
  }

 private:
  static inline T& at_load = get();
};

// A lock under which Python runs, which may fork: the fork leaves to the thread what it has.
class HeldWhileForking {
 public:
  explicit HeldWhileForking(std::mutex& mutex);
  ~HeldWhileForking();
  HeldWhileForking(const HeldWhileForking&) = delete;
  HeldWhileForking& operator=(const HeldWhileForking&) = delete;

 private:
  std::mutex& mutex_;
};

// All are there.
void all_locks_made();

// Takes those that are held for long, before other locks that such a holder may wait for; the fork
// that follows lets go of them.
void take_long_held_locks();

// The target's queue is in use from now on.
void note_queue_in_use();

// Whether a child that is forked now would have the target's queue.
bool survives_fork();

// Whether this process is a child of one that had used such a queue, which does not survive a fork.
bool lost_by_fork();

}  // namespace tenon
