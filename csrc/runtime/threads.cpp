#include "runtime/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <system_error>
#include <thread>
#include <vector>

namespace tenon {
namespace {

struct Team {
  int number = 0;
  int count = 1;
  bool is_in_parallel = false;
};
thread_local Team t_team;
thread_local ThreadPool* t_pool = nullptr;

void run_alone(ThreadPool::Work work, void* data) {
  const auto before = t_team;
  t_team = {0, 1, true};
  work(data);
  t_team = before;
}

// A child of a fork has no threads but the one that forked.
std::atomic<uint32_t> g_process{1};  // how many there are in the line of forks
void note_child() {
  ++g_process;
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// What comes within a few microseconds is not worth a system call; on one processor whoever waits
// keeps the other from its work.
using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kSpin{40};

// Returns when the number is another one.
void wait_for_change(const std::atomic<uint32_t>& number, uint32_t old, bool spins) {
  constexpr int kPauses = 32;
  if (spins) {
    for (const auto end = Clock::now() + kSpin; Clock::now() < end;) {
      for (int k = 0; k < kPauses; ++k) {
        if (number.load(std::memory_order_acquire) != old)
          return;
        pause();
      }
      std::this_thread::yield();  // who is waited for may be to run on this processor
    }
  }
  number.wait(old, std::memory_order_acquire);
}

}  // namespace

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0)
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
  return std::max(1u, std::thread::hardware_concurrency());  // more than a cpu_set_t has
}

struct ThreadPool::Workers {
  struct alignas(64) Worker {
    std::atomic<uint32_t> works{0};  // how many it was given
    int count = 1;                   // of the team of the last one
    std::thread thread;
  };

  explicit Workers(unsigned count) : all(count), spins(count < usable_processors()) {
    // The program's signals are its own threads'.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    for (; started < count; ++started) {
      try {
        all[started].thread = std::thread([this, k = started] { loop(all[k], k); });
      } catch (const std::system_error&) {
        break;  // fewer do the same work
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Workers() {
    ends = true;
    for (auto& worker : all) {
      wake(worker);
      if (worker.thread.joinable())
        worker.thread.join();
    }
  }

  static void wake(Worker& worker) {
    worker.works.fetch_add(1, std::memory_order_release);
    worker.works.notify_one();
  }

  void loop(Worker& self, unsigned index) {
    for (uint32_t seen = 0;; ++seen) {
      wait_for_change(self.works, seen, spins);
      if (ends)
        return;
      t_team = {static_cast<int>(index + 1), self.count, true};
      work(data);
      if (left.fetch_sub(1, std::memory_order_acq_rel) == 1)
        left.notify_one();
    }
  }

  void run(Work given, void* its_data, unsigned others) {
    work = given;
    data = its_data;
    left.store(others, std::memory_order_relaxed);
    for (unsigned k = 0; k < others; ++k) {
      all[k].count = static_cast<int>(others + 1);
      wake(all[k]);
    }
    const auto before = t_team;
    t_team = {0, static_cast<int>(others + 1), true};
    given(its_data);
    t_team = before;
    for (uint32_t now; (now = left.load(std::memory_order_acquire)) != 0;)
      wait_for_change(left, now, spins);
  }

  std::vector<Worker> all;
  const bool spins;
  unsigned started = 0;
  std::atomic<bool> ends{false};
  Work work = nullptr;
  void* data = nullptr;
  alignas(64) std::atomic<uint32_t> left{0};
};

ThreadPool::ThreadPool(unsigned threads) : threads_(std::max(1u, threads)) {
  static const int registered = pthread_atfork(nullptr, nullptr, &note_child);
  (void)registered;
}

ThreadPool::~ThreadPool() {
  if (process_ != g_process)
    (void)workers_.release();  // threads of the parent: there is nobody to join
}

// False where a parallel runs in this process.
bool ThreadPool::begin() {
  const uint32_t process = g_process;
  auto busy_in = busy_in_.load(std::memory_order_relaxed);
  return busy_in != process &&
         busy_in_.compare_exchange_strong(busy_in, process, std::memory_order_acquire);
}

void ThreadPool::end() {
  busy_in_.store(0, std::memory_order_release);
}

ThreadPool::Workers& ThreadPool::workers() {
  if (process_ != g_process) {
    (void)workers_.release();
    workers_ = std::make_unique<Workers>(threads_ - 1);
    process_ = g_process;
  }
  return *workers_;
}

void ThreadPool::parallel(Work work, void* data, unsigned threads) {
  if (threads == 0 || threads > threads_)
    threads = threads_;
  if (threads == 1 || t_team.is_in_parallel || !begin())
    return run_alone(work, data);
  auto& all = workers();
  all.run(work, data, std::min(threads - 1, all.started));
  end();
}

ThreadPool::Use::Use(ThreadPool& pool) : before_(t_pool) {
  t_pool = &pool;
}

ThreadPool::Use::~Use() {
  t_pool = before_;
}

const tenon_host_t kHostThreads = {
    sizeof(tenon_host_t),
    [](void (*work)(void*), void* data, unsigned threads) {
      t_pool != nullptr ? t_pool->parallel(work, data, threads) : run_alone(work, data);
    },
    [] { return t_team.number; },
    [] { return t_team.count; },
    [] {
      return t_pool != nullptr && !t_team.is_in_parallel ? static_cast<int>(t_pool->size()) : 1;
    }};

}  // namespace tenon
