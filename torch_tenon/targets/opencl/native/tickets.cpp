#include "tickets.h"

namespace tenon::opencl {
namespace {

constexpr uint32_t kExecutionStatus = 0x11D3;  // CL_EVENT_COMMAND_EXECUTION_STATUS
constexpr uint32_t kCommandStart = 0x1282;     // CL_PROFILING_COMMAND_START
constexpr uint32_t kCommandEnd = 0x1283;       // CL_PROFILING_COMMAND_END

// Who forgets no ticket can ask for this many. The core forgets each, and keeps some for long.
constexpr size_t kMostKept = 1 << 16;

}  // namespace

uint64_t Tickets::add(Event event, std::shared_ptr<EventObject> first) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& added = all_[++last_];
  added.event = {event, driver_.clReleaseEvent};
  added.first = std::move(first);
  for (auto point = all_.lower_bound(first_running_); point != all_.end();) {
    first_running_ = point->first;
    if (!look(point->second))
      break;
    ++first_running_;
    point = settle(point);
  }
  while (all_.size() > kMostKept && all_.begin()->first < first_running_)
    all_.erase(all_.begin());
  return last_;
}

std::shared_ptr<EventObject> Tickets::event(uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = all_.find(ticket);
  if (found == all_.end() || look(found->second))
    return nullptr;
  return found->second.event;
}

bool Tickets::passed(uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = all_.find(ticket);
  return found == all_.end() || look(found->second);
}

void Tickets::wait(uint64_t ticket) {
  std::shared_ptr<EventObject> event;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = all_.find(ticket);
    if (found == all_.end())
      return;
    look(found->second);
    event = found->second.event;
    if (!event)
      return driver_.check(found->second.code, "what was committed");
  }
  const Event waited = event.get();
  const auto code = driver_.clWaitForEvents(1, &waited);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = all_.find(ticket);
  if (found == all_.end())
    return;  // it was forgotten meanwhile
  if (!look(found->second))
    return driver_.check(code, "waiting for what was committed");
  driver_.check(found->second.code, "what was committed");
}

double Tickets::seconds(uint64_t ticket) {
  return time_of(ticket, &Point::seconds);
}

double Tickets::started(uint64_t ticket) {
  return time_of(ticket, &Point::started);
}

double Tickets::time_of(uint64_t ticket, double Point::* which) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = all_.find(ticket);
  if (found == all_.end())
    return 0;
  look(found->second);
  return found->second.*which;
}

double Tickets::time_of(Event event, uint32_t which) const {
  uint64_t nanoseconds = 0;
  driver_.clGetEventProfilingInfo(event, which, sizeof(nanoseconds), &nanoseconds, nullptr);
  return static_cast<double>(nanoseconds) * 1e-9;
}

void Tickets::forget(uint64_t ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = all_.find(ticket);
  if (found == all_.end())
    return;
  found->second.forgotten = true;
  if (look(found->second))
    settle(found);
}

bool Tickets::look(Point& point) const {
  if (!point.event)
    return true;
  // A device that does not tell any more is lost.
  int32_t state = 1;
  const auto code =
      driver_.clGetEventInfo(point.event.get(), kExecutionStatus, sizeof(state), &state, nullptr);
  if (code != 0)
    state = code;
  if (state > 0)
    return false;  // queued, submitted or running
  point.seconds = time_of(point.event.get(), kCommandEnd);
  if (point.first)
    point.started = time_of(point.first.get(), kCommandStart);
  point.code = state;
  point.event = point.first = nullptr;
  return true;
}

Tickets::All::iterator Tickets::settle(All::iterator point) {
  return point->second.forgotten ? all_.erase(point) : std::next(point);
}

}  // namespace tenon::opencl
