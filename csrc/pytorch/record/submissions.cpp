#include "record/submissions.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <utility>

#include "device/fork.h"
#include "device/interpreter.h"
#include "device/pending.h"
#include "device/profile.h"
#include "device/target.h"

namespace tenon {
namespace {

// A device's submissions. One that runs may submit another, which gets the next number and is
// enqueued first: neither number below says more than is true of all before it.
struct Submissions {
  std::atomic<Submission> last{0};      // that has a number; under the device's queue lock
  std::atomic<Submission> running{0};   // a window that is not enqueued yet; 0: none
  std::atomic<Submission> enqueued{0};  // all up to this one are
  std::atomic<Submission> finished{0};  // ... and are over

  // On asynchronous targets: those that are not finished, as they were enqueued.
  struct InFlight {
    Submission number;
    Ticket ticket;
    std::string what;
    Finish finish;
  };
  MutexAtFork<ForkOrder::finishing> finishing;  // held by who sees to one that has passed
  // By the other mutex, under which no Python runs: it might come back here.
  MutexAtFork<ForkOrder::submissions> mutex;
  std::deque<InFlight> in_flight;
  Submission in_work = 0;  // taken from these, and not seen to yet; 0: none
  std::deque<std::pair<Submission, std::shared_ptr<Failure>>> faults;  // of the device itself
};

constexpr size_t kMostText = 160;   // characters of the names of ops in an error
constexpr size_t kMostFaults = 64;  // that are kept, for events of who has not looked yet

Submissions& of(c10::DeviceIndex device) {
  return OnlyOne<std::array<Submissions, kMostDevices>>::get()[device];
}

void raise_to(std::atomic<Submission>& last, Submission number) {
  last = std::max(last.load(), number);
}

void note_enqueued(Submissions& s) {
  const Submission running = s.running;
  raise_to(s.enqueued, running != 0 ? running - 1 : s.last.load());
}

thread_local std::array<bool, kMostDevices> t_finishing{};

// The right to see to what a device has passed. What ends then may be Python's, and need it again.
class Finishing {
 public:
  explicit Finishing(c10::DeviceIndex device)
      : device_(device), before_(std::exchange(t_finishing[device], true)) {
    if (!before_)
      lock_.emplace(of(device).finishing);
  }
  ~Finishing() {
    t_finishing[device_] = before_;
  }
  Finishing(const Finishing&) = delete;
  Finishing& operator=(const Finishing&) = delete;

 private:
  const c10::DeviceIndex device_;
  const bool before_;
  std::optional<HeldWhileForking> lock_;
};

// By their mutex.
void note_finished(Submissions& s) {
  Submission all = s.enqueued;
  if (s.in_work != 0)
    all = std::min(all, s.in_work - 1);
  for (const auto& one : s.in_flight)
    all = std::min(all, one.number - 1);
  raise_to(s.finished, all);
}

// Hands what was enqueued to the device. A commit that fails is one that the device failed in.
void add_in_flight(c10::DeviceIndex device, Submission number, std::string what, Finish finish) {
  Ticket ticket;
  try {
    ticket = commit_whole(device);
  } catch (...) {
    ticket = passed_at(0, Failure::current("when work was handed to the device"));
  }
  auto& s = of(device);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.in_flight.push_back({number, std::move(ticket), std::move(what), std::move(finish)});
}

// What came of one that has passed.
void finish(Submissions& s, const Submissions::InFlight& passed) {
  try {
    auto failure = passed.ticket->failure();
    if (failure && !passed.what.empty())
      failure = failure->with(passed.what);
    std::pair<Submission, std::shared_ptr<Failure>> oldest;  // ends after the lock
    if (failure) {
      std::lock_guard<std::mutex> lock(s.mutex);
      s.faults.emplace_back(passed.number, failure);
      if (s.faults.size() > kMostFaults) {
        oldest = std::move(s.faults.front());
        s.faults.pop_front();
      }
    }
    passed.finish(failure);
  } catch (...) {  // what came of it cannot be told
    passed.finish(Failure::current("in what a device has run"));
  }
}

// An error may be Python's, and takes the interpreter's lock when it ends: not in the lock.
void end_with(const std::vector<BufferRef>& buffers, const std::shared_ptr<Failure>& failure) {
  std::vector<std::shared_ptr<Failure>> before(buffers.size(), failure);
  std::lock_guard<std::mutex> recording(record_mutex());
  for (size_t k = 0; k < buffers.size(); ++k)
    before[k].swap(buffers[k]->failure);
}

// The first error of some buffers is that of others, but for those that have one.
void hand_on(const std::vector<BufferRef>& from, const std::vector<BufferRef>& to) {
  std::lock_guard<std::mutex> recording(record_mutex());
  const auto failed =
      std::ranges::find_if(from, [](auto& each) { return each->failure != nullptr; });
  if (failed == from.end())
    return;
  for (const auto& buffer : to) {
    if (!buffer->failure)
      buffer->failure = (*failed)->failure;
  }
}

}  // namespace

Submission begin_submission(c10::DeviceIndex device) {
  auto& s = of(device);
  return s.running = ++s.last;
}

void end_submission(c10::DeviceIndex device, Submission number) {
  auto& s = of(device);
  s.running = 0;
  raise_to(s.enqueued, number);
  raise_to(s.finished, number);
}

void enqueue_submission(
    c10::DeviceIndex device, Submission number, std::string what, Finish finish) {
  add_in_flight(device, number, std::move(what), std::move(finish));
  auto& s = of(device);
  s.running = 0;
  note_enqueued(s);
}

void submit_apart(c10::DeviceIndex device, Apart apart) {
  auto& s = of(device);
  const auto number = ++s.last;
  if (apart.replaces)
    end_with(apart.written, nullptr);
  {
    std::lock_guard<std::mutex> recording(record_mutex());
    for (const auto& buffer : apart.used)
      buffer->last_use = number;
    for (const auto& buffer : apart.written)
      buffer->last_use = buffer->last_write = number;
  }
  // What was submitted before may fail until then.
  auto what = std::move(apart.what);
  add_in_flight(device, number, std::move(what), [apart = std::move(apart)](const auto& failed) {
    if (failed || apart.replaces)
      end_with(apart.written, failed);
    else
      hand_on(apart.used, apart.written);
  });
  note_enqueued(s);
}

std::string text_of_ops(const std::vector<std::string>& first, size_t calls, const char* unit) {
  std::string text = "in: ";
  size_t named = 0;
  for (const auto& name : first) {
    if (named > 0 && text.size() + name.size() > kMostText)
      break;
    text += (named++ > 0 ? ", " : "") + name.substr(0, kMostText);
  }
  if (named < first.size())
    text += " and others";
  return text + c10::str("; ", calls, " ", unit, calls == 1 ? "" : "s");
}

void finish_passed(c10::DeviceIndex device) {
  auto& s = of(device);
  for (;;) {
    Ticket first;
    {
      const Finishing earlier_ones_are_over(device);
      std::lock_guard<std::mutex> lock(s.mutex);
      if (!s.in_flight.empty())
        first = s.in_flight.front().ticket;
    }
    // No lock is held while the device is asked: that may be Python, which may use the device.
    if (!first || !first->passed())
      return;
    Submissions::InFlight next;  // ends after the locks
    const Finishing right(device);
    Submission outer = 0;
    {
      std::lock_guard<std::mutex> lock(s.mutex);
      if (s.in_flight.empty() || s.in_flight.front().ticket != first)
        continue;  // another was faster
      next = std::move(s.in_flight.front());
      s.in_flight.pop_front();
      outer = std::exchange(s.in_work, next.number);
    }
    finish(s, next);
    std::lock_guard<std::mutex> lock(s.mutex);
    s.in_work = outer;
    note_finished(s);
  }
}

bool is_enqueued(c10::DeviceIndex device, Submission number) {
  return of(device).enqueued >= number;
}

void wait_for_submission(c10::DeviceIndex device, Submission submission, const char* reason) {
  auto& s = of(device);
  if (s.finished >= submission)
    return;
  if (QueueLock::held(device)) {
    TORCH_CHECK(
        s.running != submission,
        "an op's kernel on the host reads a tensor of ",
        c10::Device(kTenon, device),
        " that is computed in the same run as the op, which is not over");
  } else {
    const WithoutInterpreter no_gil;
    const QueueLock enqueued(device);  // whoever submits it holds the lock
  }
  if (s.finished >= submission)
    return;
  Ticket ticket;
  {
    const WithoutInterpreter no_gil;
    std::lock_guard<std::mutex> lock(s.mutex);
    for (const auto& one : s.in_flight) {
      if (one.number == submission)
        ticket = one.ticket;
    }
  }
  wait_for(device, ticket, reason);
  const WithoutInterpreter no_gil;
  finish_passed(device);
}

bool is_idle(c10::DeviceIndex device) {
  if (target().host_memory)
    return true;
  const WithoutInterpreter no_gil;
  finish_passed(device);
  auto& s = of(device);
  std::lock_guard<std::mutex> lock(s.mutex);
  return s.in_flight.empty();
}

void wait_until_idle(c10::DeviceIndex device) {
  if (target().host_memory) {
    // What another thread has in work.
    if (QueueLock::held(device))
      return;
    const ProfiledWait waits("synchronize", device);
    const WithoutInterpreter no_gil;
    const QueueLock over(device);
    return;
  }
  Ticket last;
  {
    const QueueTurn turn(device);
    last = commit_part(device);
  }
  wait_for(device, last, "synchronize");
  const WithoutInterpreter no_gil;
  finish_passed(device);
}

uint64_t last_submission(c10::DeviceIndex device) {
  return of(device).enqueued;
}

void raise_unseen_fault(c10::DeviceIndex device, uint64_t last) {
  if (target().host_memory)
    return;
  std::shared_ptr<Failure> found;
  {
    const WithoutInterpreter no_gil;
    finish_passed(device);
    auto& s = of(device);
    std::deque<std::pair<Submission, std::shared_ptr<Failure>>> all;  // ends after the lock
    std::lock_guard<std::mutex> lock(s.mutex);
    all.swap(s.faults);
    for (const auto& fault : all) {
      if (!fault.second->seen())
        s.faults.push_back(fault);
    }
    if (!s.faults.empty() && s.faults.front().first <= last)
      found = s.faults.front().second;
  }
  if (found)
    found->raise();
}

void enqueue_upload(
    Buffer& buffer,
    void* address,
    const void* host,
    size_t nbytes,
    bool replaces,
    std::function<void()> keeps) {
  const auto device = buffer.device;
  const QueueTurn turn(device);
  Profiled profiled(Activity::copy, device);
  if (profiled)
    note_copy(profiled, nbytes, CopyKind::host_to_device);
  queue_of(device).copy(address, host, nbytes, CopyKind::host_to_device);
  profiled.enqueued();
  submit_apart(
      device,
      {.written = {BufferRef::reclaim_copy(&buffer)},
       .replaces = replaces,
       .keeps = std::move(keeps),
       .what = "in: a copy to the device"});
}

}  // namespace tenon
