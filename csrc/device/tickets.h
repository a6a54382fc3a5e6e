// The commits of an asynchronous queue: the events of those that have not passed, as far as is
// known, and for a while the times of those that have.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "device/queue.h"

namespace tenon {

template <class Event>
class Tickets {
 public:
  Ticket add(std::shared_ptr<Event> event) {
    const std::lock_guard<std::mutex> lock(mutex_);
    events_[++last_] = std::move(event);
    return last_;
  }

  // nullptr: it has passed.
  std::shared_ptr<Event> find(Ticket ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = events_.find(ticket);
    return found != events_.end() ? found->second : nullptr;
  }

  // It passed at that time.
  void pass(Ticket ticket, double seconds) {
    std::shared_ptr<Event> last;  // which may take the interpreter's lock to go
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = events_.find(ticket);
    if (found == events_.end())
      return;
    last = std::move(found->second);
    events_.erase(found);
    seconds_[ticket] = seconds;
    while (seconds_.size() > kMostTimes)
      seconds_.erase(seconds_.begin());
  }

  double seconds(Ticket ticket) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = seconds_.find(ticket);
    return found != seconds_.end() ? found->second : 0;
  }

 private:
  static constexpr size_t kMostTimes = 4096;

  std::mutex mutex_;
  Ticket last_ = 0;
  std::map<Ticket, std::shared_ptr<Event>> events_;
  std::map<Ticket, double> seconds_;
};

}  // namespace tenon
