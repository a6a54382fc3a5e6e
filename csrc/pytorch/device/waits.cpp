#include "device/waits.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

#include "device/fork.h"
#include "runtime/queue.h"

namespace tenon {
namespace {

struct Waits {
  std::mutex mutex;
  std::vector<const Waiting*> all;
};

// Leaked on purpose: threads may still wait while the process exits.
Waits& waits() {
  static auto* instance = [] {
    auto* made = new Waits();
    take_at_fork(made->mutex, ForkOrder::waits);
    return made;
  }();
  return *instance;
}

const auto& waits_at_load [[maybe_unused]] = waits();

}  // namespace

std::vector<Waiting> all_waiting() {
  std::vector<Waiting> found;
  const std::lock_guard<std::mutex> lock(waits().mutex);
  for (const auto* one : waits().all)
    found.push_back(*one);
  return found;
}

NotedWait::NotedWait(c10::DeviceIndex device, const char* reason)
    : noted_{device, reason, host_seconds(), syscall(SYS_gettid)} {
  const std::lock_guard<std::mutex> lock(waits().mutex);
  waits().all.push_back(&noted_);
}

NotedWait::~NotedWait() {
  const std::lock_guard<std::mutex> lock(waits().mutex);
  std::erase(waits().all, &noted_);
}

}  // namespace tenon
