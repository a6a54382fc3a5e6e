#include "runtime/run.h"

#include <algorithm>

#include "runtime/run_memory.h"

namespace tenon {
namespace {

// The slots that get memory for a step.
template <class F>
void for_each_made(const Step& step, F&& f) {
  for (const auto slot : step.allocated)
    f(slot);
  if (const auto* call = std::get_if<CallStep>(&step.work)) {
    for (const auto& result : call->results) {
      if (result)
        f(result->slot);
    }
  }
}

}  // namespace

std::shared_ptr<void> RunHost::staging(size_t nbytes) {
  return aligned_memory(nbytes);
}

void RunHost::call(size_t, std::span<void* const>, std::span<void*>) {
  fail(ErrorKind::unsupported, "a call of a plan, at once, by who runs none so");
}

RunHost::LaterCall RunHost::call_later(size_t) {
  fail(ErrorKind::unsupported, "a call of a plan, in a queue, by who runs none so");
}

void raise_first(const StepFailures& failures) {
  if (!failures.empty())
    failures.front().failure->raise();
}

size_t status_words(const PlanData& plan) {
  size_t words = 0;
  for (const auto& step : plan.steps) {
    if (const auto* kernel = std::get_if<KernelStep>(&step.work))
      words += kernel->checks.size() * kStatusWords;
  }
  return words;
}

// What outlives a run on a device: memory of the host that its steps use.
struct Run::Outcome {
  std::vector<int64_t> status;                                      // of all kernels' checks
  std::vector<std::pair<size_t, std::shared_ptr<Failure>>> raised;  // by the calls of those steps
  std::mutex mutex;  // of `raised`; not of forks: a child has no device that others run calls on
  std::vector<std::shared_ptr<void>> staging;

  void note(size_t step) {
    auto failure = Failure::current("");
    const std::lock_guard<std::mutex> lock(mutex);
    raised.emplace_back(step, std::move(failure));
  }
};

Run::Run(const PlanData& plan, Queue& queue, bool at_once, RunHost& host)
    : plan_(plan),
      queue_(queue),
      at_once_(at_once),
      host_(host),
      pointers_(plan.slots.size()),
      outcome_(shared<Outcome>()) {
  outcome_->status = std::vector<int64_t>(status_words(plan));
  arguments_.reserve(plan.slots.size());
  char* start = at_once_ ? stack_.take(plan.arena_bytes) : nullptr;
  if (start == nullptr)
    start = static_cast<char*>(host_.arena(plan.arena_bytes));
  for (size_t k = 0; k < plan.slots.size(); ++k) {
    if (plan.slots[k].kind == Slot::Kind::temporary)
      pointers_[k] = start + plan.slots[k].number;
  }
  if (plan.constants.empty())
    return;
  try {
    place_constants();
  } catch (...) {
    if (!at_once_)
      host_.drain();  // of memory that ends with this run
    throw;
  }
}

void Run::place_constants() {
  for (size_t k = 0; k < plan_.slots.size(); ++k) {
    if (plan_.slots[k].kind != Slot::Kind::constant)
      continue;
    const auto& constant = plan_.constants[plan_.slots[k].number];
    pointers_[k] = constant.data;
    if (at_once_)
      continue;
    pointers_[k] = host_.allocate(k, constant.layout.nbytes);
    if (constant.layout.nbytes > 0)
      queue_.copy(pointers_[k], constant.data, constant.layout.nbytes, CopyKind::host_to_device);
  }
}

void Run::allocate(size_t slot) {
  const auto& [kind, number, nbytes] = plan_.slots[slot];
  void* place = kind == Slot::Kind::block && at_once_ ? stack_.take(number) : nullptr;
  pointers_[slot] = place != nullptr ? place : host_.allocate(slot, number);
}

// What a call makes lies where the device knows it.
void Run::allocate_results(const CallStep& step) {
  for (const auto& result : step.results) {
    if (result && plan_.slots[result->slot].kind == Slot::Kind::external)
      pointers_[result->slot] = host_.allocate(result->slot, result->layout.nbytes);
  }
}

// All memory of the run at once: for each step where its slots lie that get memory there. The queue
// is in order, so what one step lets go of may be another one's before either runs.
std::vector<void*> Run::allocate_all() {
  std::vector<void*> found;
  const auto before = pointers_;
  for (const auto& step : plan_.steps) {
    for (const auto slot : step.allocated)
      allocate(slot);
    if (const auto* call = std::get_if<CallStep>(&step.work))
      allocate_results(*call);
    for_each_made(step, [&](size_t slot) { found.push_back(pointers_[slot]); });
    for (const auto slot : step.released)
      host_.release(slot);
  }
  pointers_ = before;
  return found;
}

Next Run::after(size_t index) const {
  if (at_once_ || index + 1 == plan_.steps.size())
    return Next::nothing;
  const auto* call = std::get_if<CallStep>(&plan_.steps[index + 1].work);
  const bool on_device = call == nullptr || (queue_.runs_calls() && !call->on_host);
  return on_device ? Next::device : Next::host;
}

// That steps may use.
size_t Run::bytes_of(size_t slot) const {
  const auto& [kind, number, nbytes] = plan_.slots[slot];
  if (kind == Slot::Kind::output || kind == Slot::Kind::block)
    return number;
  return kind == Slot::Kind::constant ? plan_.constants[number].layout.nbytes : nbytes;
}

void Run::launch(const KernelStep& step, size_t index) {
  arguments_.clear();
  nbytes_.clear();
  for (const auto slot : step.slots) {
    arguments_.push_back(pointers_[slot]);
    if (at_once_)
      continue;
    nbytes_.push_back(bytes_of(slot));
    if (nbytes_.back() == 0)
      arguments_.back() = nullptr;  // it may lie behind the end of the device's memory
  }
  const auto words = step.checks.size() * kStatusWords;
  const std::span<int64_t> status(outcome_->status.data() + next_status_, words);
  next_status_ += words;
  const std::span<const int64_t> sizes(step.sizes);
  const auto numbers = sizes.size() - step.grid - step.group - step.scratch;
  queue_.launch(
      {.kernel = step.function,
       .pointers = arguments_,
       .nbytes = nbytes_,
       .numbers = sizes.first(numbers),
       .grid = sizes.subspan(numbers, step.grid),
       .group = sizes.subspan(numbers + step.grid, step.group),
       .scratch = step.scratch > 0 ? sizes.back() : 0,
       .status = words > 0 ? status : std::span<int64_t>(),
       .next = after(index)});
}

void Run::run_step(const Step& step, size_t index) {
  if (const auto* kernel = std::get_if<KernelStep>(&step.work))
    return launch(*kernel, index);
  const auto& call = *std::get_if<CallStep>(&step.work);
  at_once_ ? call_at_once(call, index) : call_on_device(call, index);
}

void Run::call_at_once(const CallStep& step, size_t index) {
  const auto is_external = [&](const std::optional<SlotTensor>& result) {
    return result && plan_.slots[result->slot].kind == Slot::Kind::external;
  };
  std::vector<void*> tensors(step.tensors.size()), results(step.results.size());
  for (size_t k = 0; k < tensors.size(); ++k)
    tensors[k] = pointers_[step.tensors[k].slot];
  for (size_t k = 0; k < results.size(); ++k) {
    const auto& result = step.results[k];
    results[k] = result && !is_external(result) ? pointers_[result->slot] : nullptr;
  }
  bool failed = false;
  try {
    host_.call(index, tensors, results);
  } catch (...) {
    outcome_->note(index);
    failed = true;
  }
  for (size_t k = 0; k < results.size(); ++k) {
    if (!is_external(step.results[k]))
      continue;
    const auto& [slot, layout] = *step.results[k];
    // After a failure later steps have something to work on.
    pointers_[slot] = failed ? host_.allocate(slot, layout.nbytes) : results[k];
  }
}

// Either in the device's queue, on its own memory, or by the host on copies of what the call needs,
// after waiting for that.
void Run::call_on_device(const CallStep& step, size_t index) {
  const auto inputs = step.tensors.size(), count = inputs + step.results.size();
  std::vector<void*> pointers(count), memory(count);
  std::vector<size_t> sizes(count);  // from the start of the slot on
  for (size_t k = 0; k < count; ++k) {
    if (k >= inputs && !step.results[k - inputs])
      continue;
    const auto& [slot, layout] = k < inputs ? step.tensors[k] : *step.results[k - inputs];
    sizes[k] = layout.nbytes;
    pointers[k] = layout.nbytes > 0 ? pointers_[slot] : nullptr;
  }
  auto work = [index, inputs, outcome = outcome_, call = host_.call_later(index)](
                  std::span<void* const> memory) {
    try {
      call(memory.first(inputs), memory.subspan(inputs));
    } catch (...) {
      outcome->note(index);
    }
  };
  if (queue_.runs_calls() && !step.on_host)
    return queue_.call(std::move(work), pointers, sizes);
  // Tensors of one storage have one copy, or what is written to one of them would be lost.
  struct Copy {
    void* pointer;
    void* host = nullptr;
    size_t nbytes = 0;
    bool read = false, written = false;
  };
  std::vector<Copy> copies;
  std::vector<size_t> which(count);  // by pointer
  for (size_t k = 0; k < count; ++k) {
    auto& number = which[k];
    while (number < copies.size() && copies[number].pointer != pointers[k])
      ++number;
    if (number == copies.size())
      copies.push_back({pointers[k]});
    auto& copy = copies[number];
    copy.nbytes = std::max(copy.nbytes, sizes[k]);
    copy.read = copy.read || k < inputs;
    copy.written = copy.written || k >= inputs || step.written[k] != 0;
  }
  for (auto& copy : copies) {
    if (copy.nbytes == 0)
      continue;  // null, as a result is that nobody wants
    copy.host = outcome_->staging.emplace_back(host_.staging(copy.nbytes)).get();
    if (copy.read)
      queue_.copy(copy.host, copy.pointer, copy.nbytes, CopyKind::device_to_host);
  }
  host_.wait("an op that runs on the host", /*raises=*/true);
  for (size_t k = 0; k < count; ++k)
    memory[k] = copies[which[k]].host;
  work(memory);
  for (const auto& copy : copies) {
    if (copy.written && copy.nbytes > 0)
      queue_.copy(copy.pointer, copy.host, copy.nbytes, CopyKind::host_to_device);
  }
}

void Run::execute() {
  if (at_once_)
    return run_steps();
  try {
    run_steps();
  } catch (...) {
    host_.drain();  // of memory that ends with this run
    throw;
  }
}

bool Run::record() {
  try {
    run_steps();
    return true;
  } catch (...) {  // `execute` runs them one by one
    return false;
  }
}

void Run::run_steps() {
  next_status_ = 0;
  const bool watched = host_.watches();
  const bool each = !at_once_ && host_.waits_for_each();
  const auto made = at_once_ ? std::vector<void*>() : allocate_all();
  auto next = made.begin();
  for (size_t index = 0; index < plan_.steps.size(); ++index) {
    const auto& step = plan_.steps[index];
    if (at_once_) {
      for (const auto slot : step.allocated)
        allocate(slot);
    } else {
      for_each_made(step, [&](size_t slot) { pointers_[slot] = *next++; });
    }
    if (watched)
      host_.watch(index, [&] { run_step(step, index); });
    else
      run_step(step, index);
    if (each)
      host_.wait("each step", /*raises=*/false);
    for (const auto slot : step.released) {
      if (at_once_) {
        host_.release(slot);
        pointers_[slot] = nullptr;  // a later step may have memory there once more
      }
      if (plan_.slots[slot].kind == Slot::Kind::input)
        host_.input_done(slot);
    }
  }
}

Run::Failures Run::failures() const {
  return {plan_.steps, outcome_};
}

StepFailures Run::Failures::operator()() const {
  StepFailures found;
  int64_t* status = outcome_->status.data();
  auto raised = outcome_->raised.begin();
  for (size_t index = 0; index < steps_->size(); ++index) {
    const auto& step = (*steps_)[index];
    if (const auto* kernel = std::get_if<KernelStep>(&step.work)) {
      for (const auto& calls : kernel->checks) {
        if (status[0] != 0) [[unlikely]] {
          found.push_back({calls, Failure::of(failed_check({status, kStatusWords}, step.name))});
          std::fill_n(status, kStatusWords, 0);
        }
        status += kStatusWords;
      }
    } else if (raised != outcome_->raised.end() && raised->first == index) {
      found.push_back({{std::get_if<CallStep>(&step.work)->call}, (raised++)->second});
    }
  }
  return found;
}

}  // namespace tenon
