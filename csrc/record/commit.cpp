// From a window that is open to one that has run, and what becomes of its buffers.

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <deque>

#include "device/fork.h"
#include "device/interpreter.h"
#include "device/profile.h"
#include "device/target.h"
#include "record/execution.h"
#include "record/recorder.h"

namespace tenon {
namespace {

// A device's submissions.
struct Submissions {
  std::atomic<Submission> last{0};      // that was closed; under the device's queue lock
  std::atomic<Submission> enqueued{0};  // ... and that its queue has
  std::atomic<Submission> finished{0};

  // On asynchronous targets: those that are not finished, and what there is to do when they are.
  struct InFlight {
    Submission number;
    Ticket ticket;
    std::function<void()> finish;
  };
  std::mutex mutex;
  std::deque<InFlight> in_flight;
};

struct State {
  // Both by `record_mutex`.
  int64_t calls = 0;
  std::vector<int64_t> commits = std::vector<int64_t>(static_cast<int>(CommitReason::count_));
  std::atomic<ExecuteMode> mode{ExecuteMode::reference};
  std::array<Submissions, kMostDevices> submissions;
};

// Leaked on purpose: tensors may die after static destructors have run.
State& state() {
  static auto* instance = [] {
    auto* made = new State();
    for (auto& submissions : made->submissions)
      take_at_fork(submissions.mutex, ForkOrder::submissions);
    return made;
  }();
  return *instance;
}

const auto& at_load [[maybe_unused]] = state();

thread_local CommitReason t_reason = CommitReason::host_read;

// The errors that the buffers of a window end with. `buffers`: by slot; null where nobody can read
// what was written.
void keep_errors(
    const std::vector<BufferRef>& buffers, const Failures& failures, Recorder& recorder) {
  // An error may be Python's, and takes the interpreter's lock when it ends: not in here.
  std::vector<std::shared_ptr<Failure>> before;
  std::lock_guard<std::mutex> lock(record_mutex());
  for (size_t k = 0; k < buffers.size(); ++k) {
    if (!buffers[k])
      continue;
    auto& failure = buffers[k]->failure;
    if (failure)
      before.push_back(std::move(failure));
    failure = failures.by_slot.empty() ? nullptr : failures.by_slot[k];
  }
  if (failures.first && (!recorder.unseen || recorder.unseen->seen())) {
    before.push_back(std::move(recorder.unseen));
    recorder.unseen = failures.first;
  }
}

std::vector<BufferRef> written_buffers(const Window& window) {
  std::vector<BufferRef> found(window.slots.size());
  for (size_t k = 0; k < found.size(); ++k) {
    const auto& slot = window.slots[k];
    if (slot.written && slot.alive)
      found[k] = slot.buffer;
  }
  return found;
}

// Takes what a recorder has recorded, as the device's next submission; false: it has nothing.
bool close_window(Recorder& recorder, Window& window, CommitReason reason) {
  std::lock_guard<std::mutex> lock(record_mutex());
  auto& open = recorder.open;
  if (open.calls.empty())
    return false;
  open.close();
  std::swap(window, open);
  std::swap(open, recorder.spare);
  open.recorder = &recorder;
  const auto number = ++state().submissions[recorder.device].last;
  for (const auto& slot : window.slots) {
    if (!slot.buffer)
      continue;
    slot.buffer->last_use = number;
    if (slot.written)
      slot.buffer->last_write = number;
  }
  ++state().commits[static_cast<int>(reason)];
  return true;
}

// A run may submit something itself, which is then ahead of it.
void raise_to(std::atomic<Submission>& last, Submission number) {
  last = std::max(last.load(), number);
}

// Hands what was enqueued to an asynchronous device. Under its queue lock.
void enqueue(c10::DeviceIndex device, Submission number, std::function<void()> finish) {
  auto& submissions = state().submissions[device];
  std::lock_guard<std::mutex> lock(submissions.mutex);
  submissions.in_flight.push_back({number, queue_of(device).commit(), std::move(finish)});
  raise_to(submissions.enqueued, number);
}

// Sees to all that has run on an asynchronous device, in order.
void finish_passed(c10::DeviceIndex device) {
  auto& submissions = state().submissions[device];
  std::lock_guard<std::mutex> lock(submissions.mutex);
  auto& queue = queue_of(device);
  while (!submissions.in_flight.empty() && queue.passed(submissions.in_flight.front().ticket)) {
    const auto next = std::move(submissions.in_flight.front());
    submissions.in_flight.pop_front();
    next.finish();
    raise_to(submissions.finished, next.number);
  }
}

WindowRun run_or_fail(Window& window, c10::DeviceIndex device) {
  try {
    return run_window(window, device, state().mode.load());
  } catch (...) {  // no call's own: memory for the run itself, say
    WindowRun run;
    run.failures.first =
        Failure::current(c10::str("in a window of ", window.calls.size(), " recorded calls"));
    run.failures.by_slot.assign(window.slots.size(), run.failures.first);
    return run;
  }
}

}  // namespace

void submit(Recorder& recorder, CommitReason reason) {
  const auto device = recorder.device;
  if (QueueLock::held(device))
    return;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    if (recorder.open.calls.empty())
      return;
  }
  const auto keep = recorder.shared_from_this();
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> queue(device);
  Window window;
  Profiled profiled(Activity::commit, device);
  if (!close_window(recorder, window, reason))
    return profiled.cancel();
  if (profiled) {
    profiled->subject = subject_of({name_of(reason)});
    profiled->window = window.profiled;
    profiled->amount = static_cast<int64_t>(window.calls.size());
  }
  auto& submissions = state().submissions[device];
  const auto number = submissions.last.load();
  const c10::DeviceGuard guard(c10::Device(kTenon, device));
  // Where no error can come and none can go, nobody needs to know the buffers afterwards.
  std::vector<BufferRef> buffers;
  if (window.uses_failed || !target().host_memory)
    buffers = written_buffers(window);
  auto run = run_or_fail(window, device);
  if (run.later) {
    enqueue(device, number, [=, buffers = std::move(buffers), later = std::move(run.later)] {
      keep_errors(buffers, later(), *keep);
    });
  } else {
    if (buffers.empty() && !run.failures.by_slot.empty())
      buffers = written_buffers(window);
    if (!buffers.empty() || run.failures.first)
      keep_errors(buffers, run.failures, recorder);
    raise_to(submissions.finished, number);
  }
  buffers.clear();
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    window.let_entries_go();
  }
  window.clear();
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    std::swap(window, recorder.spare);
  }
  queue.reset();
  if (!target().host_memory)
    finish_passed(device);
  if (run.interrupted)
    run.interrupted();
}

void wait_for_submission(c10::DeviceIndex device, Submission submission, const char* reason) {
  auto& submissions = state().submissions[device];
  if (submissions.finished >= submission)
    return;
  if (QueueLock::held(device)) {
    TORCH_CHECK(
        submissions.enqueued >= submission,
        "an op's kernel on the host reads a tensor of ",
        c10::Device(kTenon, device),
        " that is computed in the same run as the op, which is not over");
  } else {
    const WithoutInterpreter no_gil;
    const QueueLock enqueued(device);  // whoever submits it holds the lock
  }
  if (submissions.finished >= submission)
    return;
  Ticket ticket = 0;
  {
    const WithoutInterpreter no_gil;
    std::lock_guard<std::mutex> lock(submissions.mutex);
    for (const auto& one : submissions.in_flight) {
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
  auto& submissions = state().submissions[device];
  std::lock_guard<std::mutex> lock(submissions.mutex);
  return submissions.in_flight.empty();
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
  Ticket last = 0;
  {
    const WithoutInterpreter no_gil;
    std::optional<QueueLock> lock;
    if (!QueueLock::held(device))
      lock.emplace(device);
    last = queue_of(device).commit();
  }
  wait_for(device, last, "synchronize");
  const WithoutInterpreter no_gil;
  finish_passed(device);
}

bool commit_uses(Buffer& buffer, bool writes_alone, CommitReason reason) {
  for (bool any = false;; any = true) {
    std::shared_ptr<Recorder> found;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      for (const auto& use : buffer.uses) {
        if (!writes_alone || use.window->slots[use.slot].written)
          found = use.window->recorder->shared_from_this();
      }
    }
    if (!found)
      return any;
    TORCH_CHECK(
        !QueueLock::held(found->device),
        "an op's kernel on the host uses a tensor of ",
        c10::Device(kTenon, found->device),
        " that was recorded while a window of the device ran");
    submit(*found, reason);
  }
}

void enqueue_upload(
    Buffer& buffer, void* address, const void* host, size_t nbytes, std::function<void()> keeps) {
  const auto device = buffer.device;
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> lock;
  if (!QueueLock::held(device))
    lock.emplace(device);
  Profiled profiled(Activity::copy, device);
  if (profiled)
    note_copy(profiled, nbytes, CopyKind::host_to_device);
  queue_of(device).copy(address, host, nbytes, CopyKind::host_to_device);
  profiled.enqueued();
  const auto number = ++state().submissions[device].last;
  {
    std::lock_guard<std::mutex> recording(record_mutex());
    buffer.last_use = buffer.last_write = number;
  }
  enqueue(device, number, std::move(keeps));
}

void storage_died(Buffer& buffer) {
  bool unused = false;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    buffer.alive = false;
    for (const auto& use : buffer.uses) {
      use.window->storage_died(use.slot);
      if (use.window->slots[use.slot].fresh)
        buffer.stop_expecting();  // a temporary
    }
    unused = buffer.uses.empty() && !target().host_memory &&
             state().submissions[buffer.device].enqueued >= buffer.last_use;
  }
  // An asynchronous device still uses it, before anything that takes the memory next.
  if (unused)
    buffer.free_memory();
}

Touching::Touching(CommitReason reason) : previous_(std::exchange(t_reason, reason)) {}

Touching::~Touching() {
  t_reason = previous_;
}

CommitReason Touching::reason() {
  return t_reason;
}

const char* name_of(CommitReason reason) {
  switch (reason) {
    case CommitReason::host_read:
      return "the host reads";
    case CommitReason::host_write:
      return "the host writes";
    case CommitReason::first_call:
      return "a first call";
    case CommitReason::not_recorded:
      return "an op that runs at once";
    case CommitReason::synchronize:
      return "synchronize";
    case CommitReason::boundary:
      return "a boundary";
    case CommitReason::length:
      return "its length";
    case CommitReason::memory:
      return "memory";
    case CommitReason::request:
      return "a request";
    case CommitReason::handover:
      return "another thread or stream";
    case CommitReason::shared:
      return "memory that others see";
    case CommitReason::count_:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "no reason of a commit");
}

std::pair<int64_t, std::vector<int64_t>> record_counts() {
  std::lock_guard<std::mutex> lock(record_mutex());
  return {state().calls, state().commits};
}

void count_recorded_call() {
  ++state().calls;
}

void set_execute_mode(ExecuteMode mode) {
  commit_all(CommitReason::request);
  state().mode = mode;
}

ExecuteMode execute_mode() {
  return state().mode;
}

bool is_recording() {
  return state().mode.load(std::memory_order_relaxed) != ExecuteMode::reference &&
         !QueueLock::held();
}

}  // namespace tenon
