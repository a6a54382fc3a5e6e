#include "execute/window_plans.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "device/fork.h"
#include "device/host_allocator.h"
#include "device/interrupts.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/builder.h"
#include "execute/host_call.h"
#include "execute/never_by_plan.h"
#include "execute/plan_file.h"
#include "execute/plan_log.h"
#include "execute/plan_store.h"
#include "execute/reference_window.h"
#include "execute/verified_run.h"
#include "execute/window_run.h"
#include "record/direct.h"
#include "record/op_rules.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

// After a failure that may pass a plan is asked for again so many seconds later, four times as many
// after the next one, and so on; after so many of them no more in this process.
constexpr double kFirstPause = 0.5;
constexpr int kMostFailures = 6;
constexpr double kGoodPart = 0.005;  // of what a plan costs that is for another process

struct Plans {
  MutexAtFork<ForkOrder::plans> mutex;  // taken with and without the interpreter's lock: never wait for that inside
  PlanStore store;
  std::shared_ptr<const AskForPlan> ask;
  std::atomic<double> first_window{0}, first_by_plan{0};
  std::atomic<int64_t> came{0};
};

Plans& plans() {
  return OnlyOne<Plans>::get();
}

// The lock, for who may make the store let go of something: that ends after the lock.
class StoreLock {
 public:
  explicit StoreLock(Plans& p) : plans_(p), lock_(p.mutex) {}
  ~StoreLock() {
    gone_ = plans_.store.take_gone();
  }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  Plans& plans_;
  std::vector<std::shared_ptr<WindowPlan>> gone_;
  const std::lock_guard<std::mutex> lock_;
};

// What Python raised, to be raised later.
std::function<void()> python_error_of(pybind11::error_already_set& error) {
  const pybind11::gil_scoped_acquire gil;
  if (!error.matches(PyExc_KeyboardInterrupt)) {
    error.discard_as_unraisable("a plan is asked for");
    return {};
  }
  return [] { PyErr_SetInterrupt(); };
}

bool python_interrupts() {
  const pybind11::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// Asks the builder for a plan, or, where there is none, Python; with `waits` comes back once it is
// there. Raises what Python raises.
void ask(Plans& p, const std::shared_ptr<WindowPlan>& found, double seconds, bool waits) {
  while (ask_builder(found, seconds)) {
    if (!waits)
      return;
    hear_builder(found.get(), python_interrupts);
    {
      const pybind11::gil_scoped_acquire gil;
      if (PyErr_Occurred() != nullptr)
        throw pybind11::error_already_set();
    }
    const std::lock_guard<std::mutex> lock(p.mutex);
    if (found->state != WindowPlan::seen)
      return;
    found->state = WindowPlan::waiting;  // the builder ended: another one, or in the end a thread
  }
  std::shared_ptr<const AskForPlan> python;
  {
    const std::lock_guard<std::mutex> lock(p.mutex);
    python = p.ask;
  }
  if (python)
    (*python)(found, waits);
}

// The state of a window's plan, which is looked for among those that are kept, and asked for where
// it is time. Nothing of what Python raises meanwhile keeps the window from running.
bool is_ready(Plans& p, const std::shared_ptr<WindowPlan>& found, bool waits, WindowRun& run) {
  std::unique_lock<std::mutex> lock(p.mutex);
  if (found->state == WindowPlan::seen && !std::exchange(found->looked_up, true)) {
    lock.unlock();
    if (find_kept(*found) && logs_plans())
      log_plan(*found, "found among the files of plans");
    lock.lock();
  }
  const bool again = found->has_claim || found->by_reference > 0;
  const bool may_ask = found->state == WindowPlan::seen &&
                       (found->failures == 0 || host_seconds() >= found->asks_from);
  const bool asks =
      waits ? may_ask || found->state == WindowPlan::waiting
            : again && may_ask &&
                  (found->has_claim || pays(found->cost, found->calls.size(), seconds_per_call()));
  if (asks && p.ask != nullptr) {
    found->state = WindowPlan::waiting;
    const auto seconds = found->cost.told = found->cost.saving();
    found->asked_at = profile_now();
    const auto runs = found->by_reference;
    lock.unlock();
    if (logs_plans())
      log_plan(
          *found,
          c10::str(
              "asked for a plan: ",
              runs,
              " runs by reference took ",
              format_time(seconds),
              " that a plan might save"));
    bool asked = false;
    // Who waits for a plan may be interrupted.
    std::optional<DeferredInterrupts> deferred;
    if (!waits)
      deferred.emplace();
    try {
      ask(p, found, seconds, waits);
      asked = true;
    } catch (pybind11::error_already_set& error) {
      run.interrupted = python_error_of(error);
    }
    lock.lock();
    if (!asked && found->state == WindowPlan::waiting)
      found->state = WindowPlan::seen;
  } else if (found->state == WindowPlan::waiting) {
    const auto news = is_news(found->cost) ? std::optional(found->cost.saving()) : std::nullopt;
    found->cost.told = news.value_or(found->cost.told);
    lock.unlock();
    if (news)
      tell_builder(*found, *news);
    hear_builder();
    lock.lock();
  }
  const bool ready = found->state == WindowPlan::ready;
  ++(ready ? found->by_plan : found->by_reference);
  return ready;
}

void count_as_reference(Plans& p, WindowPlan& found) {
  std::lock_guard<std::mutex> lock(p.mutex);
  --found.by_plan;
  ++found.by_reference;
}

// By the plan; where the device has no memory for that, by reference: nothing was enqueued yet, and
// the host has what that needs beside the results.
WindowRun run_plan_on_device(
    Plans& p,
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::function<WindowRun()>& by_reference) {
  std::shared_ptr<DeviceNumbers> numbers;
  try {
    numbers = std::make_shared<DeviceNumbers>(window, device);
    return run_plan(ready, window, order, device, numbers, /*keeps_slots=*/false);
  } catch (const c10::OutOfMemoryError&) {
    count_as_reference(p, *ready.found);
  }
  auto ran = by_reference();
  ran.later = [numbers, later = std::move(ran.later)] { return later(); };
  return ran;
}

// On an asynchronous target the host's kernels begin when all that came before is over, so that
// they know its errors.
void wait_for_earlier(const Window& window, c10::DeviceIndex device) {
  const bool reads = std::any_of(
      window.slots.begin(), window.slots.end(), [](const auto& slot) { return !slot.fresh; });
  if (reads)
    wait_until_idle(device);
}

Candidates find_candidates(Plans& p, const Window& window, const std::vector<int32_t>& order) {
  {
    const StoreLock lock(p);
    auto found = p.store.find_or_add(window, order);
    if (!found.asks_for_claims)
      return found;
  }
  auto claims = kept_claims(*describe(window, order));
  const StoreLock lock(p);
  p.store.add_kept(std::move(claims), window, order);
  return p.store.find_or_add(window, order);
}

// The plan that runs the window now, if one is there: its own, or until that is made the one of its
// claim.
Ready find_ready(Plans& p, const Candidates& candidates, bool waits, WindowRun& asked) {
  const auto& own = candidates.own;
  const auto& claim = candidates.claim;
  if (own && is_ready(p, own, waits, asked))
    return {own, own->found.plan};
  if (!claim || !is_ready(p, claim, waits, asked))
    return {};
  const auto& found = claim->found;
  Ready ready{claim, found.sized ? found.sized->instance(candidates.symbols) : found.plan};
  if (!ready.plan) {
    count_as_reference(p, *claim);
  } else if (own) {
    std::lock_guard<std::mutex> lock(p.mutex);
    --own->by_reference;
  }
  return ready;
}

WindowCame came(Plans& p, const Candidates& candidates, const Ready& ready) {
  if (ready.plan)
    return WindowCame::by_plan;
  const auto& known = candidates.claim ? candidates.claim : candidates.own;
  if (!known)
    return WindowCame::anew;
  const std::lock_guard<std::mutex> lock(p.mutex);
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

void note_first(std::atomic<double>& first, double now) {
  if (first == 0)
    first = now;
}

}  // namespace

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
  auto& p = plans();
  Profiled looks_up(Activity::look_up, device);
  if (looks_up)
    looks_up->window = window.profiled;
  const auto candidates = find_candidates(p, window, order);
  WindowRun asked;
  auto ready = find_ready(p, candidates, waits, asked);
  if (ready.plan && !waits && target().host_memory && makes_the_same_calls(*ready.plan, window)) {
    count_as_reference(p, *ready.found);
    ready = {};
  }
  looks_up.finish();
  WindowRun ran;
  const double start = host_seconds();
  note_first(p.first_window, start);
  if (!ready.plan) {
    const auto& waiting = candidates.own ? candidates.own : candidates.claim;
    std::optional<ReferenceRun> timed;
    if (waiting)
      timed.emplace(
          waiting->cost, p.mutex, window.calls.size(), seconds_per_call(), builder_works());
    ran = by_reference();
    if (timed)
      timed->finish(
          ran.library_seconds,
          1 + direct_calls_before() / static_cast<double>(window.calls.size()));
  } else if (verifies) {
    if (!target().host_memory)
      wait_for_earlier(window, device);
    ran = verify_window(ready, window, order, device);
  } else {
    note_first(p.first_by_plan, start);
    ran = target().host_memory
              ? run_plan(ready, window, order, device, /*numbers=*/nullptr, /*keeps_slots=*/false)
              : run_plan_on_device(p, ready, window, order, device, by_reference);
    ready.found->nanoseconds_by_plan += std::llround((host_seconds() - start) * 1e9);
  }
  if (asked.interrupted)
    ran.interrupted = std::move(asked.interrupted);
  if (!waits)
    note_window(came(p, candidates, ready), is_small(window), window.calls.size());
  return ran;
}

void finish_window(WindowPlan& window, FoundPlan found) {
  if (logs_plans())
    log_plan(window, outcome_of(window, found));
  const StoreLock lock(plans());
  if (window.state == WindowPlan::ready)
    return;  // Found in a file meanwhile: other threads run it, without the lock.
  if (profiles() && window.asked_at > 0) {
    ProfileEvent built;  // by another thread or process: within nothing of this one's
    built.begin = window.asked_at;
    built.end = profile_now();
    built.subject = subject_of({"a plan", found.error});
    built.amount = static_cast<int64_t>(window.calls.size());
    built.activity = Activity::build;
    log_event(built);
  }
  std::swap(window.found, found);  // what was there ends after the lock
  const bool ready = window.found.plan != nullptr || window.found.sized != nullptr;
  if (ready)
    ++plans().came;
  const bool passes = !ready && window.found.may_pass && window.failures < kMostFailures;
  if (passes)
    window.asks_from = host_seconds() + kFirstPause * std::pow(4, window.failures++);
  window.state = ready                                  ? WindowPlan::ready
                 : window.found.error.empty() || passes ? WindowPlan::seen
                                                        : WindowPlan::failed;
  plans().store.note_plan(window);
}

void ask_for_later() {
  auto& p = plans();
  std::vector<std::shared_ptr<WindowPlan>> wanted;
  {
    const std::lock_guard<std::mutex> lock(p.mutex);
    for (const auto& w : p.store.all()) {
      const auto cost = cost_of_plan(w->calls.size(), seconds_per_call());
      if (w->state == WindowPlan::seen && w->failures == 0 && w->by_reference > 1 &&
          w->cost.saving() >= kGoodPart * cost)
        wanted.push_back(w);
    }
    if (p.ask == nullptr || wanted.empty() || !builder_runs())
      return;
    for (const auto& w : wanted)
      w->state = WindowPlan::waiting;
  }
  for (const auto& w : wanted)
    ask_builder(w, w->cost.saving());
}

int64_t plans_that_came() {
  return plans().came.load(std::memory_order_relaxed);
}

bool waits_for_plan(const WindowPlan& window) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  return window.state == WindowPlan::waiting;
}

void set_ask_for_plan(AskForPlan ask) {
  auto made = ask ? std::make_shared<const AskForPlan>(std::move(ask)) : nullptr;
  std::lock_guard<std::mutex> lock(plans().mutex);
  plans().ask.swap(made);
}

std::vector<WindowRuns> window_runs() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  std::vector<WindowRuns> runs;
  for (const auto& w : p.store.all()) {
    const bool waits = w->state == WindowPlan::waiting;
    const bool failed = w->state == WindowPlan::seen && !w->found.error.empty();  // for now
    runs.push_back({
        w->id,
        name_of(*w),
        w->by_plan,
        w->by_reference,
        failed ? WindowPlan::failed : w->state,
        w->found.error,
        w->found.facts,
        static_cast<double>(w->nanoseconds_by_plan) * 1e-9,
        w->cost.seconds,
        w->cost.saving(),
        price_of(w->cost, w->calls.size(), seconds_per_call()),
        waits ? static_cast<double>(profile_now() - w->asked_at) * 1e-9 : 0,
        w->sizes_served.size(),
    });
  }
  if (const auto gone = p.store.counts().evicted; gone > 0) {
    auto& row = runs.emplace_back(p.store.gone());
    row.number = -1;
    row.name = c10::str(gone, gone == 1 ? " structure that went" : " structures that went");
  }
  std::sort(runs.begin(), runs.end(), [](auto& a, auto& b) { return a.number < b.number; });
  return runs;
}

void set_most_structures(size_t most) {
  auto& p = plans();
  const StoreLock lock(p);
  p.store.set_most(most);
}

std::tuple<size_t, size_t, int64_t, int64_t, int64_t> structure_counts() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  const auto c = p.store.counts();
  return {c.entries, c.bound, c.hits, c.misses, c.evicted};
}

std::pair<double, double> first_runs() {
  return {plans().first_window, plans().first_by_plan};
}

}  // namespace tenon
