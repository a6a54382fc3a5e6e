#include "record/plans.h"

#include <mutex>
#include <unordered_map>

#include "device/target.h"
#include "execute/host_allocator.h"
#include "execute/reference.h"

namespace tenon {
namespace {

struct Plans {
  std::mutex mutex;  // taken with and without the interpreter's lock: never wait for that inside
  std::unordered_multimap<uint64_t, std::shared_ptr<WindowPlan>> by_structure;
  std::vector<std::shared_ptr<WindowPlan>> by_id;
  std::shared_ptr<const AskForPlan> ask;
  Verify verify;
};

// Leaked on purpose: windows may be committed while the process exits.
Plans& plans() {
  static auto* instance = new Plans();
  return *instance;
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
  for (const auto index : order)
    made->slots.push_back(window.slots[index]);
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
  const bool asks =
      waits ? found->state <= WindowPlan::waiting : again && found->state == WindowPlan::seen;
  if (asks && p.ask != nullptr) {
    found->state = WindowPlan::waiting;
    const auto ask = p.ask;
    lock.unlock();
    (*ask)(found, waits);
    lock.lock();
  }
  const bool ready = found->state == WindowPlan::ready;
  ++(ready ? found->by_plan : found->by_reference);
  lock.unlock();
  const auto by_plan = [&] { run_plan(*found, window, order, device, releases); };
  if (ready && verifies) {
    std::vector<uintptr_t> blocks;
    for (const auto index : order)
      blocks.push_back(reinterpret_cast<uintptr_t>(window.slots[index].block));
    p.verify(*found, window.scalars, blocks, by_plan, by_reference);
  } else if (ready) {
    by_plan();
  } else {
    by_reference();
  }
}

void finish_window(
    WindowPlan& window,
    std::shared_ptr<Plan> plan,
    std::vector<int32_t> inputs,
    std::vector<int32_t> outputs,
    std::string error) {
  std::lock_guard<std::mutex> lock(plans().mutex);
  window.plan = std::move(plan);
  window.inputs = std::move(inputs);
  window.outputs = std::move(outputs);
  window.error = std::move(error);
  window.state = window.plan != nullptr  ? WindowPlan::ready
                 : !window.error.empty() ? WindowPlan::failed
                                         : WindowPlan::seen;
}

void set_ask_for_plan(AskForPlan ask) {
  auto made = ask ? std::make_shared<const AskForPlan>(std::move(ask)) : nullptr;
  std::lock_guard<std::mutex> lock(plans().mutex);
  plans().ask.swap(made);
}

void set_verify(Verify verify) {
  plans().verify = std::move(verify);
}

std::vector<std::tuple<int64_t, int64_t, int, std::string>> window_runs() {
  auto& p = plans();
  std::lock_guard<std::mutex> lock(p.mutex);
  std::vector<std::tuple<int64_t, int64_t, int, std::string>> runs;
  for (const auto& found : p.by_id)
    runs.emplace_back(found->by_plan, found->by_reference, found->state, found->error);
  return runs;
}

}  // namespace tenon
