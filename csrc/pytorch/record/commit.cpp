// From a window that is open to one that has run, and what becomes of its buffers.

#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "device/interpreter.h"
#include "device/profile.h"
#include "device/target.h"
#include "record/direct.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/recorder.h"
#include "record/submissions.h"

namespace tenon {
namespace {

struct Commits {
  // Both by `record_mutex`.
  int64_t calls = 0;
  std::vector<int64_t> commits = std::vector<int64_t>(static_cast<int>(CommitReason::count_));
  std::atomic<ExecuteMode> mode{ExecuteMode::reference};
};

// Leaked on purpose: tensors may die after static destructors have run.
Commits& committed() {
  static auto* instance = new Commits();
  return *instance;
}

constexpr size_t kMostOps = 8;  // that an error's text may name

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

// Takes what a recorder has recorded, as the device's next submission; 0: it has nothing.
Submission close_window(Recorder& recorder, Window& window, CommitReason reason) {
  std::lock_guard<std::mutex> lock(record_mutex());
  auto& open = recorder.open;
  if (open.calls.empty())
    return 0;
  open.close();
  std::swap(window, open);
  std::swap(open, recorder.spare);
  open.recorder = &recorder;
  const auto number = begin_submission(recorder.device);
  for (const auto& slot : window.slots) {
    if (!slot.buffer)
      continue;
    slot.buffer->last_use = number;
    if (slot.written)
      slot.buffer->last_write = number;
  }
  ++committed().commits[static_cast<int>(reason)];
  return number;
}

// The first ops of a window, each once, for the text of an error.
std::string ops_of(const Window& window) {
  std::vector<const OpInfo*> found;
  for (const auto& call : window.calls) {
    if (std::ranges::find(found, call.entry->op) == found.end())
      found.push_back(call.entry->op);
    if (found.size() > kMostOps)
      break;
  }
  std::vector<std::string> names;
  for (const auto* op : found)
    names.push_back(op->name);
  return text_of_ops(names, window.calls.size(), "call");
}

// Errors of all that a window makes.
Failures all_failed(const std::shared_ptr<Failure>& failure, size_t slots) {
  return {std::vector<std::shared_ptr<Failure>>(slots, failure), failure};
}

WindowRun run_or_fail(Window& window, c10::DeviceIndex device) {
  try {
    return run_window(window, device, committed().mode.load());
  } catch (...) {  // no call's own: memory for the run itself, say
    WindowRun run;
    run.failures = all_failed(Failure::current(ops_of(window)), window.slots.size());
    // It is over after what was submitted before, and so is what it has enqueued.
    if (!target().host_memory)
      run.later = [failures = std::move(run.failures)] { return failures; };
    return run;
  }
}

}  // namespace

void submit(Recorder& recorder, CommitReason reason) {
  const auto device = recorder.device;
  if (QueueLock::held(device))
    return;
  bool is_captured = false;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    is_captured = recorder.captured != nullptr;
    if (recorder.open.calls.empty() && !is_captured)
      return;
  }
  if (is_captured)
    return keep_captured(recorder, reason);
  const auto keep = recorder.shared_from_this();
  const WithoutInterpreter no_gil;
  std::optional<QueueLock> queue(device);
  Window window;
  Profiled profiled(Activity::commit, device);
  const auto number = close_window(recorder, window, reason);
  if (number == 0)
    return profiled.cancel();
  if (profiled) {
    profiled->subject = subject_of({name_of(reason)});
    profiled->window = window.profiled;
    profiled->amount = static_cast<int64_t>(window.calls.size());
  }
  const c10::DeviceGuard guard(c10::Device(kTenon, device));
  // Where no error can come and none can go, nobody needs to know the buffers afterwards.
  std::vector<BufferRef> buffers;
  if (window.uses_failed || !target().host_memory)
    buffers = written_buffers(window);
  auto run = run_or_fail(window, device);
  if (run.later) {
    auto what = ops_of(window);
    auto finish = [=, buffers = std::move(buffers), later = std::move(run.later)](
                      const std::shared_ptr<Failure>& failed) {
      keep_errors(buffers, failed ? all_failed(failed, buffers.size()) : later(), *keep);
    };
    enqueue_submission(device, number, std::move(what), std::move(finish));
  } else {
    if (buffers.empty() && !run.failures.by_slot.empty())
      buffers = written_buffers(window);
    if (!buffers.empty() || run.failures.first)
      keep_errors(buffers, run.failures, recorder);
    end_submission(device, number);
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
    forget_if_ended(recorder);  // `keep` has it until the end
  }
  queue.reset();
  if (!target().host_memory)
    finish_passed(device);
  if (run.interrupted)
    run.interrupted();
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

void storage_died(Buffer& buffer) {
  bool unused = false;
  {
    std::lock_guard<std::mutex> lock(record_mutex());
    buffer.alive = false;
    for (const auto& use : buffer.uses) {
      if (use.window->replayed)
        continue;  // the graph needs what it makes
      use.window->storage_died(use.slot);
      if (use.window->slots[use.slot].fresh)
        buffer.stop_expecting();  // a temporary
    }
    unused = buffer.uses.empty() && buffer.graphs == 0 && !target().host_memory &&
             is_enqueued(buffer.device, buffer.last_use);
  }
  // An asynchronous device still uses it, before anything that takes the memory next.
  if (unused)
    buffer.free_memory();
}

Touching::Touching(CommitReason reason) : Exchanged(t_reason, reason) {}

CommitReason Touching::reason() {
  return t_reason;
}

const char* name_of(CommitReason reason) {
  static constexpr const char* kNames[] = {
      "the host reads",
      "the host writes",
      "a first call",
      "an op that runs at once",
      "synchronize",
      "a boundary",
      "its length",
      "memory",
      "a request",
      "another thread or stream",
      "memory that others see",
      "a launch"};
  static_assert(std::size(kNames) == static_cast<size_t>(CommitReason::count_));
  return kNames[static_cast<size_t>(reason)];
}

std::pair<int64_t, std::vector<int64_t>> record_counts() {
  std::lock_guard<std::mutex> lock(record_mutex());
  return {committed().calls, committed().commits};
}

void count_recorded_call() {
  ++committed().calls;
}

void set_execute_mode(ExecuteMode mode) {
  commit_all(CommitReason::request);
  committed().mode = mode;
  all_are_direct = mode == ExecuteMode::direct;
  forget_windows();
}

ExecuteMode execute_mode() {
  return committed().mode;
}

bool is_recording() {
  const auto mode = committed().mode.load(std::memory_order_relaxed);
  return (mode != ExecuteMode::reference || is_capturing()) && !QueueLock::held();
}

}  // namespace tenon
