// The pool of threads that kernels use.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"
#include "runtime/forked.h"
#include "runtime/threads.h"

using namespace tenon;

namespace {

// What each thread of a parallel saw.
struct Seen {
  std::vector<std::atomic<int>> times = std::vector<std::atomic<int>>(16);
  std::atomic<int> count{0};
};

void note(void* data) {
  auto& seen = *static_cast<Seen*>(data);
  ++seen.times.at(static_cast<size_t>(kHostThreads.thread_number()));
  seen.count = kHostThreads.threads();
}

bool ran_on(ThreadPool& pool, unsigned asked, int expected) {
  Seen seen;
  pool.parallel(&note, &seen, asked);
  for (int k = 0; k < 16; ++k) {
    if (seen.times[static_cast<size_t>(k)] != (k < expected ? 1 : 0))
      return false;
  }
  return seen.count == expected && kHostThreads.threads() == 1 && kHostThreads.thread_number() == 0;
}

}  // namespace

TEST(a_parallel_has_each_thread_once) {
  for (const unsigned size : {1u, 2u, 7u}) {
    ThreadPool pool(size);
    for (int k = 0; k < 200; ++k) {
      // More than there are: they run it several times.
      for (unsigned asked = 0; asked <= 2 * size + 1; ++asked)
        CHECK(ran_on(pool, asked, static_cast<int>(size == 1 ? 1 : asked == 0 ? size : asked)));
    }
  }
}

TEST(threads_that_sleep_wake_up) {
  ThreadPool pool(3);
  for (int k = 0; k < 5; ++k) {
    CHECK(ran_on(pool, 0, 3));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(a_parallel_in_another_has_its_thread_alone) {
  ThreadPool pool(3);
  const ThreadPool::Use use(pool);
  CHECK(kHostThreads.most_threads() == 3);
  std::atomic<int> inner{0};
  const auto outer = [](void* data) {
    const auto number = kHostThreads.thread_number();
    Seen seen;
    kHostThreads.parallel(&note, &seen, 0);
    *static_cast<std::atomic<int>*>(data) += seen.times[0] == 1 && seen.count == 1 &&
                                             kHostThreads.thread_number() == number &&
                                             kHostThreads.threads() == 3;
  };
  kHostThreads.parallel(outer, &inner, 0);
  CHECK(inner == 3);
}

TEST(a_pool_that_is_busy_leaves_the_caller_alone) {
  ThreadPool pool(2);
  std::atomic<int> sum{0};
  const auto work = [&] {
    for (int k = 0; k < 2000; ++k) {
      Seen seen;
      pool.parallel(&note, &seen, 0);
      CHECK(seen.times[0] == 1 && (seen.count == 1 || (seen.count == 2 && seen.times[1] == 1)));
      ++sum;
    }
  };
  std::thread other(work);
  work();
  other.join();
  CHECK(sum == 4000);
}

TEST(without_a_pool_there_is_one_thread) {
  Seen seen;
  kHostThreads.parallel(&note, &seen, 4);
  CHECK(seen.times[0] == 1 && seen.count == 1 && kHostThreads.most_threads() == 1);
}

TEST(a_child_of_a_fork_has_threads_of_its_own) {
  ThreadPool pool(3);
  CHECK(ran_on(pool, 0, 3));
  const auto child = fork();
  if (child == 0) {
    bool right = true;
    for (int k = 0; k < 10; ++k)
      right = right && ran_on(pool, 0, 3);
    _exit(right ? 0 : 1);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(ran_on(pool, 0, 3));
}

TEST(a_child_of_a_fork_has_what_threads_took_turns_with_anew) {
  TakingTurns<std::vector<int>> turns;
  std::atomic<bool> begun{false}, ends{false};
  std::thread other([&] {
    turns.use([&](auto& numbers) {
      numbers.assign(1000, 1);
      begun = true;
      while (!ends)
        std::this_thread::yield();
    });
  });
  while (!begun)
    std::this_thread::yield();
  const auto child = fork();
  if (child == 0) {
    alarm(20);
    const bool is_new = turns.use([](auto& numbers) { return numbers.empty(); });
    const TakingTurns<int> made_here;
    _exit(is_new ? 0 : 1);
  }
  ends = true;
  other.join();
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(turns.use([](auto& numbers) { return numbers.size(); }) == 1000);
}

TEST(an_empty_parallel_takes_microseconds) {
  using Clock = std::chrono::steady_clock;
  ThreadPool pool(2);
  const auto nothing = [](void*) {};
  std::vector<double> times(5000);
  for (auto& time : times) {
    const auto start = Clock::now();
    pool.parallel(nothing, nullptr, 0);
    time = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }
  std::sort(times.begin(), times.end());
  std::printf("  %.2f us, half of them up to %.2f us\n", times[0], times[times.size() / 2]);
  CHECK(times[0] < 100);  // however busy the machine is
}
