#include "windows/window_run.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_call.h"
#include "execute/run_threads.h"
#include "record/direct.h"
#include "record/surroundings.h"
#include "windows/builder.h"
#include "windows/failure_flow.h"
#include "windows/plan_numbers.h"
#include "windows/window_plans.h"

namespace tenon {
namespace {

// By `plans_mutex`. Leaked on purpose: windows may be committed while the process exits.
std::map<std::string, int64_t>& never_by_plan_counts() {
  static auto* instance = new std::map<std::string, int64_t>();
  return *instance;
}

bool uses_failed(const Window& window) {
  std::lock_guard<std::mutex> lock(record_mutex());
  return std::any_of(window.slots.begin(), window.slots.end(), [](const auto& slot) {
    return slot.buffer && slot.buffer->failure;
  });
}

// Whether the program alone has to decide what computes a window's results, as far as their last
// bits go.
bool has_deterministic_calls(const Window& window) {
  return std::any_of(window.calls.begin(), window.calls.end(), [](const auto& call) {
    return is_deterministic(call.entry->surroundings());
  });
}

// A plan is for calls of one world. Grad mode is nothing to generated kernels, and each call on
// whole tensors has its own.
bool is_of_one_world(const Window& window) {
  const auto first = window.calls.front().entry->surroundings();
  return std::all_of(window.calls.begin(), window.calls.end(), [first](const auto& call) {
    return same_settings(call.entry->surroundings(), first);
  });
}

// Null: a plan may run it.
const char* why_never(const Window& window, bool verifies) {
  if (!target().runs_plans)
    return "the target runs no plans";
  if (!verifies && has_deterministic_calls(window))
    return "deterministic algorithms are asked for";
  if (!is_of_one_world(window))
    return "its calls were recorded under different settings";
  if (target().host_memory && uses_failed(window))
    return "it has a result that failed";
  return nullptr;
}

// Whether a window always runs by reference, and counts it where it does. Where plans are compared
// with the reference, one is asked for even if results are to be the same each time.
bool never_by_plan(const Window& window, bool verifies) {
  const auto* why = why_never(window, verifies);
  if (why == nullptr)
    return false;
  const std::lock_guard<std::mutex> lock(plans_mutex());
  ++never_by_plan_counts()[why];
  return true;
}

// An error that is no call's is everybody's: nobody knows what depends on it.
bool is_of_no_call(const StepFailure& failed) {
  return std::all_of(failed.calls.begin(), failed.calls.end(), [](auto call) { return call < 0; });
}

// Where the errors of a plan's steps go, told by the window's calls.
Failures follow(
    const WindowPlan& found,
    std::vector<std::shared_ptr<Failure>> begins,
    const std::vector<std::string>& lines,
    const StepFailures& failed) {
  std::vector<std::shared_ptr<Failure>> by_call(found.calls.size());
  for (const auto& one : failed) {
    const bool of_all = is_of_no_call(one);
    for (size_t k = 0; k < by_call.size(); ++k) {
      if (!by_call[k] && (of_all || std::count(one.calls.begin(), one.calls.end(), k) > 0))
        by_call[k] = one.failure;
    }
  }
  std::vector<size_t> nbytes;
  for (const auto& slot : found.slots)
    nbytes.push_back(slot.nbytes);
  FailureFlow flow(std::move(begins), std::move(nbytes));
  const int32_t* slots = found.slots_of_calls.data();
  for (size_t k = 0; k < found.calls.size(); ++k) {
    const auto& entry = *found.calls[k];
    if (const auto inherited = flow.of_arguments(entry, slots)) {
      flow.note(entry, slots, inherited);
    } else if (by_call[k]) {
      const auto& line = k < lines.size() ? lines[k] : std::string();
      flow.raised(entry, slots, by_call[k]->with(lost(entry, line)));
    } else {
      flow.note(entry, slots, nullptr);
    }
    slots += entry.tensors.size() + entry.fresh.size();
  }
  return flow.take();
}

// The queue is in order: what takes the memory next comes after what still uses it.
void free_unused(Buffer& buffer) {
  std::lock_guard<std::mutex> lock(record_mutex());
  if (buffer.uses.empty() && buffer.graphs == 0)
    buffer.free_memory();
}

// With `keeps_slots` the window can run again.
WindowRun run_plan(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::shared_ptr<PlanNumbers>& numbers,
    bool keeps_slots) {
  const auto& found = ready.found;
  const NeutralThread neutral;
  const AsRecorded as_recorded(found->calls.front()->surroundings());
  const bool host_memory = target().host_memory;
  const auto address = [&](int32_t k) {
    const auto& slot = window.slots[order[k]];
    return slot.buffer ? slot.buffer->memory() : nullptr;
  };
  std::vector<void*> inputs;
  inputs.reserve(found->found.inputs.size());
  for (const auto k : found->found.inputs)
    inputs.push_back(k >= 0 ? address(k) : numbers->address(k));
  std::vector<c10::Storage> keepers;
  if (host_memory && ready.plan->lends_inputs()) {
    for (const auto k : found->found.inputs) {
      const auto& slot = window.slots[order[std::max(k, 0)]];
      keepers.push_back(
          k >= 0 && slot.buffer
              ? c10::Storage(
                    c10::Storage::use_byte_size_t{}, slot.nbytes, host_data_ptr(slot.buffer))
              : c10::Storage());
    }
  }
  const auto output = [&](size_t k) { return address(found->found.outputs[k]); };
  const auto release_input = [&](size_t input) {
    const auto k = found->found.inputs[input];
    if (keeps_slots || k < 0 || !window.slots[order[k]].ends_here())
      return;
    auto& buffer = window.slots[order[k]].buffer;
    if (host_memory)
      buffer.reset();
    else if (buffer)
      free_unused(*buffer);  // its error is still asked for
  };
  // By the plan's numbers of slots, as the window's slots do not outlive its run. Where the host
  // reaches the memory, windows over errors run by reference: none begins with one.
  std::vector<BufferRef> buffers(order.size());
  for (size_t k = 0; k < order.size() && !host_memory; ++k)
    buffers[k] = window.slots[order[k]].buffer;
  auto failures = ready.plan->enqueue(
      inputs,
      output,
      c10::Device(kTenon, device),
      release_input,
      window.profiled,
      found->worlds,
      keepers);
  const auto outcome = [order, slots = window.slots.size()](
                           const WindowPlan& known,
                           const std::vector<BufferRef>& buffers,
                           const std::vector<std::string>& lines,
                           const StepFailures& failed) -> Failures {
    std::vector<std::shared_ptr<Failure>> begins(buffers.size());
    bool any = !failed.empty();
    {
      std::lock_guard<std::mutex> lock(record_mutex());
      for (size_t k = 0; k < buffers.size(); ++k) {
        if (buffers[k] && !known.slots[k].fresh)
          begins[k] = buffers[k]->failure;
        any = any || begins[k];
      }
    }
    if (!any)
      return {};
    const auto by_plan = follow(known, std::move(begins), lines, failed);
    Failures by_window{{}, by_plan.first};
    by_window.by_slot.resize(slots);
    for (size_t k = 0; k < by_plan.by_slot.size(); ++k)
      by_window.by_slot[order[k]] = by_plan.by_slot[k];
    return by_window;
  };
  WindowRun ran;
  if (!host_memory) {
    ran.later = [=,
                 plan = ready.plan,
                 known = ready.with_sizes(window, order),
                 lines = window.lines,
                 buffers = std::move(buffers)] {
      (void)numbers;
      return outcome(*known, buffers, lines, failures());
    };
  } else if (const auto failed = failures(); !failed.empty()) {
    ran.failures = outcome(*ready.with_sizes(window, order), buffers, window.lines, failed);
  }
  return ran;
}

// Leaked on purpose: windows may be committed while the process exits.
Verify& verify() {
  static auto* instance = new Verify();
  return *instance;
}

WindowRun verify_window(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device) {
  const auto move = [&](size_t slot, CopyKind kind, void* bytes, size_t nbytes) {
    if (nbytes == 0)
      return;
    void* memory = window.slots[order[slot]].buffer->memory();
    const bool reads = kind == CopyKind::device_to_host;
    copy_bytes(reads ? bytes : memory, reads ? memory : bytes, nbytes, kind, device);
  };
  const SlotBytes bytes{
      [&](size_t slot, void* to, size_t nbytes) {
        move(slot, CopyKind::device_to_host, to, nbytes);
      },
      [&](size_t slot, const void* from, size_t nbytes) {
        move(slot, CopyKind::host_to_device, const_cast<void*>(from), nbytes);
      }};
  WindowRun ran;
  bool has_run = false;
  const auto by_plan = [&] {
    const auto numbers = std::make_shared<PlanNumbers>(window, device);
    WindowRun tried;
    try {
      tried = run_plan(ready, window, order, device, numbers, /*keeps_slots=*/true);
      if (tried.later)
        wait_for_success(device, commit_part(device), "a plan that is compared");
    } catch (...) {
      drain(device);  // of memory that ends with the numbers and the run
      throw;
    }
    if (tried.later)
      tried.failures = tried.later();
    if (tried.failures.first)
      tried.failures.first->raise();
  };
  const auto by_reference = [&] {
    ran = run_window_by_reference(window, device, /*keeps_slots=*/true);
    has_run = true;
  };
  try {
    verify()(ready.with_sizes(window, order), window.numbers, bytes, by_plan, by_reference);
  } catch (...) {
    // An interrupt, say: what the window writes is not to be taken for written.
    const auto failure = Failure::current("");
    if (!has_run)
      by_reference();
    // What both raise is the window's; anything else is for who asked for the comparison.
    const auto failures = ran.later ? ran.later() : ran.failures;
    if (!failures.first)
      ran.interrupted = [failure] { failure->raise(); };
  }
  return ran;
}

// By the plan; where the device has no memory for that, by reference: nothing was enqueued yet, and
// the host has what that needs beside the results.
WindowRun run_plan_on_device(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::function<WindowRun()>& by_reference) {
  std::shared_ptr<PlanNumbers> numbers;
  try {
    numbers = std::make_shared<PlanNumbers>(window, device);
    return run_plan(ready, window, order, device, numbers, /*keeps_slots=*/false);
  } catch (const c10::OutOfMemoryError&) {
    count_as_reference(*ready.found);
  } catch (...) {
    drain(device);  // of the numbers' copy, which reads memory that ends with them
    throw;
  }
  auto ran = by_reference();
  ran.later = [numbers, later = std::move(ran.later)] { return later(); };
  return ran;
}

// On an asynchronous target the host's kernels begin when all that came before is over. So they
// know its errors.
void wait_for_earlier(const Window& window, c10::DeviceIndex device) {
  const bool reads = std::any_of(
      window.slots.begin(), window.slots.end(), [](const auto& slot) { return !slot.fresh; });
  if (reads)
    wait_until_idle(device);
}

WindowCame came(const Candidates& candidates, const Ready& ready) {
  if (ready.plan)
    return WindowCame::by_plan;
  const auto& known = candidates.claim ? candidates.claim : candidates.own;
  if (!known)
    return WindowCame::anew;
  const std::lock_guard<std::mutex> lock(plans_mutex());
  return known->by_reference > 1 || candidates.claim ? WindowCame::again : WindowCame::anew;
}

bool is_small(const Window& window) {
  return std::all_of(
      window.calls.begin(), window.calls.end(), [](const auto& call) { return call.entry->small; });
}

// Whether a plan's steps are the window's calls one by one, which are made as fast without it.
bool makes_the_same_calls(const Plan& plan, const Window& window) {
  const auto is_made = [](const Step& step, const RecordedCall& recorded) {
    const auto* call = std::get_if<CallStep>(&step.work);
    return call != nullptr && resolved(*call).op == recorded.entry->op->op;
  };
  const auto& steps = plan.data().steps;
  return std::equal(steps.begin(), steps.end(), window.calls.begin(), window.calls.end(), is_made);
}

// Whether the window's own sizes are known to be faster without their plan, or are to tell.
bool is_left(const Candidates& candidates) {
  if (!candidates.own)
    return false;
  const std::lock_guard<std::mutex> lock(plans_mutex());
  return leaves_plan(candidates.own->cost);
}

std::atomic<double> g_first_window{0}, g_first_by_plan{0};

void note_first(std::atomic<double>& first, double now) {
  if (first == 0)
    first = now;
}

}  // namespace

void set_verify(Verify made) {
  verify() = std::move(made);
}

std::map<std::string, int64_t> windows_never_by_plan() {
  const std::lock_guard<std::mutex> lock(plans_mutex());
  return never_by_plan_counts();
}

WindowRun run_window(Window& window, c10::DeviceIndex device, ExecuteMode mode) {
  const HostOverflow overflow;
  const auto by_reference = [&] {
    if (!target().host_memory)
      wait_for_earlier(window, device);
    return run_window_by_reference(window, device, /*keeps_slots=*/window.replayed);
  };
  if (mode == ExecuteMode::reference)
    return by_reference();  // a graph's
  const bool verifies = mode == ExecuteMode::verify;
  // Who captures a graph has said that it comes again.
  const bool waits =
      mode == ExecuteMode::compiled || mode == ExecuteMode::verify || window.replayed;
  if (never_by_plan(window, verifies)) {
    if (!waits)
      note_window(WindowCame::anew, is_small(window), window.calls.size());
    return by_reference();
  }
  if (!waits && is_fragment())
    return by_reference();
  const auto order = window.order();
  Profiled looks_up(Activity::look_up, device);
  if (looks_up)
    looks_up->window = window.profiled;
  const auto candidates = find_candidates(window, order);
  WindowRun asked;
  auto ready = find_ready(candidates, waits, asked);
  if (ready.plan && !waits && target().host_memory &&
      (makes_the_same_calls(*ready.plan, window) || is_left(candidates))) {
    count_as_reference(*ready.found);
    ready = {};
  }
  looks_up.finish();
  WindowRun ran;
  const double start = host_seconds();
  note_first(g_first_window, start);
  if (!ready.plan) {
    const auto& waiting = candidates.own ? candidates.own : candidates.claim;
    const auto run = [&]() -> ReferenceSeconds {
      ran = by_reference();
      const auto calls = static_cast<double>(window.calls.size());
      return {ran.library_seconds, 1 + static_cast<double>(direct_calls_before()) / calls};
    };
    if (waiting)
      run_timed(waiting->cost, plans_mutex(), run);
    else
      ran = by_reference();
  } else if (verifies) {
    if (!target().host_memory)
      wait_for_earlier(window, device);
    ran = verify_window(ready, window, order, device);
  } else {
    note_first(g_first_by_plan, start);
    const bool beside_builder = threads_beside_builder() > 0;
    if (target().host_memory) {
      const auto numbers = std::make_shared<PlanNumbers>(window, device);
      ran = run_plan(ready, window, order, device, numbers, /*keeps_slots=*/false);
    } else {
      ran = run_plan_on_device(ready, window, order, device, by_reference);
    }
    const double seconds = host_seconds() - start;
    ready.found->nanoseconds_by_plan += std::llround(seconds * 1e9);
    if (candidates.own) {
      const std::lock_guard<std::mutex> lock(plans_mutex());
      if (!beside_builder && threads_beside_builder() == 0)
        note_run_by_plan(candidates.own->cost, seconds);
      if (ready.found != candidates.own)
        candidates.own->cost.elsewhere += saving_beside_any_sizes(seconds);
    }
  }
  if (asked.interrupted)
    ran.interrupted = std::move(asked.interrupted);
  if (!waits)
    note_window(came(candidates, ready), is_small(window), window.calls.size());
  return ran;
}

std::pair<double, double> first_runs() {
  return {g_first_window, g_first_by_plan};
}

}  // namespace tenon
