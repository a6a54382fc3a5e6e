// Forks: a child has its parent's memory and one thread, whatever the others were at.
#pragma once

#include <cstdint>
#include <mutex>
#include <new>
#include <utility>

namespace tenon {

// How many processes there are from the one that loaded this to this one.
uint32_t process_number();

// What is told of a fork in the child, by the one thread there, before anything else runs.
class Forked {
 public:
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;
  virtual void in_child() {}
  static void tell_all();

 protected:
  Forked();
  virtual ~Forked();

 private:
  Forked *previous_ = nullptr, *next_ = nullptr;
};

// A value that threads take turns with. A child has a new one: the parent's may be half changed.
// What that holds stays as it is in the child's memory.
template <class T>
class TakingTurns final : Forked {
 public:
  TakingTurns() = default;
  template <class Use>
  auto use(Use&& use) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return use(value_);
  }

 private:
  void in_child() override {
    new (&mutex_) std::mutex;
    new (&value_) T();
  }

  std::mutex mutex_;  // of the value; not of forks: a child has a new one
  T value_{};
};

}  // namespace tenon
