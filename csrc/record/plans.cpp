#include "record/plans.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "device/target.h"
#include "execute/host_allocator.h"
#include "execute/reference.h"

namespace tenon {
namespace {

struct Plans {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_multimap<uint64_t, std::shared_ptr<WindowPlan>> by_structure;
  std::vector<std::shared_ptr<WindowPlan>> by_id;
  std::deque<std::shared_ptr<WindowPlan>> queue;
  std::function<void()> start_builder;
  std::function<void(const Verification&)> verify;
  bool building = false, stopped = false;
};

// Leaked on purpose: the builder's thread may wait on it while the process exits.
Plans& plans() {
  static auto* instance = new Plans();
  return *instance;
}

// The slots of a window in the order of their first use.
std::vector<WindowSlot> slots_in(const std::vector<int32_t>& order, const Window& window) {
  std::vector<WindowSlot> found;
  for (const auto index : order)
    found.push_back(window.slots[index]);
  return found;
}

// The plan of a window's structure, known from now on.
std::shared_ptr<WindowPlan> find_or_add(
    Plans& p,
    const Window& window,
    const std::vector<int64_t>& structure,
    const std::vector<int32_t>& order) {
  uint64_t hash = structure.size();
  for (const auto word : structure)
    hash = mixed(hash, word);
  const auto range = p.by_structure.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it) {
    if (it->second->structure == structure)
      return it->second;
  }
  auto made = std::make_shared<WindowPlan>();
  made->id = static_cast<int64_t>(p.by_id.size());
  made->structure = structure;
  made->slots = slots_in(order, window);
  for (const auto& call : window.calls)
    made->calls.push_back(call.entry);
  std::vector<int32_t> numbers(window.slots.size(), -1);
  for (size_t k = 0; k < order.size(); ++k)
    numbers[order[k]] = static_cast<int32_t>(k);
  for (const auto index : window.slots_of_calls)
    made->slots_of_calls.push_back(numbers[index]);
  p.by_id.push_back(made);
  p.by_structure.emplace(hash, made);
  return made;
}

void run_plan(
    const WindowPlan& found,
    const Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::function<void(const WindowSlot&)>& release) {
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
  const bool verifies = mode == ExecuteMode::verify && target().host_memory;
  const auto& releases = verifies ? std::function<void(const WindowSlot&)>() : release;
  const auto by_reference = [&] { run_window_by_reference(window, device, releases); };
  if (!target().host_memory)
    return by_reference();
  const HostOverflow overflow;
  static thread_local std::vector<int64_t> structure;
  const auto order = window.structure(structure);
  const bool waits = mode == ExecuteMode::compiled || mode == ExecuteMode::verify;
  auto& p = plans();
  std::unique_lock<std::mutex> lock(p.mutex);
  const auto found = find_or_add(p, window, structure, order);
  const bool again = found->by_plan + found->by_reference > 0;
  if (found->state == WindowPlan::seen && (again || waits)) {
    found->state = WindowPlan::waiting;
    p.queue.push_back(found);
    p.changed.notify_all();
    if (p.start_builder && !std::exchange(p.building, true)) {
      lock.unlock();
      p.start_builder();
      lock.lock();
    }
  }
  if (waits)
    p.changed.wait(lock, [&] { return found->state != WindowPlan::waiting || p.stopped; });
  const bool ready = found->state == WindowPlan::ready;
  ++(ready ? found->by_plan : found->by_reference);
  lock.unlock();
  const auto by_plan = [&] { run_plan(*found, window, order, device, releases); };
  if (ready && verifies)
    p.verify({*found, window.scalars, slots_in(order, window), by_plan, by_reference});
  else if (ready)
    by_plan();
  else
    by_reference();
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
    std::shared_ptr<Plan> plan,
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
  p.changed.notify_all();
}

void stop_building() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.stopped = true;
  p.changed.notify_all();
}

void set_start_builder(std::function<void()> start) {
  plans().start_builder = std::move(start);
}

void set_verify(std::function<void(const Verification&)> verify) {
  plans().verify = std::move(verify);
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

std::map<std::string, int64_t> plan_counts() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  std::map<WindowPlan::State, int64_t> states;
  int64_t hits = 0, reference = 0;
  for (const auto& found : p.by_id) {
    ++states[found->state];
    hits += found->by_plan;
    reference += found->by_reference;
  }
  return {
      {"hits", hits},
      {"reference", reference},
      {"structures", static_cast<int64_t>(p.by_id.size())},
      {"waiting", states[WindowPlan::waiting]},
      {"ready", states[WindowPlan::ready]},
      {"failed", states[WindowPlan::failed]}};
}

std::vector<std::tuple<int64_t, int64_t, std::string>> window_runs() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  std::vector<std::tuple<int64_t, int64_t, std::string>> runs;
  for (const auto& found : p.by_id)
    runs.emplace_back(found->by_plan, found->by_reference, found->error);
  return runs;
}

}  // namespace tenon
