#include "record/call_in_work.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>

#include "device/buffer.h"
#include "record/op_cache.h"

namespace tenon {
namespace {

constexpr size_t kMostNested = 64;

// The calls that a thread has in work, one within another.
struct Calls {
  std::atomic<uint32_t> count{0};
  std::array<std::unique_ptr<OpKey>, kMostNested> keys;
};

// Guarded by `record_mutex`. Leaked on purpose: tensors may die after static destructors have run.
struct InUse {
  std::vector<Calls*> threads;
  Entries retired;
};

InUse& in_use() {
  static auto* instance = new InUse();
  return *instance;
}

thread_local Calls* t_calls = nullptr;  // plain memory, which costs nothing to reach
thread_local bool t_ended = false;

struct CallsOfThread : Calls {
  CallsOfThread() {
    std::lock_guard<std::mutex> lock(record_mutex());
    in_use().threads.push_back(this);
  }
  ~CallsOfThread() {
    t_calls = nullptr;
    t_ended = true;
    std::lock_guard<std::mutex> lock(record_mutex());
    std::erase(in_use().threads, this);
  }
};

Calls& calls_of_thread() {
  if (t_ended) {  // it records once more while it ends: what it uses stays for good
    auto* calls = new Calls();
    std::lock_guard<std::mutex> lock(record_mutex());
    in_use().threads.push_back(calls);
    return *(t_calls = calls);
  }
  static thread_local CallsOfThread calls;
  return *(t_calls = &calls);
}

// Makes what other threads have stored until now visible to this one; false: nobody can.
bool see_all_threads() {
  static const bool registered =
      syscall(__NR_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
  return registered && syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}

}  // namespace

CallInWork::CallInWork() {
  auto& calls = t_calls != nullptr ? *t_calls : calls_of_thread();
  // The thread's alone to change.
  const auto depth = calls.count.load(std::memory_order_relaxed);
  TORCH_CHECK(depth < kMostNested, "more than ", kMostNested, " calls within one another");
  if (C10_UNLIKELY(!calls.keys[depth]))
    calls.keys[depth] = std::make_unique<OpKey>();
  key_ = calls.keys[depth].get();
  calls.count.store(depth + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

CallInWork::~CallInWork() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (t_calls != nullptr)
    t_calls->count.store(
        t_calls->count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
}

void retire(Entries entries) {
  auto& retired = in_use().retired;
  std::move(entries.begin(), entries.end(), std::back_inserter(retired));
}

Entries retired_and_unused() {
  auto& s = in_use();
  Entries unused;
  if (s.retired.empty() || !see_all_threads())
    return unused;
  for (const auto* calls : s.threads) {
    // The caller's own call has no entry yet.
    const uint32_t own = calls == t_calls ? 1 : 0;
    if (calls->count.load(std::memory_order_relaxed) > own)
      return unused;
  }
  const auto used = std::partition(s.retired.begin(), s.retired.end(), [](const auto& entry) {
    return entry->in_windows > 0 || entry.use_count() > 1;
  });
  std::move(used, s.retired.end(), std::back_inserter(unused));
  s.retired.erase(used, s.retired.end());
  return unused;
}

}  // namespace tenon
