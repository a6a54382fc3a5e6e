// From a window that is open to one that has run, and what becomes of its buffers.

#include <c10/core/DeviceGuard.h>

#include <array>
#include <deque>

#include "device/fork.h"
#include "device/interpreter.h"
#include "device/target.h"
#include "record/execution.h"
#include "record/recorder.h"

namespace tenon {
namespace {

struct State {
  // Both by `record_mutex`.
  int64_t calls = 0;
  std::vector<int64_t> commits = std::vector<int64_t>(static_cast<int>(CommitReason::count_));
  std::atomic<ExecuteMode> mode{ExecuteMode::reference};

  // What was submitted and has not finished, by device, in order; on asynchronous targets alone.
  struct InFlight {
    std::mutex mutex;
    std::deque<SubmissionRef> submissions;
  };
  std::array<InFlight, kMostDevices> in_flight;
};

// Leaked on purpose: tensors may die after static destructors have run.
State& state() {
  static auto* instance = [] {
    auto* made = new State();
    for (auto& in_flight : made->in_flight)
      take_at_fork(in_flight.mutex, ForkOrder::submissions);
    return made;
  }();
  return *instance;
}

thread_local CommitReason t_reason = CommitReason::host_read;

// What a submission leaves behind, when it has run: the errors of the buffers that it wrote.
struct Aftermath {
  std::vector<BufferRef> buffers;  // by slot; null: not written, or dead
  std::shared_ptr<Recorder> recorder;

  void apply(const Failures& failures) {
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
    if (failures.first && (!recorder->unseen || recorder->unseen->seen())) {
      before.push_back(std::move(recorder->unseen));
      recorder->unseen = failures.first;
    }
  }
};

// Sees to all that has run on an asynchronous device, in order.
void finish_passed(c10::DeviceIndex device) {
  auto& in_flight = state().in_flight[device];
  std::lock_guard<std::mutex> lock(in_flight.mutex);
  auto& queue = queue_of(device);
  while (!in_flight.submissions.empty()) {
    const auto next = in_flight.submissions.front();
    if (!queue.passed(next->ticket))
      return;
    in_flight.submissions.pop_front();
    next->finish();
    next->finish = nullptr;
    next->finished = true;
  }
}

}  // namespace

void submit(Recorder& recorder, CommitReason reason) {
  const auto device = recorder.device;
  if (QueueLock::held(device))
    return;
  const auto keep = recorder.shared_from_this();
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    if (recorder.open.calls.empty())
      return;
  }
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> queue(device);
  Window window;
  auto submission = c10::make_intrusive<Submission>(device);
  Aftermath aftermath;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    auto& open = recorder.open;
    if (open.calls.empty())
      return;
    open.close();
    std::swap(window, open);
    std::swap(open, recorder.spare);
    open.recorder = &recorder;
    aftermath.recorder = keep;
    aftermath.buffers.resize(window.slots.size());
    for (size_t k = 0; k < window.slots.size(); ++k) {
      const auto& slot = window.slots[k];
      if (!slot.buffer)
        continue;
      slot.buffer->last_use = submission;
      if (!slot.written)
        continue;
      slot.buffer->last_write = submission;
      if (slot.alive)
        aftermath.buffers[k] = slot.buffer;
    }
    ++state().commits[static_cast<int>(reason)];
  }
  const c10::DeviceGuard guard(c10::Device(kTenon, device));
  WindowRun run;
  try {
    run = run_window(window, device, state().mode.load());
  } catch (...) {  // no call's own: memory for the run itself, say
    run.failures.first = Failure::current("in a window of " + std::to_string(window.calls.size()) +
                                          " recorded calls");
    run.failures.by_slot.assign(window.slots.size(), run.failures.first);
  }
  if (run.later) {
    submission->finish = [aftermath = std::move(aftermath), later = std::move(run.later)]() mutable {
      aftermath.apply(later());
    };
    auto& in_flight = state().in_flight[device];
    std::lock_guard<std::mutex> lock(in_flight.mutex);
    submission->ticket = queue_of(device).commit();
    in_flight.submissions.push_back(submission);
  } else {
    aftermath.apply(run.failures);
    submission->finished = true;
  }
  aftermath.buffers.clear();
  window.clear();
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    std::swap(window, recorder.spare);
  }
  queue.reset();
  if (run.later)
    finish_passed(device);
  if (run.interrupted)
    run.interrupted();
}

void wait_for(const SubmissionRef& submission, const char* reason) {
  if (submission->finished)
    return;
  const auto device = submission->device;
  if (QueueLock::held(device)) {
    TORCH_CHECK(
        submission->ticket != 0,
        "an op's kernel on the host reads a tensor of ",
        c10::Device(kTenon, device),
        " that is computed in the same run as the op, which is not over");
  } else {
    const WithoutInterpreter no_gil;
    const QueueLock enqueued(device);  // whoever submits it holds the lock
  }
  if (submission->finished)
    return;
  wait_for(device, submission->ticket, reason);
  const WithoutInterpreter no_gil;
  finish_passed(device);
}

void wait_until_idle(c10::DeviceIndex device) {
  if (target().host_memory) {
    // What another thread has in work.
    if (QueueLock::held(device))
      return;
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

void commit_uses(Buffer& buffer, bool writes_alone, CommitReason reason) {
  for (;;) {
    std::shared_ptr<Recorder> found;
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      for (const auto& use : buffer.uses) {
        if (!writes_alone || use.window->slots[use.slot].written)
          found = use.window->recorder->shared_from_this();
      }
    }
    if (!found)
      return;
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
  auto submission = c10::make_intrusive<Submission>(device);
  submission->finish = std::move(keeps);
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> lock;
  if (!QueueLock::held(device))
    lock.emplace(device);
  auto& queue = queue_of(device);
  queue.copy(address, host, nbytes, CopyKind::host_to_device);
  submission->ticket = queue.commit();
  {
    std::lock_guard<std::mutex> recording(record_mutex());
    buffer.last_use = buffer.last_write = submission;
  }
  auto& in_flight = state().in_flight[device];
  std::lock_guard<std::mutex> adding(in_flight.mutex);
  in_flight.submissions.push_back(std::move(submission));
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
    unused = buffer.uses.empty() && buffer.last_use && buffer.last_use->ticket != 0;
  }
  // An asynchronous device still uses it, before anything that takes the memory next.
  if (unused && !target().host_memory)
    buffer.free_memory();
}

Touching::Touching(CommitReason reason) : previous_(std::exchange(t_reason, reason)) {}

Touching::~Touching() {
  t_reason = previous_;
}

CommitReason Touching::reason() {
  return t_reason;
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
