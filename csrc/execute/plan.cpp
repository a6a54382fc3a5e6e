#include "execute/plan.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "device/allocator.h"
#include "device/guard.h"
#include "device/recorded.h"
#include "device/storage.h"
#include "device/target.h"
#include "execute/host_allocator.h"

namespace tenon {
namespace {

std::atomic<bool> g_timing{false};

// The numbers of CHECKS in torch_tenon/compiler/codegen/cpu.py.
enum class Check : int64_t { index = 1, embedding = 2, gather = 3, division = 4 };

[[noreturn]] void raise_failed_check(const int64_t* status, const std::string& step) {
  const auto value = status[1], size = status[2];
  switch (static_cast<Check>(status[0])) {
    case Check::embedding:
      TORCH_CHECK_INDEX(false, "index out of range in self (in the kernel of ", step, ")");
    case Check::division:
      TORCH_CHECK(false, "ZeroDivisionError (in the kernel of ", step, ")");
    case Check::gather:
      TORCH_CHECK(
          false,
          "index ",
          value,
          " is out of bounds for dimension 0 with size ",
          size,
          " (in the kernel of ",
          step,
          ")");
    default:
      // A negative index was counted from the end before it was checked.
      TORCH_CHECK_INDEX(
          false,
          "index ",
          value < 0 ? value - size : value,
          " is out of bounds for dimension 0 with size ",
          size,
          " (in the kernel of ",
          step,
          ")");
  }
}

at::Tensor tensor_over(
    c10::Storage storage, c10::DispatchKey key, const SlotTensor& spec, int64_t offset) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(spec.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(spec.sizes, spec.strides, offset);
  return tensor;
}

// The bytes from the slot's start to the tensor's end.
size_t nbytes_of(const SlotTensor& spec) {
  return at::detail::computeStorageNbytes(
      spec.sizes, spec.strides, c10::elementSize(spec.dtype), spec.offset);
}

// A host tensor over memory that somebody else keeps.
at::Tensor borrowed(void* data, const SlotTensor& spec) {
  c10::Storage storage(
      c10::Storage::use_byte_size_t{}, nbytes_of(spec), c10::DataPtr(data, c10::Device(c10::kCPU)));
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, spec, spec.offset);
}

// A tensor over another one's storage, `spec.offset` behind its first element.
at::Tensor alias_of(const at::Tensor& base, const SlotTensor& spec) {
  const auto itemsize = static_cast<int64_t>(c10::elementSize(spec.dtype));
  const auto start = base.storage_offset() * static_cast<int64_t>(base.itemsize());
  TORCH_CHECK(
      start % itemsize == 0,
      "a result of dtype ",
      spec.dtype,
      " does not start at one of its elements: the tensor that it is a view of begins at byte ",
      start);
  const auto key = base.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  return tensor_over(base.storage(), key, spec, start / itemsize + spec.offset);
}

// Do both strides mean the same places? Those of dimensions with one element do not matter.
bool same_places(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0)
      return true;
    if (sizes[d] != 1 && a[d] != b[d])
      return false;
  }
  return true;
}

void copy_into(at::Tensor target, at::Tensor source) {
  // What is expanded is written once.
  for (int64_t d = 0; d < target.dim(); ++d) {
    if (target.stride(d) == 0 && target.size(d) > 1) {
      target = target.narrow(d, 0, 1);
      source = source.narrow(d, 0, 1);
    }
  }
  target.copy_(source);
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
      "The target '",
      target().name,
      "' has memory that the host cannot reach: compiled graphs do not run on it yet");
  if (!target().idle(device))
    target().synchronize(device);
}

// The results of a call, one for each position: a list of tensors that is all there is counts each
// of its own. Undefined where a result is no tensor.
std::vector<at::Tensor> tensors_of(torch::jit::Stack& stack) {
  if (stack.size() == 1 && stack[0].isTensorList())
    return stack[0].toTensorVector();
  std::vector<at::Tensor> found;
  for (auto& value : stack)
    found.push_back(value.isTensor() ? std::move(value).toTensor() : at::Tensor());
  return found;
}

}  // namespace

void set_timing(bool on) {
  g_timing = on;
}

// What one run has of its own.
struct Plan::Run {
  Run(const PlanData& data, c10::Device on) : device(on) {
    if (!device.is_cpu()) {
      device.set_index(check_index(device.index()));
      require_host_memory(device.index());
    }
    if (data.arena_bytes > 0)
      arena = allocate_arena(data.arena_bytes, device);
    pointers.resize(data.slots.size());
    arguments.reserve(data.slots.size());
    for (size_t k = 0; k < data.slots.size(); ++k) {
      const auto& slot = data.slots[k];
      if (slot.kind == Slot::Kind::temporary)
        pointers[k] = static_cast<char*>(arena.get()) + slot.number;
      else if (slot.kind == Slot::Kind::constant)
        pointers[k] = slot.tensor.data_ptr();
    }
  }

  void allocate(size_t slot, const PlanData& data);
  void release(size_t slot, const PlanData& data);
  void kernel(const KernelStep& step, const std::string& name);
  void call(const CallStep& step, const PlanData& data);
  void take(const SlotTensor& spec, at::Tensor got, const PlanData& data);
  bool is_in_place(const at::Tensor& got, const SlotTensor& spec) const;
  void clear_places(
      std::vector<at::Tensor>& results,
      const std::vector<std::optional<SlotTensor>>& specs,
      const std::vector<std::pair<void*, size_t>>& places) const;

  at::Tensor tensor(const SlotTensor& spec) {
    return borrowed(pointers[spec.slot], spec);
  }

  c10::Device device;
  c10::DataPtr arena;
  std::function<void(size_t)> released;  // what happens to an input that nobody needs any more
  std::vector<c10::DataPtr> blocks;      // by slot, as far as there are any
  std::vector<c10::Storage> outputs;     // by slot, where they are allocated here
  std::vector<at::Tensor> inputs;        // where they came as tensors
  std::vector<void*> pointers;           // by slot
  std::vector<void*> arguments;          // of the kernel in progress
  std::vector<at::Tensor> externals;     // by slot, as far as there are any
  std::vector<at::Tensor> passed;        // the tensors that the call in progress was given
};

void Plan::Run::allocate(size_t slot, const PlanData& data) {
  const auto nbytes = data.slots[slot].number;
  if (data.slots[slot].kind == Slot::Kind::block) {
    blocks.resize(pointers.size());
    blocks[slot] = allocate_arena(nbytes, device);
    pointers[slot] = blocks[slot].get();
  } else if (!outputs.empty()) {
    outputs[slot] = device.is_cpu() ? c10::Storage(
                                          c10::Storage::use_byte_size_t{},
                                          nbytes,
                                          c10::GetCPUAllocator()->allocate(nbytes),
                                          c10::GetCPUAllocator(),
                                          /*resizable=*/true)
                                    : new_storage(nbytes, device.index());
    pointers[slot] = outputs[slot].mutable_data();
  }
}

void Plan::Run::release(size_t slot, const PlanData& data) {
  switch (data.slots[slot].kind) {
    case Slot::Kind::block:
      blocks[slot].clear();
      break;
    case Slot::Kind::external:
      externals[slot].reset();
      break;
    default:
      released(slot);
  }
}

void Plan::Run::kernel(const KernelStep& step, const std::string& name) {
  arguments.clear();
  for (const auto slot : step.slots)
    arguments.push_back(pointers[slot]);
  int64_t status[4] = {};
  step.function(arguments.data(), step.sizes.data(), status);
  if (C10_UNLIKELY(status[0] != 0))
    raise_failed_check(status, name);
}

void Plan::Run::call(const CallStep& step, const PlanData& data) {
  const CountedCall counted(*step.counter);
  torch::jit::Stack stack = step.arguments;
  const auto make = [this](const SlotTensor& spec) { return passed.emplace_back(tensor(spec)); };
  for (const auto& argument : step.tensors) {
    auto& value = stack[argument.argument];
    switch (argument.kind) {
      case CallStep::Tensors::Kind::tensor:
        value = make(*argument.tensors[0]);
        break;
      case CallStep::Tensors::Kind::number:
        value = tensor(*argument.tensors[0]).item();
        break;
      case CallStep::Tensors::Kind::list: {
        c10::List<at::Tensor> list;
        for (const auto& spec : argument.tensors)
          list.push_back(make(*spec));
        value = std::move(list);
        break;
      }
      case CallStep::Tensors::Kind::optional_list: {
        c10::List<std::optional<at::Tensor>> list;
        for (const auto& spec : argument.tensors)
          list.push_back(spec ? std::optional(make(*spec)) : std::nullopt);
        value = std::move(list);
        break;
      }
    }
  }
  std::vector<std::pair<void*, size_t>> places;
  for (const auto& spec : step.results) {
    if (spec && data.slots[spec->slot].kind != Slot::Kind::external && spec->offset == 0)
      places.emplace_back(pointers[spec->slot], nbytes_of(*spec));
  }
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    std::optional<HostAllocationScope> on_device;
    if (!device.is_cpu())
      on_device.emplace(device.index());
    {
      const HostPlacement placement(places);
      step.op.callBoxed(&stack);
    }
    if (!step.results.empty()) {
      auto results = tensors_of(stack);
      TORCH_CHECK(
          results.size() >= step.results.size(),
          toString(step.op.operator_name()),
          " gave ",
          results.size(),
          " results, and ",
          step.results.size(),
          " were promised");
      clear_places(results, step.results, places);
      for (size_t k = 0; k < step.results.size(); ++k) {
        if (step.results[k])
          take(*step.results[k], std::move(results[k]), data);
      }
    }
  }
  passed.clear();
}

// A call may have put one result where another one's place is, or where its own is in another order
// of memory: out of the way with it, before the places are filled.
void Plan::Run::clear_places(
    std::vector<at::Tensor>& results,
    const std::vector<std::optional<SlotTensor>>& specs,
    const std::vector<std::pair<void*, size_t>>& places) const {
  for (size_t k = 0; k < specs.size() && !places.empty(); ++k) {
    if (!results[k].defined() || results[k].layout() != at::kStrided)
      continue;
    const void* data = results[k].storage().data();
    const bool in_a_place = std::any_of(
        places.begin(), places.end(), [data](const auto& place) { return place.first == data; });
    if (in_a_place && !(specs[k] && is_in_place(results[k], *specs[k])))
      results[k] = results[k].clone();
  }
}

bool Plan::Run::is_in_place(const at::Tensor& got, const SlotTensor& spec) const {
  return got.storage().data() == pointers[spec.slot] && got.storage_offset() == spec.offset &&
         !got.is_conj() && !got.is_neg() && same_places(spec.sizes, got.strides(), spec.strides);
}

void Plan::Run::take(const SlotTensor& spec, at::Tensor got, const PlanData& data) {
  TORCH_CHECK(got.defined(), "a result that was promised is missing");
  TORCH_CHECK(
      got.sizes() == spec.sizes && got.scalar_type() == spec.dtype && got.layout() == at::kStrided,
      "a result has sizes ",
      got.sizes(),
      " and dtype ",
      got.scalar_type(),
      ", and ",
      at::IntArrayRef(spec.sizes),
      " and ",
      spec.dtype,
      " were promised");
  if (data.slots[spec.slot].kind != Slot::Kind::external) {
    if (!is_in_place(got, spec))
      copy_into(tensor(spec), got);
    return;
  }
  // Kernels see raw memory; and what lies in an argument may be overwritten later.
  bool copy = !same_places(spec.sizes, got.strides(), spec.strides) || got.is_conj() ||
              got.is_neg() || !got.is_cpu();
  for (const auto& argument : passed)
    copy = copy ||
           (got.storage().data() != nullptr && got.storage().data() == argument.storage().data());
  if (copy) {
    const auto fresh =
        at::empty_strided(spec.sizes, spec.strides, at::TensorOptions().dtype(spec.dtype));
    copy_into(fresh, got);
    got = fresh;
  }
  if (externals.empty())
    externals.resize(pointers.size());
  pointers[spec.slot] = got.data_ptr();
  externals[spec.slot] = std::move(got);
}

void Plan::execute(Run& run) const {
  for (const auto& step : data_.steps) {
    for (const auto slot : step.allocated)
      run.allocate(slot, data_);
    if (const auto* kernel = std::get_if<KernelStep>(&step.work)) {
      std::optional<CountedCall> timed;
      if (C10_UNLIKELY(g_timing.load(std::memory_order_relaxed)))
        timed.emplace(*step.counter);
      run.kernel(*kernel, step.name);
    } else {
      run.call(std::get<CallStep>(step.work), data_);
    }
    for (const auto slot : step.released)
      run.release(slot, data_);
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
  TORCH_CHECK(
      inputs.size() == data_.inputs.size() && outputs.size() == data_.outputs.size(),
      "the plan takes ",
      data_.inputs.size(),
      " inputs and ",
      data_.outputs.size(),
      " outputs");
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
  TORCH_CHECK(
      inputs.size() == data_.inputs.size(),
      "the plan takes ",
      data_.inputs.size(),
      " inputs, not ",
      inputs.size());
  Run run(data_, device);
  for (size_t k = 0; k < inputs.size(); ++k) {
    auto& t = inputs[k];
    if (t.device().type() == kTenon && device.is_cpu())
      require_host_memory(t.device().index());
    if (t.is_conj() || t.is_neg())
      t = t.resolve_conj().resolve_neg();
    settle(*t.storage().unsafeGetStorageImpl());
    run.pointers[data_.inputs[k]] = t.data_ptr();
  }
  run.inputs = std::move(inputs);
  run.released = [&](size_t slot) { run.inputs[inputs_[slot]].reset(); };
  run.outputs.resize(data_.slots.size());
  execute(run);
  std::vector<at::Tensor> results;
  results.reserve(data_.results.size());
  for (const auto& spec : data_.results)
    results.push_back(result(spec, run));
  return results;
}

at::Tensor Plan::result(const SlotTensor& spec, Run& run) const {
  const auto& slot = data_.slots[spec.slot];
  const auto key = run.device.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  switch (slot.kind) {
    case Slot::Kind::output:
      if (!run.outputs[spec.slot])  // no step writes it: it has no elements
        run.allocate(spec.slot, data_);
      return tensor_over(run.outputs[spec.slot], key, spec, spec.offset);
    case Slot::Kind::input:
      for (size_t k = 0; k < run.inputs.size(); ++k) {
        if (data_.inputs[k] == spec.slot)
          return alias_of(run.inputs[k], spec);
      }
      break;
    case Slot::Kind::constant: {
      const auto alias = alias_of(slot.tensor, spec);
      return alias.device() == run.device ? alias : alias.to(run.device);
    }
    case Slot::Kind::external: {
      // Several results may share a storage, so it comes to the device once.
      auto& external = run.externals[spec.slot];
      if (!run.device.is_cpu() && external.is_cpu()) {
        SlotTensor whole{
            spec.slot, external.scalar_type(), external.sizes().vec(), external.strides().vec()};
        external = tensor_over(
            to_device_storage(external.storage(), run.device.index()),
            key,
            whole,
            external.storage_offset());
      }
      return alias_of(external, spec);
    }
    default:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a plan's result has no memory");
}

}  // namespace tenon
