// What the device does and when, while somebody wants to know: a bounded log of events. Switched
// off, it costs one relaxed load where an event would begin.
#pragma once

#include <c10/core/Device.h>
#include <c10/macros/Macros.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/queue.h"

namespace tenon {

// The names are those of torch_tenon/reports/profiler/log.py.
enum class Activity : uint8_t {
  record,         // of a call, on the host
  commit,         // of a window, to the end of its run or until it is enqueued
  look_up,        // of a window's plan
  kernel,         // one that a backend generated
  library,        // a call of a plan's: a kernel that the target has already, ...
  fallback,       // ... or PyTorch's on the host
  reference,      // a call of a window that has no plan
  reference_run,  // all of such a window
  at_once,        // a call that was not recorded
  copy,
  wait,   // of the host for the device
  build,  // of a plan, by the builder: from the request to the answer
};

// What an event is of: an op, a kernel, a reason, a Python line.
struct Subject {
  std::string name;
  std::string detail;          // sizes and dtypes
  std::vector<int32_t> calls;  // of the window, that a step of a plan computes; the main one first
  int64_t bytes = 0;           // that it has to move
  int64_t operations = 0;      // on numbers
};

// Its number, from 1 on: equal subjects have the same one, for good.
uint32_t subject_of(const Subject& subject);
// Those from a number on.
std::vector<Subject> subjects_from(uint32_t first);

struct ProfileEvent {
  int64_t begin = 0, end = 0;  // nanoseconds since 1970
  uint64_t correlation = 0;    // torch.profiler's number of the op at hand; 0: none
  uint64_t range = 0;          // ... and of the range of `record_function`
  int64_t own = 0;             // of its nanoseconds, those without what happened within it
  int64_t amount = 0;          // bytes of a copy, of a call, of what it makes; calls of a commit
  uint32_t subject = 0;
  uint32_t line = 0;    // the subject that is its Python line; 0: not asked for
  uint32_t window = 0;  // numbered while somebody looks, from 1 on; 0: none
  int32_t call = -1;    // which of the window's
  int32_t thread = 0;   // the system's number
  Activity activity{};
  int8_t device = -1;
  uint16_t queue = 0;  // of the device: 0 is that of kernels, 1 those of copies
};
static_assert(sizeof(ProfileEvent) == 72, "torch_tenon/reports/profiler/log.py reads these bytes");

// A log, from its making on. Several may be there at once, each with its own events.
class ProfileLog {
 public:
  // Keeps that many events, and counts those that come after them.
  explicit ProfileLog(size_t most);
  ~ProfileLog();
  ProfileLog(const ProfileLog&) = delete;
  ProfileLog& operator=(const ProfileLog&) = delete;

  void stop();
  // The bytes of what is there, which the log then has no more. With `all` also what an
  // asynchronous device has not come to yet: waits for it.
  std::string take(bool all);
  int64_t lost() const;

 private:
  friend void log_event(const ProfileEvent& event, int64_t enqueued);

  const size_t most_;
  int64_t begin_ = 0, end_ = INT64_MAX;
  int64_t lost_ = 0;
  std::string events_;  // their bytes
};

// `enqueued`: by the host's clock. The device's is known to some microseconds only. So its own
// times do not decide whether an event came before a log was stopped.
void log_event(const ProfileEvent& event, int64_t enqueued);
inline void log_event(const ProfileEvent& event) {
  log_event(event, event.begin);
}

extern std::atomic<int> g_profile_logs;  // that are not stopped

inline bool profiles() {
  return g_profile_logs.load(std::memory_order_relaxed) > 0;
}

// A number for a window whose calls are logged.
uint32_t next_profiled_window();

// What torch.profiler has at hand on the calling thread: its numbers of ops and of ranges.
struct AtHand {
  std::vector<uint64_t> ops, ranges;
};
AtHand& at_hand();

// Nanoseconds since 1970.
int64_t profile_now();

// An event from here to the end of the scope.
class Profiled {
 public:
  explicit Profiled(Activity activity, c10::DeviceIndex device = -1, uint32_t subject = 0) {
    if (C10_UNLIKELY(profiles()))
      begin(activity, device, subject);
  }
  ~Profiled() {
    if (C10_UNLIKELY(event_.has_value()))
      end();
  }
  Profiled(const Profiled&) = delete;
  Profiled& operator=(const Profiled&) = delete;

  explicit operator bool() const {
    return event_.has_value();
  }
  ProfileEvent* operator->() {
    return &*event_;
  }
  // It is none.
  void cancel() {
    if (C10_UNLIKELY(event_.has_value()))
      leave();
  }
  // It begins here: what happened before is none of it.
  void restart();
  // It ends here.
  void finish() {
    if (C10_UNLIKELY(event_.has_value()))
      end();
  }
  // It was enqueued: on an asynchronous target it ends when the device has come here. Under the
  // device's queue lock.
  void enqueued() {
    if (C10_UNLIKELY(event_.has_value()))
      end_on_device();
  }

 private:
  void begin(Activity activity, c10::DeviceIndex device, uint32_t subject);
  void end();
  void end_on_device();
  void leave();

  std::optional<ProfileEvent> event_;
  int64_t outer_;  // nanoseconds within the event around it, up to here
};

// Says which Python line it is of, where that is asked for (TENON_TRACE_CALLS).
void note_line(Profiled& profiled);

// Says what a copy is.
void note_copy(Profiled& profiled, size_t nbytes, CopyKind kind);

// The host waits for a device until the end of the scope; with TENON_TRACE_CALLS the report has the
// Python line. A wait within another one is part of that.
class ProfiledWait {
 public:
  ProfiledWait(const char* reason, c10::DeviceIndex device);
  ~ProfiledWait();
  ProfiledWait(const ProfiledWait&) = delete;
  ProfiledWait& operator=(const ProfiledWait&) = delete;
  // There was nothing to wait for.
  void cancel();

 private:
  const char* reason_;
  bool inner_, counts_ = false;
  std::string line_;
  int64_t begin_ = 0;
  std::optional<Profiled> event_;
};

// Counts something that a Python line did, for the report.
void count_at_line(const char* what, const std::string& line, const char* why, int64_t nanoseconds);

}  // namespace tenon
