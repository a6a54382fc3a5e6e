#include "windows/window_plans.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>

#include "device/fork.h"
#include "device/interrupts.h"
#include "device/profile.h"
#include "windows/builder.h"
#include "windows/plan_file.h"

namespace tenon {
namespace {

// After a failure that may pass a plan is asked for again so many seconds later. After the next one
// it is four times as many, and so on. After so many failures none is asked for in this process.
constexpr double kFirstPause = 0.5;
constexpr int kMostFailures = 6;
constexpr double kGoodPart = 0.005;  // of what a plan costs that is for another process

std::atomic<bool> g_logs{false};

// A window's calls in a few words: how many, the first and the last.
std::string name_of(const WindowPlan& window) {
  const auto name = [](const auto& call) { return call->op->op.operator_name().name; };
  const auto n = window.calls.size();
  if (n == 0)
    return "no calls";
  if (n == 1)
    return name(window.calls.front());
  return c10::str(
      n,
      " calls, ",
      name(window.calls.front()),
      n == 2 ? " and " : " to ",
      name(window.calls.back()));
}

void log_plan(const WindowPlan& window, const std::string& what) {
  // One write a line: other threads, and the program itself, write there too.
  const auto line = c10::str(
      "[tenon torch_tenon.plans] window ", window.id, " (", name_of(window), ") ", what, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// Seconds as people read them, in ms below one.
std::string format_time(double seconds) {
  char text[32];
  std::snprintf(
      text,
      sizeof(text),
      seconds < 1 ? "%.3g ms" : "%.3g s",
      seconds < 1 ? seconds * 1e3 : seconds);
  return text;
}

// What `finish_window` brings.
std::string outcome_of(const WindowPlan& window, const FoundPlan& found) {
  const auto took =
      window.asked_at == 0
          ? std::string()
          : c10::str(
                " after ",
                format_time(static_cast<double>(profile_now() - window.asked_at) * 1e-9));
  if (found.plan)
    return (found.plan->is_for_any_size() ? "has a plan for sizes of any value" : "has a plan") +
           took;
  return found.error.empty() ? "nobody made its plan" + took : "has no plan: " + found.error;
}

struct Plans {
  MutexAtFork<ForkOrder::plans>
      mutex;  // taken with and without the interpreter's lock: never wait for that inside
  PlanStore store;
  std::shared_ptr<const AskForPlan> ask;
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

// Whether a window's plan is there. It is looked for among those that are kept, and asked for where
// it is time. Nothing of what Python raises meanwhile keeps the window from running.
bool is_ready(Plans& p, const std::shared_ptr<WindowPlan>& found, bool waits, WindowRun& run) {
  std::unique_lock<std::mutex> lock(p.mutex);
  if (found->state == WindowPlan::seen && !std::exchange(found->looked_up, true)) {
    lock.unlock();
    if (find_kept(*found) && g_logs)
      log_plan(*found, "found among the files of plans");
    lock.lock();
  }
  const bool again = found->has_claim || found->by_reference > 0;
  const bool may_ask = found->state == WindowPlan::seen &&
                       (found->failures == 0 || host_seconds() >= found->asks_from);
  const bool asks =
      waits ? may_ask || found->state == WindowPlan::waiting
            : again && may_ask && pays(found->cost, seconds_for_plan(found->calls.size()));
  if (asks && p.ask != nullptr) {
    found->state = WindowPlan::waiting;
    const auto seconds = found->cost.told = found->cost.saving();
    found->asked_at = profile_now();
    const auto runs = found->by_reference;
    lock.unlock();
    if (g_logs)
      log_plan(
          *found,
          c10::str(
              "asked for a plan: ",
              found->has_claim ? std::string("runs with these sizes")
                               : c10::str(runs, " runs by reference"),
              " took ",
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

}  // namespace

void count_as_reference(WindowPlan& found) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  --found.by_plan;
  ++found.by_reference;
}

std::mutex& plans_mutex() {
  return plans().mutex;
}

Candidates find_candidates(const Window& window, const std::vector<int32_t>& order) {
  auto& p = plans();
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

Ready find_ready(const Candidates& candidates, bool waits, WindowRun& asked) {
  auto& p = plans();
  const auto& own = candidates.own;
  const auto& claim = candidates.claim;
  if (own && is_ready(p, own, waits, asked))
    return {own, own->found.plan->instance({})};
  if (!claim || !is_ready(p, claim, waits, asked))
    return {};
  Ready ready{claim, claim->found.plan->instance(candidates.symbols)};
  if (!ready.plan) {
    count_as_reference(*claim);
  } else if (own) {
    std::lock_guard<std::mutex> lock(p.mutex);
    --own->by_reference;
  }
  return ready;
}

bool finish_window(WindowPlan& window, FoundPlan found) {
  if (g_logs)
    log_plan(window, outcome_of(window, found));
  const StoreLock lock(plans());
  if (window.state == WindowPlan::ready)
    return false;  // Found in a file meanwhile: other threads run it, without the lock.
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
  const bool ready = window.found.plan != nullptr;
  if (ready)
    ++plans().came;
  const bool passes = !ready && window.found.may_pass && window.failures < kMostFailures;
  if (passes)
    window.asks_from = host_seconds() + kFirstPause * std::pow(4, window.failures++);
  window.state = ready                                  ? WindowPlan::ready
                 : window.found.error.empty() || passes ? WindowPlan::seen
                                                        : WindowPlan::failed;
  plans().store.note_plan(window);
  return true;
}

void ask_for_later() {
  auto& p = plans();
  std::vector<std::shared_ptr<WindowPlan>> wanted;
  {
    const std::lock_guard<std::mutex> lock(p.mutex);
    for (const auto& w : p.store.all()) {
      const auto cost = seconds_for_plan(w->calls.size());
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
    const bool is_left = takes_longer_by_plan(w->cost);
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
        price_of(seconds_for_plan(w->calls.size())),
        waits ? static_cast<double>(profile_now() - w->asked_at) * 1e-9 : 0,
        w->sizes_served.size(),
        is_left ? w->cost.by_plan : 0,
        is_left ? w->cost.with_all : 0,
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

void set_logs_plans(bool on) {
  g_logs = on;
}

}  // namespace tenon
