#include "runtime/queue.h"

#include <chrono>
#include <cstring>
#include <exception>

#include "runtime/error.h"

namespace tenon {
namespace {

class HostQueue final : public Queue {
 public:
  void copy(void* dst, const void* src, size_t nbytes, CopyKind) override {
    std::memmove(dst, src, nbytes);
  }
  void launch(const Launch& launch) override {
    launch.kernel(launch.pointers.data(), launch.numbers.data(), launch.status.data());
  }
  bool runs_calls() const override {
    return true;
  }
  void call(Work work, std::span<void* const> pointers, std::span<const size_t>) override {
    work(pointers);
  }

 private:
  Ticket start() override {
    return passed_at(host_seconds());
  }
};

class PassedCommit final : public Commit {
 public:
  PassedCommit(double seconds, std::shared_ptr<Failure> failure)
      : seconds_(seconds), failure_(std::move(failure)) {}
  bool passed() override {
    return true;
  }
  void wait() override {}
  double seconds() override {
    return seconds_;
  }
  std::shared_ptr<Failure> failure() override {
    return failure_;
  }

 private:
  const double seconds_;
  const std::shared_ptr<Failure> failure_;
};

}  // namespace

Queue::~Queue() {
  delete lost_.load();
}

void Queue::record(RecordedLaunches&, const std::function<bool()>&) {}

void Queue::replay(const RecordedLaunches&) {
  fail(ErrorKind::unsupported, "a queue of this device replays nothing");
}

#ifndef TENON_ONE_DEVICE
void Queue::copy_from(void*, const void*, int, size_t) {
  fail(ErrorKind::unsupported, "a queue of this device copies from no other one");
}
#endif

void Queue::after(const Ticket&) {
  fail(ErrorKind::unsupported, "a queue of this device waits for no other one");
}

Ticket Queue::commit() {
  if (const auto* why = lost_.load()) [[unlikely]]
    fail(ErrorKind::device_lost, "the device is lost since a commit failed: {}", *why);
  try {
    return start();
  } catch (const std::exception& first) {
    try {
      if (const auto ticket = start())
        ticket->wait();
    } catch (...) {
      auto why = std::make_unique<const std::string>(first.what());
      const std::string* none = nullptr;
      if (lost_.compare_exchange_strong(none, why.get()))
        why.release();
    }
    throw;
  }
}

void Queue::finish(bool raises) {
  const auto ticket = commit();
  if (!ticket)
    return;
  ticket->wait();
  const auto failure = raises ? ticket->failure() : nullptr;
  if (failure)
    failure->raise();
}

void Queue::drain() noexcept {
  try {
    finish(/*raises=*/false);
  } catch (...) {  // such a device is lost, and the first error says more
  }
}

double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Ticket passed_at(double seconds, std::shared_ptr<Failure> failure) {
  return shared<PassedCommit>(seconds, std::move(failure));
}

std::unique_ptr<Queue> host_queue() {
  return std::make_unique<HostQueue>();
}

}  // namespace tenon
