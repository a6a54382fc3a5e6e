#include "device/profile.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "device/allocator.h"
#include "device/counters.h"
#include "device/fork.h"
#include "device/interpreter.h"
#include "device/python_line.h"
#include "device/target.h"

namespace tenon {

std::atomic<int> g_profile_logs{0};

namespace {

constexpr size_t kMostInFlight = 1024;  // of a device, until somebody looks which have passed

// An event of an asynchronous device that ends with a ticket.
struct InFlight {
  Ticket ticket;
  ProfileEvent event;
};
using AllInFlight = std::array<std::deque<InFlight>, kMostDevices>;

struct State {
  MutexAtFork<ForkOrder::profile> mutex;
  std::vector<ProfileLog*> logs;
  std::deque<Subject> subjects;
  std::unordered_map<std::string, uint32_t> numbers;
  std::atomic<uint32_t> windows{0};
  AllInFlight in_flight;
  std::array<int64_t, kMostDevices> clock{};  // of a device: nanoseconds behind the host's
  std::array<std::array<int64_t, 2>, kMostDevices> last_end{};  // ... of its last event, by queue
};

State& state() {
  return OnlyOne<State>::get();
}

std::string key_of(const Subject& x) {
  std::string key = x.name + '\n' + x.detail + '\n';
  for (const auto call : x.calls)
    key += std::to_string(call) + ' ';
  return key + std::to_string(x.bytes) + ' ' + std::to_string(x.operations);
}

int32_t thread_number() {
  static thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

// How far a device's clock is behind the host's.
void compare_clocks() {
  if (!has_target() || target().host_memory || lost_by_fork())
    return;
  const WithoutInterpreter no_gil;
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    Ticket ticket;
    c10::DataPtr block;
    static const int64_t anything = 0;
    {
      const QueueTurn turn(device);  // a window that runs may have a kernel begin the log
      // A commit of nothing may have passed long ago.
      try {
        block = new_block(sizeof(anything), device);
        queue_of(device).copy(block.get(), &anything, sizeof(anything), CopyKind::host_to_device);
      } catch (const c10::OutOfMemoryError&) {  // then the device is in use
      }
      ticket = commit_part(device);
    }
    ticket->wait();
    const auto clock = profile_now() - static_cast<int64_t>(1e9 * ticket->seconds());
    const std::lock_guard<std::mutex> lock(state().mutex);
    state().clock[device] = clock;
  }
}

// What a device has not come to is nobody's any more.
void drop_in_flight() {
  AllInFlight dropped;  // ends after the lock: a ticket may be Python's
  const std::lock_guard<std::mutex> lock(state().mutex);
  dropped.swap(state().in_flight);
}

// What a device has come to gets its time.
void finish_passed_events(bool all) {
  if (!has_target() || target().host_memory)
    return;
  const WithoutInterpreter no_gil;
  if (lost_by_fork())
    return drop_in_flight();
  for (c10::DeviceIndex device = 0; device < device_count(); ++device) {
    auto& s = state();
    for (;;) {
      InFlight next;
      {
        const std::lock_guard<std::mutex> lock(s.mutex);
        if (s.in_flight[device].empty())
          break;
        next = s.in_flight[device].front();
      }
      if (!all && !next.ticket->passed())
        break;
      next.ticket->wait();
      const auto seconds = next.ticket->seconds();
      const auto started = next.ticket->started();
      int64_t enqueued = 0;
      {
        const std::lock_guard<std::mutex> lock(s.mutex);
        auto& in_flight = s.in_flight[device];
        if (in_flight.empty() || in_flight.front().ticket != next.ticket)
          continue;  // another thread was faster
        // It may have taken the one before, of the same ticket.
        next = std::move(in_flight.front());
        in_flight.pop_front();
        auto& event = next.event;
        enqueued = event.begin;
        const auto on_host = [&](double time) {
          return s.clock[device] + static_cast<int64_t>(1e9 * time);
        };
        event.end = on_host(seconds);
        // Where the device does not say: a queue is in order.
        auto& last_end = s.last_end[device][event.queue];
        event.begin = started ? on_host(*started) : std::max(event.begin, last_end);
        event.begin = std::min(event.begin, event.end);
        last_end = event.end;
      }
      log_event(next.event, enqueued);
    }
  }
}

}  // namespace

uint32_t subject_of(const Subject& subject) {
  auto& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  auto& number = s.numbers[key_of(subject)];
  if (number == 0) {
    s.subjects.push_back(subject);
    number = static_cast<uint32_t>(s.subjects.size());
  }
  return number;
}

std::vector<Subject> subjects_from(uint32_t first) {
  auto& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  const auto skipped = std::min<size_t>(std::max<uint32_t>(first, 1) - 1, s.subjects.size());
  return {s.subjects.begin() + static_cast<std::ptrdiff_t>(skipped), s.subjects.end()};
}

ProfileLog::ProfileLog(size_t most) : most_(most) {
  compare_clocks();
  begin_ = profile_now();
  const std::lock_guard<std::mutex> lock(state().mutex);
  state().logs.push_back(this);
  ++g_profile_logs;
}

ProfileLog::~ProfileLog() {
  stop();
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    std::erase(state().logs, this);
    if (!state().logs.empty())
      return;
  }
  const WithoutInterpreter no_gil;
  drop_in_flight();
}

void ProfileLog::stop() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (end_ != INT64_MAX)
    return;
  end_ = profile_now();
  --g_profile_logs;
}

std::string ProfileLog::take(bool all) {
  finish_passed_events(all);
  const std::lock_guard<std::mutex> lock(state().mutex);
  return std::exchange(events_, {});
}

int64_t ProfileLog::lost() const {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return lost_;
}

void log_event(const ProfileEvent& event, int64_t enqueued) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  for (auto* log : state().logs) {
    if (std::max(event.end, enqueued) < log->begin_ || enqueued > log->end_)
      continue;
    if (log->events_.size() < log->most_ * sizeof(event))
      log->events_.append(reinterpret_cast<const char*>(&event), sizeof(event));
    else
      ++log->lost_;
  }
}

uint32_t next_profiled_window() {
  return ++state().windows;
}

AtHand& at_hand() {
  static thread_local AtHand instance;
  return instance;
}

int64_t profile_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

namespace {
// Nanoseconds of events within the one at hand.
thread_local int64_t t_within = 0;
}  // namespace

void Profiled::begin(Activity activity, c10::DeviceIndex device, uint32_t subject) {
  auto& event = event_.emplace();
  const auto& now = at_hand();
  event.correlation = now.ops.empty() ? 0 : now.ops.back();
  event.range = now.ranges.empty() ? 0 : now.ranges.back();
  event.subject = subject;
  event.thread = thread_number();
  event.activity = activity;
  event.device = device;
  outer_ = std::exchange(t_within, 0);
  event.begin = profile_now();
}

void Profiled::end() {
  event_->end = profile_now();
  const auto took = event_->end - event_->begin;
  event_->own = took - t_within;
  t_within = outer_ + took;
  log_event(*event_);
  event_.reset();
}

void Profiled::leave() {
  t_within += outer_;
  event_.reset();
}

void Profiled::restart() {
  outer_ += std::exchange(t_within, 0);
  event_->begin = profile_now();
}

void Profiled::end_on_device() {
  if (event_->device < 0 || target().host_memory)
    return;
  auto ticket = commit_part(event_->device);
  if (const auto own = ticket->own()) {  // there are several queues
    ticket = own;
    event_->queue = event_->activity == Activity::copy ? 1 : 0;
  }
  bool looks = false;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    auto& in_flight = state().in_flight[event_->device];
    in_flight.push_back({ticket, *event_});
    looks = in_flight.size() % kMostInFlight == 0;
  }
  leave();
  if (looks)
    finish_passed_events(/*all=*/false);
}

void note_line(Profiled& profiled) {
  if (!traces_calls())
    return;
  if (const auto line = python_line(); !line.empty())
    profiled->line = subject_of({line});
}

void note_copy(Profiled& profiled, size_t nbytes, CopyKind kind) {
  profiled->amount = static_cast<int64_t>(nbytes);
  note_line(profiled);
  profiled->subject = subject_of(
      {kind == CopyKind::host_to_device   ? "copy, host to device"
       : kind == CopyKind::device_to_host ? "copy, device to host"
                                          : "copy, device to device"});
}

namespace {
thread_local bool t_waits = false;
}  // namespace

ProfiledWait::ProfiledWait(const char* reason, c10::DeviceIndex device)
    : reason_(reason), inner_(std::exchange(t_waits, true)) {
  if (inner_)
    return;
  if (C10_UNLIKELY(traces_calls())) {
    line_ = python_line();
    counts_ = true;
    begin_ = profile_now();
  }
  if (C10_UNLIKELY(profiles())) {
    event_.emplace(Activity::wait, device, subject_of({reason}));
    if (*event_ && !line_.empty())
      (*event_)->line = subject_of({line_});
  }
}

ProfiledWait::~ProfiledWait() {
  t_waits = inner_;
  if (C10_UNLIKELY(counts_))
    count_at_line("waits", line_, reason_, profile_now() - begin_);
}

void ProfiledWait::cancel() {
  t_waits = inner_;
  counts_ = false;
  if (event_)
    event_->cancel();
}

void count_at_line(
    const char* what, const std::string& line, const char* why, int64_t nanoseconds) {
  if (line.empty())
    return;
  auto& counted = counter(std::string("line ") + what, line + ": " + why);
  counted.calls.fetch_add(1, std::memory_order_relaxed);
  counted.nanoseconds.fetch_add(nanoseconds, std::memory_order_relaxed);
}

}  // namespace tenon
