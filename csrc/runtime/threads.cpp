#include "runtime/threads.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>

#include "runtime/forked.h"

namespace tenon {
namespace {

// All zeros where a thread has none: what begins as anything else lies in the library.
struct Team {
  int number = 0;
  int others = 0;  // beside it
  bool is_in_parallel = false;
};
thread_local Team t_team;
thread_local ThreadPool* t_pool = nullptr;

void run_alone(ThreadPool::Work work, void* data) {
  const auto before = t_team;
  t_team = {0, 0, true};
  work(data);
  t_team = before;
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr unsigned kMost = 1024;  // threads of a pool
constexpr unsigned kMostShares = 4 * kMost;

// What comes within a few microseconds is not worth a system call, and while a program runs its
// next kernel is soon there: a processor that has gone to sleep is 50 to 200 us late for it. On one
// processor whoever waits keeps the other from its work.
using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kSpin{40}, kSpinInUse{2000};

// Returns when the number is another one. `uses`: how many run kernels.
void wait_for_change(
    const std::atomic<uint32_t>& number, uint32_t old, bool spins, const std::atomic<int>& uses) {
  constexpr int kPauses = 32;
  const auto begin = Clock::now();
  while (spins &&
         Clock::now() - begin < (uses.load(std::memory_order_relaxed) > 0 ? kSpinInUse : kSpin)) {
    for (int k = 0; k < kPauses; ++k) {
      if (number.load(std::memory_order_acquire) != old)
        return;
      pause();
    }
    sched_yield();  // who is waited for may be to run on this processor
  }
  number.wait(old, std::memory_order_acquire);
}

}  // namespace

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  return static_cast<unsigned>(
      std::max(1l, sysconf(_SC_NPROCESSORS_ONLN)));  // more than a cpu_set_t has
}

// Work is cut into as many shares as there are threads, or more, and a thread takes one when it
// gets to it. So nobody waits for a thread that has not begun: the caller takes its share as well.
struct ThreadPool::Workers {
  Workers(unsigned count, const std::atomic<int>& uses)
      : threads(new pthread_t[count]), spins(count < usable_processors()), uses(uses) {
    // The program's signals are its own threads'.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    for (unsigned k = 0; k < count; ++k) {
      const auto run = [](void* workers) -> void* {
        static_cast<Workers*>(workers)->loop();
        return nullptr;
      };
      if (pthread_create(&threads[started], nullptr, run, this) == 0)
        ++started;  // fewer do the same work
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Workers() {
    ends = true;
    wake();
    for (unsigned k = 0; k < started; ++k)
      pthread_join(threads[k], nullptr);
  }

  void wake() {
    calls.fetch_add(1, std::memory_order_release);
    calls.notify_all();
  }

  void loop() {
    for (uint32_t seen = 0;;) {
      wait_for_change(calls, seen, spins, uses);
      seen = calls.load(std::memory_order_acquire);
      if (ends)
        return;
      take_shares();
    }
  }

  // Runs shares until none is left. What one is of stays as it is until it has run.
  void take_shares() {
    const auto before = t_team;
    for (auto now = shares.load(std::memory_order_acquire); next_of(now) < count_of(now);) {
      if (!shares.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel))
        continue;
      t_team = {static_cast<int>(next_of(now)), static_cast<int>(count_of(now)) - 1, true};
      work(data);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1)
        left.notify_one();
      now = shares.load(std::memory_order_acquire);
    }
    t_team = before;
  }

  void run(Work given, void* its_data, unsigned count) {
    work = given;
    data = its_data;
    left.store(count, std::memory_order_relaxed);
    const auto job = (shares.load(std::memory_order_relaxed) >> kJob) + 1;
    shares.store(job << kJob | uint64_t{count} << kCount, std::memory_order_release);
    wake();
    take_shares();
    for (uint32_t now; (now = left.load(std::memory_order_acquire)) != 0;)
      wait_for_change(left, now, spins, uses);
  }

  // The number of the job, which tells one from the next; how many shares it has; the next one.
  static constexpr int kJob = 32, kCount = 16;
  static unsigned next_of(uint64_t shares) {
    return static_cast<uint16_t>(shares);
  }
  static unsigned count_of(uint64_t shares) {
    return static_cast<uint16_t>(shares >> kCount);
  }

  const std::unique_ptr<pthread_t[]> threads;
  unsigned started = 0;
  const bool spins;
  const std::atomic<int>& uses;
  std::atomic<bool> ends{false};
  Work work = nullptr;
  void* data = nullptr;
  alignas(64) std::atomic<uint32_t> calls{0};
  alignas(64) std::atomic<uint64_t> shares{0};
  alignas(64) std::atomic<uint32_t> left{0};  // shares that have not run to their end
};

ThreadPool::ThreadPool(unsigned threads) : threads_(std::clamp(threads, 1u, kMost)) {}

ThreadPool::~ThreadPool() {
  if (process_ != process_number())
    (void)workers_.release();  // threads of the parent: there is nobody to join
}

// False where a parallel runs in this process.
bool ThreadPool::begin() {
  const auto process = process_number();
  auto busy_in = busy_in_.load(std::memory_order_relaxed);
  return busy_in != process &&
         busy_in_.compare_exchange_strong(busy_in, process, std::memory_order_acquire);
}

void ThreadPool::end() {
  busy_in_.store(0, std::memory_order_release);
}

ThreadPool::Workers& ThreadPool::workers() {
  if (process_ != process_number()) {
    (void)workers_.release();
    workers_ = std::make_unique<Workers>(threads_ - 1, uses_);
    process_ = process_number();
  }
  return *workers_;
}

void ThreadPool::parallel(Work work, void* data, unsigned threads) {
  if (threads == 0)
    threads = threads_;
  threads = std::min(threads, kMostShares);
  if (threads_ == 1 || threads == 1 || t_team.is_in_parallel || !begin())
    return run_alone(work, data);
  auto& all = workers();
  all.run(work, data, threads);
  end();
}

ThreadPool::Use::Use(ThreadPool& pool) : pool_(pool), before_(t_pool) {
  pool.uses_.fetch_add(1, std::memory_order_relaxed);
  t_pool = &pool;
}

ThreadPool::Use::~Use() {
  t_pool = before_;
  pool_.uses_.fetch_sub(1, std::memory_order_relaxed);
}

const tenon_host_t kHostThreads = {
    sizeof(tenon_host_t),
    [](void (*work)(void*), void* data, unsigned threads) {
      t_pool != nullptr ? t_pool->parallel(work, data, threads) : run_alone(work, data);
    },
    [] { return t_team.number; },
    [] { return t_team.others + 1; },
    [] {
      return t_pool != nullptr && !t_team.is_in_parallel ? static_cast<int>(t_pool->size()) : 1;
    }};

}  // namespace tenon
