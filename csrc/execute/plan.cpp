#include "execute/plan.h"

#include <c10/core/CPUAllocator.h>

#include "device/allocator.h"
#include "device/guard.h"
#include "device/recorded.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_allocator.h"

namespace tenon {
namespace {

// An arena of so many bytes lies on the stack, as the scratch memory of PyTorch's own loops does.
constexpr size_t kOnStack = size_t{16} << 10;

std::atomic<bool> g_timing{false};

// The numbers of CHECKS in torch_tenon/compiler/codegen/iteration.py.
enum class Check : int64_t { index = 1, embedding = 2, gather = 3, division = 4 };

// What PyTorch raises where the check failed that left this status.
std::exception_ptr failed_check(const int64_t* status, const std::string& step) {
  const auto check = static_cast<Check>(status[0]);
  const auto size = status[2];
  // A negative index was counted from the end before it was checked.
  const auto index = check == Check::index && status[1] < 0 ? status[1] - size : status[1];
  const auto where = c10::str(" (in the kernel of ", step, ")");
  const auto outside =
      c10::str("index ", index, " is out of bounds for dimension 0 with size ", size, where);
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (check) {
    case Check::division:
      return std::make_exception_ptr(c10::Error(here, "ZeroDivisionError" + where));
    case Check::gather:
      return std::make_exception_ptr(c10::Error(here, outside));
    case Check::embedding:
      return std::make_exception_ptr(c10::IndexError(here, "index out of range in self" + where));
    case Check::index:
      return std::make_exception_ptr(c10::IndexError(here, outside));
  }
  TORCH_INTERNAL_ASSERT(false, "a kernel reports a check of kind ", status[0], where);
}

c10::DataPtr allocate_arena(size_t nbytes, c10::Device device) {
  // On a target whose memory the host can reach, graphs of the host's tensors share its blocks:
  // they are used again between runs and plans, where fresh pages would cost more than the work.
  if (device.is_cpu() && !(has_target() && target().host_memory))
    return c10::GetCPUAllocator()->allocate(nbytes);
  const auto index = device.is_cpu() ? current_device() : device.index();
  return allocate_on(nbytes, index);
}

void require_host_memory(c10::DeviceIndex device) {
  TORCH_CHECK(
      target().host_memory,
      c10::str("The target '", target().name, "' has memory that the host cannot reach"),
      ": compiled graphs do not run on it yet");
  if (!target().idle(device))
    target().synchronize(device);
}

void check_count(const char* what, size_t given, size_t wanted) {
  TORCH_CHECK(given == wanted, "the plan takes ", wanted, " ", what, ", not ", given);
}

}  // namespace

void set_timing(bool on) {
  g_timing = on;
}

// What one run has of its own.
struct Plan::Run {
  Run(const PlanData& data, c10::Device on) : data(data), device(on) {
    if (!device.is_cpu()) {
      device.set_index(check_index(device.index()));
      require_host_memory(device.index());
    }
    if (data.arena_bytes > kOnStack)
      arena = allocate_arena(data.arena_bytes, device);
    auto* start = data.arena_bytes > kOnStack ? static_cast<char*>(arena.get()) : on_stack;
    memory.resize(data.slots.size());
    pointers.resize(data.slots.size());
    arguments.reserve(data.slots.size());
    for (size_t k = 0; k < data.slots.size(); ++k) {
      const auto& slot = data.slots[k];
      if (slot.kind == Slot::Kind::temporary)
        pointers[k] = start + slot.number;
      else if (slot.kind == Slot::Kind::constant)
        pointers[k] = slot.tensor.data_ptr();
    }
  }

  void allocate(size_t slot);
  void release(size_t slot);
  void kernel(const KernelStep& step, const std::string& name);
  void call(const CallStep& step);

  const PlanData& data;
  c10::Device device;
  c10::DataPtr arena;
  alignas(64) char on_stack[kOnStack];   // not initialised
  std::function<void(size_t)> released;  // called with an input that nobody needs any more
  // By slot: blocks, what calls made, and what came or goes as a tensor.
  std::vector<c10::Storage> memory;
  std::vector<void*> pointers;   // by slot
  std::vector<void*> arguments;  // of the kernel in progress
  std::vector<int64_t> status;   // of its checks
};

void Plan::Run::allocate(size_t slot) {
  if (pointers[slot] != nullptr)  // an output in memory of the caller's
    return;
  constexpr c10::Storage::use_byte_size_t in_bytes;
  const auto nbytes = data.slots[slot].number;
  if (data.slots[slot].kind == Slot::Kind::block)
    memory[slot] = c10::Storage(in_bytes, nbytes, allocate_arena(nbytes, device));
  else if (device.is_cpu())
    memory[slot] = c10::Storage(in_bytes, nbytes, c10::GetCPUAllocator(), /*resizable=*/true);
  else
    memory[slot] = new_storage(nbytes, device.index());
  pointers[slot] = memory[slot].mutable_data();
}

void Plan::Run::release(size_t slot) {
  memory[slot] = c10::Storage();
  pointers[slot] = nullptr;  // a later step may have memory there once more
  if (released && data.slots[slot].kind == Slot::Kind::input)
    released(slot);
}

void Plan::Run::kernel(const KernelStep& step, const std::string& name) {
  arguments.clear();
  for (const auto slot : step.slots)
    arguments.push_back(pointers[slot]);
  if (step.checks.empty()) {
    step.function(arguments.data(), step.sizes.data(), nullptr);
    return;
  }
  const auto words = step.checks.size() * kStatusWords;
  if (status.size() < words)
    status.resize(words);
  for (size_t k = 0; k < words; k += kStatusWords)
    status[k] = 0;
  step.function(arguments.data(), step.sizes.data(), status.data());
  for (size_t k = 0; k < words; k += kStatusWords)
    if (C10_UNLIKELY(status[k] != 0))
      std::rethrow_exception(failed_check(&status[k], name));
}

void Plan::Run::call(const CallStep& step) {
  const CountedCall counted(*step.counter);
  std::vector<c10::Storage> passed;  // kept, so that a result over one of them shares it
  auto next = step.tensors.begin();
  const auto tensor = [&] {
    const auto& [slot, layout] = *next++;
    return tensor_over(passed.emplace_back(borrowed(pointers[slot], layout.nbytes)), layout);
  };
  const auto number = [&](const c10::IValue&) { return c10::IValue(tensor().item()); };
  torch::jit::Stack stack;
  for (const auto& argument : step.arguments)
    stack.push_back(host_argument(argument, tensor, number));
  const auto is_external = [&](const SlotTensor& result) {
    return data.slots[result.slot].kind == Slot::Kind::external;
  };
  std::vector<Promise> promises;
  for (const auto& result : step.results) {
    auto& promise = promises.emplace_back();
    if (result)
      promise = {&result->layout, is_external(*result) ? nullptr : pointers[result->slot]};
  }
  const auto index = device.is_cpu() ? c10::DeviceIndex{-1} : device.index();
  call_on_host(step.op, stack, index, promises);
  // A list of tensors that is all there is counts each of its own; what is no tensor is none.
  std::vector<at::Tensor> results;
  if (stack.size() == 1 && stack[0].isTensorList())
    results = stack[0].toTensorVector();
  else
    for (const auto& value : stack)
      results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  keep_promises(step.op, results, index, promises);
  for (size_t k = 0; k < promises.size(); ++k) {
    if (!step.results[k] || !is_external(*step.results[k]))
      continue;
    const auto slot = step.results[k]->slot;
    memory[slot] = results[k].storage();
    pointers[slot] = memory[slot].mutable_data();
  }
}

void Plan::execute(Run& run) const {
  for (const auto& step : data_.steps) {
    for (const auto slot : step.allocated)
      run.allocate(slot);
    if (const auto* kernel = std::get_if<KernelStep>(&step.work)) {
      std::optional<CountedCall> timed;
      if (C10_UNLIKELY(g_timing.load(std::memory_order_relaxed)))
        timed.emplace(*step.counter);
      run.kernel(*kernel, step.name);
    } else {
      run.call(std::get<CallStep>(step.work));
    }
    for (const auto slot : step.released)
      run.release(slot);
  }
}

Plan::Plan(PlanData data) : data_(std::move(data)), inputs_(data_.slots.size()) {
  for (size_t k = 0; k < data_.inputs.size(); ++k)
    inputs_[data_.inputs[k]] = k;
}

void Plan::run(
    c10::ArrayRef<void*> inputs,
    c10::ArrayRef<void*> outputs,
    c10::Device device,
    const Release& release) const {
  check_count("inputs", inputs.size(), data_.inputs.size());
  check_count("outputs", outputs.size(), data_.outputs.size());
  Run run(data_, device);
  for (size_t k = 0; k < inputs.size(); ++k)
    run.pointers[data_.inputs[k]] = inputs[k];
  for (size_t k = 0; k < outputs.size(); ++k)
    run.pointers[data_.outputs[k]] = outputs[k];
  run.released = [&](size_t slot) {
    if (release)
      release(inputs_[slot]);
  };
  for (size_t k = 0; k < data_.slots.size(); ++k) {
    const auto& slot = data_.slots[k];
    if (slot.kind == Slot::Kind::lodged)
      run.pointers[k] = static_cast<char*>(run.pointers[slot.host]) + slot.number;
  }
  execute(run);
}

std::vector<at::Tensor> Plan::run(std::vector<at::Tensor> inputs, c10::Device device) const {
  check_count("inputs", inputs.size(), data_.inputs.size());
  Run run(data_, device);
  for (size_t k = 0; k < inputs.size(); ++k) {
    auto& t = inputs[k];
    if (t.device().type() == kTenon && device.is_cpu())
      require_host_memory(t.device().index());
    if (t.is_conj() || t.is_neg())
      t = t.resolve_conj().resolve_neg();
    settle(*t.storage().unsafeGetStorageImpl());
    run.memory[data_.inputs[k]] = t.storage();
    run.pointers[data_.inputs[k]] = t.data_ptr();
  }
  inputs.clear();
  execute(run);
  std::vector<at::Tensor> results;
  results.reserve(data_.results.size());
  for (const auto& spec : data_.results)
    results.push_back(result(spec, run));
  return results;
}

at::Tensor Plan::result(const SlotTensor& spec, Run& run) const {
  const auto& [slot, layout] = spec;
  const auto kind = data_.slots[slot].kind;
  auto& memory = run.memory[slot];
  if (kind == Slot::Kind::constant)
    memory = data_.slots[slot].tensor.storage();
  else if (kind == Slot::Kind::output && !memory)  // no step writes it: it has no elements
    run.allocate(slot);
  TORCH_INTERNAL_ASSERT(memory, "a plan's result has no memory");
  // What a call made comes to the device once, as several results may share it.
  if (kind == Slot::Kind::external && !run.device.is_cpu() && memory.device_type() != kTenon) {
    memory = to_device_storage(memory, run.device.index());
    run.pointers[slot] = memory.mutable_data();
  }
  const auto* first = static_cast<const char*>(run.pointers[slot]);
  const auto start = first != nullptr ? first - static_cast<const char*>(memory.data()) : 0;
  const auto itemsize = static_cast<int64_t>(c10::elementSize(layout.dtype));
  TORCH_CHECK(
      start % itemsize == 0,
      c10::str("a result of dtype ", layout.dtype, " does not start at one of its elements: "),
      "the tensor that it is a view of begins at byte ",
      start);
  const auto found = tensor_over(memory, layout, start / itemsize);
  return kind == Slot::Kind::constant ? found.to(run.device) : found;
}

}  // namespace tenon
