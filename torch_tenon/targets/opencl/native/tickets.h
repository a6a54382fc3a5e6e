// What was committed on the queues of a device, by the numbers that stand for it.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "driver.h"

namespace tenon::opencl {

// Any thread may ask. A ticket that nobody asks for is not kept longer than the driver needs it;
// one that is not kept has passed, and well.
class Tickets {
 public:
  explicit Tickets(const Driver& driver) : driver_(driver) {}

  // The next ticket: the device passes it with that event, which the driver made for it. `first` is
  // that of the first command before it; nullptr: there is none.
  uint64_t add(Event event, std::shared_ptr<EventObject> first);
  // The driver's event of a ticket, for another queue; nullptr: it has passed.
  std::shared_ptr<EventObject> event(uint64_t ticket);

  // Those of the interface (tenon.h).
  bool passed(uint64_t ticket);
  void wait(uint64_t ticket);
  double seconds(uint64_t ticket);
  double started(uint64_t ticket);
  void forget(uint64_t ticket);

 private:
  struct Point {
    std::shared_ptr<EventObject> event;  // nullptr: it has passed
    std::shared_ptr<EventObject> first;  // as well
    Code code = 0;                       // ... with this error
    double started = 0, seconds = 0;     // ... at these times
    bool forgotten = false;
  };
  using All = std::map<uint64_t, Point>;

  // With the lock. Has it passed? Then what the driver says of it is noted.
  bool look(Point& point) const;
  // One of an event's times in seconds, once it is over; 0: the driver has none.
  double time_of(Event event, uint32_t which) const;
  double time_of(uint64_t ticket, double Point::* which);
  // ... and it goes where nobody asks for it.
  All::iterator settle(All::iterator point);

  const Driver& driver_;
  mutable std::mutex mutex_;  // not of forks: a child has none of the driver's threads
  All all_;
  uint64_t first_running_ = 1;  // those before it have passed
  uint64_t last_ = 0;
};

}  // namespace tenon::opencl
