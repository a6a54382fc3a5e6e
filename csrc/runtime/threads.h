// Threads that kernels share out their work to.
//
// A kernel knows nothing of a pool: what it calls (`tenon_host_t` in tenon.h) uses the one that is
// in use on its thread.
#pragma once

#include <atomic>
#include <memory>

#include "tenon.h"

namespace tenon {

// How many processors this process may use.
unsigned usable_processors();

class ThreadPool {
 public:
  // Its threads start with the first work that is for several.
  explicit ThreadPool(unsigned threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  unsigned size() const {
    return threads_;
  }
  // Runs work(data) on so many threads, and returns when all have; 0: on as many as there are.
  // Where it asks for more, threads run it several times, each for another number: whoever is early
  // does more. One that begins in another, or while another thread's runs, has the caller alone,
  // once. `work` does not raise.
  using Work = void (*)(void* data);
  void parallel(Work work, void* data, unsigned threads);

  // While it lives, kernels that this thread runs use that pool, whose threads stay awake.
  class Use {
   public:
    explicit Use(ThreadPool& pool);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    ThreadPool& pool_;
    ThreadPool* const before_;
  };

 private:
  struct Workers;
  bool begin();
  void end();
  Workers& workers();

  const unsigned threads_;
  std::atomic<int> uses_{0};
  // Counted by forks, as a child has neither the parent's threads nor what these were at.
  std::atomic<uint32_t> busy_in_{0};  // the process where a parallel runs; 0: none
  uint32_t process_ = 0;              // the one that `workers_` are of
  std::unique_ptr<Workers> workers_;
};

// What kernels call.
extern const tenon_host_t kHostThreads;

}  // namespace tenon
