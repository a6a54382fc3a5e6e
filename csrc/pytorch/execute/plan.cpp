#include "execute/plan.h"

#include <algorithm>
#include <cstring>

#include "device/host_allocator.h"
#include "device/profile.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/plan_run.h"
#include "record/graph.h"
#include "record/submissions.h"
#include "runtime/plan_check.h"

namespace tenon {
namespace {

void check_count(const char* what, size_t given, size_t wanted) {
  TORCH_CHECK(given == wanted, "the plan takes ", wanted, " ", what, ", not ", given);
}

// For the text of an error.
std::string steps_of(const PlanData& plan) {
  std::vector<std::string> names;
  for (const auto& step : plan.steps)
    names.push_back(step.name);
  return text_of_ops(names, names.size(), "step");
}

// A window that runs by reference may be what asks for this.
void enqueue_and_wait(
    c10::DeviceIndex device,
    const char* reason,
    const PlanData& plan,
    c10::function_ref<void(Queue&)> run) {
  const DeferredInterrupts until_nothing_of_the_host_s_is_used;
  QueueTurn turn(device);
  try {
    run(queue_of(device));
  } catch (...) {
    drain(device);
    throw;
  }
  const auto ticket = commit_whole(device);
  turn.end();
  wait_for(device, ticket, reason);
  if (const auto failure = ticket ? ticket->failure() : nullptr)
    failure->with(steps_of(plan))->raise();
}

// A number of the host's that a graph of an asynchronous device takes, as an optimizer's step is:
// its bytes go to the device, and come back if the run changes them. Others of its storage do not.
struct HostNumber {
  at::Tensor host;
  c10::Storage device;
  std::vector<char> found;

  HostNumber(at::Tensor from, c10::DeviceIndex index)
      : host(std::move(from)),
        device(c10::Storage::use_byte_size_t{}, host.nbytes(), device_block(host.nbytes(), index)),
        found(host.nbytes()) {}

  void send(Queue& queue) {
    queue.copy(
        device.mutable_data(), host.const_data_ptr(), found.size(), CopyKind::host_to_device);
  }
  void fetch(Queue& queue) {
    queue.copy(found.data(), device.mutable_data(), found.size(), CopyKind::device_to_host);
  }
  void take() {
    if (std::memcmp(found.data(), host.const_data_ptr(), found.size()) != 0)
      std::memcpy(host.mutable_data_ptr(), found.data(), found.size());
  }
};

constexpr size_t kMostKept = 4;

// None where one of them cannot be.
std::optional<std::vector<int64_t>> values_at(
    const std::vector<SizeExpression>& all, const std::vector<int64_t>& symbols) {
  std::vector<int64_t> values;
  for (const auto& one : all) {
    const auto value = one.evaluate(symbols);
    if (!value || *value < 0)
      return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

}  // namespace

Plan::Plan(PlanData data, std::shared_ptr<Pace> pace)
    : data_(std::move(data)),
      pace_(pace ? std::move(pace) : std::make_shared<Pace>(/*sized=*/false)),
      inputs_(data_.slots.size()),
      outputs_(data_.slots.size()),
      subjects_(data_.steps.size()) {
  for (size_t k = 0; k < data_.inputs.size(); ++k)
    inputs_[data_.inputs[k]] = k;
  for (size_t k = 0; k < data_.outputs.size(); ++k)
    outputs_[data_.outputs[k]] = k;
  resolve_calls();
  for (const auto& step : data_.steps) {
    const auto* call = std::get_if<CallStep>(&step.work);
    counters_.push_back(
        call == nullptr ? &tenon::counter("plan", step.name)
                        : &tenon::counter(call->route, call->counted));
    lends_inputs_ = lends_inputs_ || (call != nullptr && resolved(*call).may_keep);
  }
}

void Plan::resolve_calls() {
  for (auto& step : data_.steps) {
    auto* call = std::get_if<CallStep>(&step.work);
    if (call != nullptr && call->resolved == nullptr)
      resolve_call(*call);
  }
}

uint32_t Plan::subject(size_t step) const {
  auto& known = subjects_[step];
  if (const auto number = known.load(std::memory_order_relaxed))
    return number;
  const auto& [detail, sizes, calls, bytes, operations] = *data_.steps[step].facts;
  const auto value = [&](const SizeExpression& e) { return e.evaluate(symbols_).value_or(0); };
  Subject made{data_.steps[step].name, {}, calls, value(bytes), value(operations)};
  auto size = sizes.begin();
  for (const char c : detail) {
    if (c == '?')
      made.detail += std::to_string(value(*size++));
    else
      made.detail += c;
  }
  const auto number = subject_of(made);  // two threads get the same
  known.store(number, std::memory_order_relaxed);
  return number;
}

std::function<StepFailures()> Plan::enqueue(
    c10::ArrayRef<void*> inputs,
    const Output& output,
    c10::Device device,
    const Release& release,
    uint32_t window,
    c10::ArrayRef<int64_t> worlds,
    c10::ArrayRef<c10::Storage> keepers) const {
  check_count("inputs", inputs.size(), data_.inputs.size());
  PlanRun run(*this, device, [&](size_t slot) { return output(outputs_[slot]); }, window, worlds);
  for (size_t k = 0; k < inputs.size(); ++k)
    run.place(data_.inputs[k], inputs[k], keepers.empty() ? c10::Storage() : keepers[k]);
  run.execute([&](size_t slot) {
    if (release)
      release(inputs_[slot]);
  });
  return run.failures();
}

void Plan::run(
    c10::ArrayRef<void*> inputs,
    c10::ArrayRef<void*> outputs,
    c10::Device device,
    c10::ArrayRef<size_t> written) const {
  check_count("inputs", inputs.size(), data_.inputs.size());
  check_count("outputs", outputs.size(), data_.outputs.size());
  if (!device.is_cpu() && !target().host_memory)
    return run_on_copies(inputs, outputs, check_index(device.index()), written);
  raise_first(enqueue(inputs, [&](size_t k) { return outputs[k]; }, device)());
}

void Plan::run_on_copies(
    c10::ArrayRef<void*> inputs,
    c10::ArrayRef<void*> outputs,
    c10::DeviceIndex device,
    c10::ArrayRef<size_t> written) const {
  struct Copied {
    void* host;
    c10::DataPtr block;
    size_t nbytes;
  };
  std::vector<Copied> copied;  // inputs, then outputs
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto nbytes = data_.slots[data_.inputs[k]].nbytes;
    copied.push_back({inputs[k], device_block(nbytes, device), nbytes});
  }
  for (size_t k = 0; k < outputs.size(); ++k) {
    const auto nbytes = data_.slots[data_.outputs[k]].number;
    copied.push_back({outputs[k], device_block(nbytes, device), nbytes});
  }
  std::vector<void*> sources;
  for (size_t k = 0; k < inputs.size(); ++k)
    sources.push_back(copied[k].block.get());
  const auto output = [&](size_t k) { return copied[inputs.size() + k].block.get(); };
  std::function<StepFailures()> failures;
  enqueue_and_wait(device, "a plan of the device, for the host's memory", data_, [&](Queue& queue) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto& [host, block, nbytes] = copied[k];
      if (nbytes > 0)
        queue.copy(block.get(), host, nbytes, CopyKind::host_to_device);
    }
    failures = enqueue(sources, output, c10::Device(kTenon, device));
    for (size_t k = 0; k < copied.size(); ++k) {
      const auto& [host, block, nbytes] = copied[k];
      const bool is_written =
          k >= inputs.size() || std::count(written.begin(), written.end(), k) > 0;
      if (nbytes > 0 && is_written)
        queue.copy(host, block.get(), nbytes, CopyKind::device_to_host);
    }
  });
  raise_first(failures());
}

std::vector<at::Tensor> Plan::run(
    std::vector<at::Tensor> inputs, c10::Device device, c10::ArrayRef<size_t> lost) const {
  check_count("inputs", inputs.size(), data_.inputs.size());
  if (!device.is_cpu())
    refuse_in_capture("a graph of torch.compile");
  const bool enqueues = !device.is_cpu() && !target().host_memory;
  TORCH_CHECK(
      !enqueues || target().runs_plans,
      "The target '",
      target().name,
      "' takes no kernels: compiled graphs do not run on it yet");
  std::vector<std::pair<void*, c10::Storage>> places;
  std::vector<HostNumber> numbers;
  for (auto& t : inputs) {
    if (t.is_conj() || t.is_neg())
      t = t.resolve_conj().resolve_neg();
    if (enqueues && t.is_cpu() && t.dim() == 0) {
      const auto& number = numbers.emplace_back(t, device.index());
      places.emplace_back(number.device.mutable_data(), number.device);
      continue;
    }
    TORCH_CHECK(
        t.is_cpu() != enqueues || t.numel() == 0 || (has_target() && target().host_memory),
        "a compiled graph for ",
        device,
        " was given a tensor of ",
        t.device(),
        ", and the host cannot reach the memory of the target '",
        target().name,
        "'");
    auto& storage = *t.storage().unsafeGetStorageImpl();
    auto* start = static_cast<char*>(
        t.is_cpu() ? storage.mutable_data() : settled_address(storage, Access::update));
    places.emplace_back(
        start != nullptr ? start + t.storage_offset() * t.itemsize() : nullptr, t.storage());
  }
  std::vector<c10::Storage> half_written;
  for (const auto k : lost) {
    if (inputs.at(k).device().type() == kTenon)
      half_written.push_back(inputs[k].storage());
  }
  inputs.clear();
  std::optional<PlanRun> run;
  const auto lose = [&] {
    const auto failure = Failure::current("in a compiled graph that was writing this tensor");
    for (const auto& storage : half_written)
      lose_contents(*storage.unsafeGetStorageImpl(), failure);
  };
  const auto execute = [&] {
    run.emplace(*this, device);
    for (size_t k = 0; k < places.size(); ++k)
      run->place(data_.inputs[k], places[k].first, std::move(places[k].second));
    run->execute({});
  };
  try {
    if (enqueues) {
      enqueue_and_wait(device.index(), "a compiled graph", data_, [&](Queue& queue) {
        for (auto& number : numbers)
          number.send(queue);
        execute();
        for (auto& number : numbers)
          number.fetch(queue);
      });
      for (auto& number : numbers)
        number.take();
    } else {
      execute();
    }
    raise_first(run->failures()());
  } catch (const c10::OutOfMemoryError&) {
    if (!enqueues)  // else nothing was enqueued
      lose();
    throw;
  } catch (...) {
    lose();
    throw;
  }
  std::vector<at::Tensor> results;
  results.reserve(data_.results.size());
  for (const auto& spec : data_.results)
    results.push_back(run->result(spec));
  return results;
}

SizedPlan::SizedPlan(PlanOfAnySize plan, bool any_size) {
  if (any_size)
    plan_ = std::move(plan);
  else
    only_ = std::make_shared<const Plan>(std::move(plan.plan));
}

// False where one of its numbers cannot be.
bool SizedPlan::give(Plan& instance, const std::vector<int64_t>& symbols) const {
  auto& data = instance.data_;
  if (!give_sizes(data, plan_.numbers, symbols))
    return false;
  for (const auto& number : plan_.numbers) {
    if (number.where == SizedNumber::Where::argument)
      std::get<CallStep>(data.steps[number.index].work).resolved = nullptr;
  }
  instance.resolve_calls();
  instance.symbols_ = symbols;
  for (auto& subject : instance.subjects_)
    subject.store(0, std::memory_order_relaxed);
  if (!memory_)
    return true;
  const auto inputs = values_at(memory_->first, symbols);
  const auto outputs = values_at(memory_->second, symbols);
  return inputs && outputs && check_memory(data, *inputs, *outputs);
}

std::shared_ptr<const Plan> SizedPlan::instance(const std::vector<int64_t>& symbols) {
  if (only_)
    return only_;
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = std::find_if(
      made_.begin(), made_.end(), [&](const auto& one) { return one.first == symbols; });
  if (found == made_.end()) {
    // Nobody else has the one that was used longest ago, unless it runs.
    const bool full = made_.size() >= kMostKept && made_.back().second.use_count() == 1;
    auto made = full ? made_.back().second : std::make_shared<Plan>(plan_.plan, pace_);
    if (full)
      made_.pop_back();  // where it is not given all of them, nobody is to find it
    if (!give(*made, symbols))
      return nullptr;
    found = made_.insert(made_.end(), {symbols, std::move(made)});
  }
  made_.splice(made_.begin(), made_, found);
  // Those that ran at the same time go when they are over.
  while (made_.size() > kMostKept && made_.back().second.use_count() == 1)
    made_.pop_back();
  return found->second;
}

}  // namespace tenon
