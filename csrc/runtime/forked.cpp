#include "runtime/forked.h"

#include <pthread.h>

#include <atomic>

namespace tenon {
namespace {

std::atomic<uint32_t> g_process{1};

struct All {
  std::mutex mutex;  // the fork takes it
  Forked* first = nullptr;
};

// Leaked on purpose: some of them last as long as the process.
All& all() {
  static auto& instance = *new All;
  return instance;
}

}  // namespace

uint32_t process_number() {
  static const int registered =
      pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); }, &Forked::tell_all);
  (void)registered;
  return g_process;
}

void Forked::tell_all() {
  ++g_process;
  for (auto* one = all().first; one != nullptr; one = one->next_)
    one->in_child();
  all().mutex.unlock();
}

Forked::Forked() {
  process_number();
  const std::lock_guard<std::mutex> lock(all().mutex);
  next_ = all().first;
  if (next_ != nullptr)
    next_->previous_ = this;
  all().first = this;
}

Forked::~Forked() {
  const std::lock_guard<std::mutex> lock(all().mutex);
  if (next_ != nullptr)
    next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : all().first) = next_;
}

}  // namespace tenon
