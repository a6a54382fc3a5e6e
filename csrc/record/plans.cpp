#include "record/plans.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "device/target.h"
#include "execute/host_allocator.h"
#include "execute/reference_window.h"
#include "record/verify.h"

namespace tenon {
namespace {

struct Plans {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_multimap<uint64_t, std::shared_ptr<WindowPlan>> by_structure;
  std::vector<std::shared_ptr<WindowPlan>> by_id;
  std::deque<std::shared_ptr<WindowPlan>> queue;
  std::function<void()> start_builder;
  bool building = false, stopped = false;
  PlanCounts counts;
};

// Leaked on purpose: the builder's thread may wait on it while the process exits.
Plans& plans() {
  static auto* instance = new Plans();
  return *instance;
}

uint64_t hash_of(const std::vector<int64_t>& words) {
  uint64_t hash = words.size();
  for (const auto word : words) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

// The window as the builder sees it, and for each of its slots the window's.
std::shared_ptr<WindowPlan> describe(const Window& window, std::vector<int64_t> structure) {
  auto made = std::make_shared<WindowPlan>();
  made->structure = std::move(structure);
  const auto order = window.used_slots();
  std::vector<int32_t> numbers(window.slots.size(), -1);
  for (size_t k = 0; k < order.size(); ++k) {
    numbers[order[k]] = static_cast<int32_t>(k);
    const auto& slot = window.slots[order[k]];
    made->slots.push_back({slot.nbytes, slot.fresh, slot.alive, slot.written});
  }
  for (const auto& call : window.calls) {
    made->calls.push_back(call.entry);
    auto& slots = made->slots_of_calls.emplace_back();
    const auto count = call.entry->tensors.size() + call.entry->fresh;
    for (size_t k = 0; k < count; ++k)
      slots.push_back(numbers[window.slots_of_calls[call.first_slot + k]]);
  }
  return made;
}

// The plan of a window's structure, known from now on.
std::shared_ptr<WindowPlan> find_or_add(Plans& p, const Window& window) {
  static thread_local std::vector<int64_t> structure;
  window.structure(structure);
  const auto hash = hash_of(structure);
  const auto range = p.by_structure.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->structure == structure)
      return it->second;
  }
  auto made = describe(window, structure);
  made->id = static_cast<int64_t>(p.by_id.size());
  p.by_id.push_back(made);
  p.by_structure.emplace(hash, made);
  ++p.counts.structures;
  return made;
}

void run_plan(
    const WindowPlan& found,
    const Window& window,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release = {}) {
  const auto order = window.used_slots();
  std::vector<void*> inputs, outputs;
  inputs.reserve(found.inputs.size());
  outputs.reserve(found.outputs.size());
  for (const auto k : found.inputs) {
    if (k >= 0)
      inputs.push_back(window.slots[order[k]].block);
    else  // a plan only reads its numbers
      inputs.push_back(const_cast<int64_t*>(&window.scalars[-1 - k]));
  }
  for (const auto k : found.outputs)
    outputs.push_back(window.slots[order[k]].block);
  const auto release_input = [&](size_t input) {
    const auto k = found.inputs[input];
    if (release && k >= 0 && window.slots[order[k]].is_kept())
      release(window.slots[order[k]]);
  };
  found.plan->run(inputs, outputs, c10::Device(kTenon, device), release_input);
}

}  // namespace

void run_window(
    const Window& window,
    c10::DeviceIndex device,
    ExecuteMode mode,
    const std::function<void(const WindowSlot&)>& release) {
  if (!target().host_memory)
    return run_window_by_reference(window, device, release);
  const HostOverflow overflow;
  auto& p = plans();
  std::shared_ptr<WindowPlan> found;
  std::function<void()> start;
  const bool waits = mode == ExecuteMode::compiled || mode == ExecuteMode::verify;
  bool ready = false;
  {
    std::unique_lock<std::mutex> lock(p.mutex);
    const auto before = p.counts.structures;
    found = find_or_add(p, window);
    const bool again = p.counts.structures == before;
    if (found->state == WindowPlan::seen && (again || waits)) {
      found->state = WindowPlan::waiting;
      p.queue.push_back(found);
      p.changed.notify_all();
      if (!p.building && p.start_builder) {
        p.building = true;
        start = p.start_builder;
      }
    }
    ready = found->state == WindowPlan::ready;
  }
  if (start)
    start();
  if (waits && !ready) {
    std::unique_lock<std::mutex> lock(p.mutex);
    p.changed.wait(lock, [&] { return found->state != WindowPlan::waiting || p.stopped; });
    ready = found->state == WindowPlan::ready;
  }
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    ++(ready ? p.counts.hits : p.counts.reference);
    ++(ready ? found->by_plan : found->by_reference);
  }
  if (ready && mode == ExecuteMode::verify)
    verify_window(*found, window, device, [&] { run_plan(*found, window, device); });
  else if (ready)
    run_plan(*found, window, device, release);
  else
    run_window_by_reference(window, device, release);
}

std::shared_ptr<const WindowPlan> next_window() {
  auto& p = plans();
  std::unique_lock<std::mutex> lock(p.mutex);
  p.changed.wait(lock, [&] { return p.stopped || !p.queue.empty(); });
  if (p.stopped)
    return nullptr;
  auto found = p.queue.front();
  p.queue.pop_front();
  return found;
}

void finish_window(
    int64_t id,
    std::shared_ptr<const Plan> plan,
    std::vector<int32_t> inputs,
    std::vector<int32_t> outputs,
    std::string error) {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  auto& found = *p.by_id.at(id);
  found.plan = std::move(plan);
  found.inputs = std::move(inputs);
  found.outputs = std::move(outputs);
  found.error = std::move(error);
  found.state = found.plan != nullptr ? WindowPlan::ready : WindowPlan::failed;
  ++(found.plan != nullptr ? p.counts.ready : p.counts.failed);
  p.changed.notify_all();
}

void stop_building() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stopped = true;
  p.changed.notify_all();
}

void set_start_builder(std::function<void()> start) {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.start_builder = std::move(start);
}

void forget_builder() {
  // The builder may have held the mutex when the process was copied: a new one takes its place.
  auto& p = plans();
  new (&p.mutex) std::mutex();
  new (&p.changed) std::condition_variable();
  p.building = false;
  p.queue.clear();
  for (auto& found : p.by_id) {
    if (found->state == WindowPlan::waiting)
      found->state = WindowPlan::seen;
  }
}

std::vector<WindowRuns> window_runs() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  std::vector<WindowRuns> runs;
  for (const auto& found : p.by_id)
    runs.push_back({found->by_plan, found->by_reference, found->error});
  return runs;
}

PlanCounts plan_counts() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  auto counts = p.counts;
  for (const auto& found : p.by_id)
    counts.waiting += found->state == WindowPlan::waiting ? 1 : 0;
  return counts;
}

}  // namespace tenon
