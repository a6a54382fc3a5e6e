#include "execute/plan_archive.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "record/sound.h"

namespace tenon {

std::string name_of(const c10::OperatorHandle& op) {
  return op.operator_name().name + "\n" + op.operator_name().overload_name;
}

c10::OperatorHandle op_of(const std::string& name) {
  const auto end = name.find('\n');
  TORCH_CHECK(end != std::string::npos, "no name of an op");
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, end).c_str(), name.substr(end + 1).c_str());
}

template <class Archive>
void fields(Archive& archive, SlotTensor& x) {
  archive(x.slot, x.layout);
}

template <class Archive>
void fields(Archive& archive, StepFacts& x) {
  archive(x.detail, x.sizes, x.calls, x.bytes, x.operations);
}

template <class Archive>
void fields(Archive& archive, KernelName& x) {
  archive(x.object, x.symbol, x.checksum);
}

template <class Archive>
void fields(Archive& archive, KernelStep& x) {
  archive(x.kernel, x.slots, x.sizes, x.checks);
}

namespace {

// Host tensors of any size.
void write_tensor(Writer& archive, const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  const auto* first = static_cast<const char*>(dense.const_data_ptr());
  archive(tensor.scalar_type(), tensor.sizes().vec(), std::string(first, dense.nbytes()));
}

at::Tensor read_tensor(Reader& archive) {
  TensorLayout layout{};
  std::string data;
  archive(layout.dtype, layout.sizes, data);
  // Of a dense tensor: the sizes times each other.
  int64_t elements = 1;
  layout.strides.resize(layout.sizes.size());
  for (auto d = layout.sizes.size(); d-- > 0;) {
    layout.strides[d] = elements;
    TORCH_CHECK(
        !__builtin_mul_overflow(elements, std::max<int64_t>(layout.sizes[d], 1), &elements),
        "a constant is too large");
  }
  TORCH_CHECK(storage_bytes(layout) == data.size(), "a constant of another size");
  auto tensor = at::empty(layout.sizes, at::TensorOptions(at::kCPU).dtype(layout.dtype));
  std::memcpy(tensor.mutable_data_ptr(), data.data(), data.size());
  return tensor;
}

void write_call(Writer& archive, const CallStep& x) {
  archive(name_of(x.op), x.arguments, x.tensors, x.results);
  archive(x.counter->route, x.counter->op, x.call);
}

CallStep read_call(Reader& archive) {
  std::string op, route, counted;
  archive(op);
  CallStep x{op_of(op), {}, {}, {}, nullptr, -1};
  archive(x.arguments, x.tensors, x.results, route, counted, x.call);
  x.counter = &counter(route, counted);
  return x;
}

}  // namespace

void write_plan(Writer& archive, const PlanData& x) {
  archive(x.inputs, x.outputs, x.arena_bytes, x.results, x.kernels, x.slots.size());
  for (const auto& slot : x.slots) {
    archive(slot.kind, slot.number, slot.nbytes);
    if (slot.kind == Slot::Kind::constant)
      write_tensor(archive, slot.tensor);
  }
  archive(x.steps.size());
  for (const auto& step : x.steps) {
    archive(step.name, step.allocated, step.released, step.work.index(), *step.facts);
    if (const auto* kernel = std::get_if<KernelStep>(&step.work))
      archive(*kernel);
    else
      write_call(archive, std::get<CallStep>(step.work));
  }
}

PlanData read_plan(Reader& archive) {
  PlanData x;
  size_t slots = 0, steps = 0;
  archive(x.inputs, x.outputs, x.arena_bytes, x.results, x.kernels, slots);
  for (size_t k = 0; k < slots; ++k) {
    auto& slot = x.slots.emplace_back();
    archive(slot.kind, slot.number, slot.nbytes);
    if (slot.kind == Slot::Kind::constant)
      slot.tensor = read_tensor(archive);
  }
  archive(steps);
  for (size_t k = 0; k < steps; ++k) {
    Step step;
    size_t kind = 0;
    StepFacts facts;
    archive(step.name, step.allocated, step.released, kind, facts);
    step.counter = &counter("plan", step.name);
    step.facts = std::make_shared<StepFacts>(std::move(facts));
    if (kind == 0)
      archive(step.work.emplace<KernelStep>());
    else
      step.work = read_call(archive);
    x.steps.push_back(std::move(step));
  }
  return x;
}

}  // namespace tenon
