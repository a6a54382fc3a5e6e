#include "execute/window_run.h"

#include <ATen/Parallel.h>

#include "device/host_allocator.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/failure_flow.h"
#include "execute/reference_window.h"
#include "record/call_pattern.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

// An error that is no call's is everybody's: nobody knows what depends on it.
bool is_of_no_call(const StepFailure& failed) {
  return std::all_of(failed.calls.begin(), failed.calls.end(), [](auto call) { return call < 0; });
}

// By call: the surroundings that it was made in; none where they are all alike.
std::vector<int64_t> worlds_of(const std::vector<const OpEntry*>& calls) {
  std::vector<int64_t> worlds;
  for (const auto* call : calls)
    worlds.push_back(call->surroundings());
  const bool alike = std::equal(worlds.begin() + 1, worlds.end(), worlds.begin());
  return alike ? std::vector<int64_t>() : worlds;
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

}  // namespace

std::shared_ptr<WindowPlan> describe(const Window& window, const std::vector<int32_t>& order) {
  auto made = std::make_shared<WindowPlan>();
  made->threads = at::get_num_threads();
  for (const auto index : order) {
    const auto& slot = window.slots[index];
    made->slots.push_back({slot.nbytes, slot.fresh, slot.alive, slot.written});
  }
  for (const auto& call : window.calls) {
    made->calls.push_back(call.entry);
    made->entries.push_back(call.entry->shared_from_this());
    const auto* pattern = call.entry->pattern;
    made->sized.push_back(pattern != nullptr ? static_cast<int32_t>(pattern->given) : -1);
  }
  made->worlds = worlds_of(made->calls);
  const auto places = window.places(order);
  for (const auto index : window.slots_of_calls)
    made->slots_of_calls.push_back(places[index]);
  return made;
}

DeviceNumbers::DeviceNumbers(const Window& window, c10::DeviceIndex device)
    : values(window.numbers) {
  if (values.empty())
    return;
  const auto nbytes = values.size() * sizeof(int64_t);
  memory = device_block(nbytes, device);
  queue_of(device).copy(memory.get(), values.data(), nbytes, CopyKind::host_to_device);
}

WindowRun run_plan(
    const Ready& ready,
    Window& window,
    const std::vector<int32_t>& order,
    c10::DeviceIndex device,
    const std::shared_ptr<DeviceNumbers>& numbers,
    bool keeps_slots) {
  const auto& found = ready.found;
  const NeutralThread neutral;
  const AsRecorded as_recorded(found->calls.front()->surroundings());
  const bool host_memory = target().host_memory;
  auto* first_number =
      host_memory ? window.numbers.data() : static_cast<int64_t*>(numbers->memory.get());
  const auto address = [&](int32_t k) {
    const auto& slot = window.slots[order[k]];
    return slot.buffer ? slot.buffer->memory() : nullptr;
  };
  std::vector<void*> inputs;
  inputs.reserve(found->found.inputs.size());
  for (const auto k : found->found.inputs)
    inputs.push_back(k >= 0 ? address(k) : first_number + (-1 - k));
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

}  // namespace tenon
