#include "execute/call_step.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "device/storage.h"
#include "record/op_rules.h"
#include "record/values.h"

namespace tenon {
namespace {

// The results of a call one by one: a list of tensors that is all there is counts each of its own,
// and what is no tensor is none.
std::vector<at::Tensor> results_of(const torch::jit::Stack& stack) {
  if (stack.size() == 1 && stack[0].isTensorList())
    return stack[0].toTensorVector();
  std::vector<at::Tensor> results;
  for (const auto& value : stack)
    results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  return results;
}

// Of a call's tensors, for a kernel that may keep them. Those of one storage stay so.
struct Copies {
  const CallStep& step;
  std::span<void* const> tensors;
  std::unordered_map<void*, c10::Storage> shared;

  at::Tensor of(size_t number, const at::Tensor& original) {
    auto* start = tensors[number];
    if (std::count(tensors.begin(), tensors.end(), start) == 1)
      return original.clone();
    auto& storage = shared[start];
    if (!storage) {
      size_t nbytes = 0;
      for (size_t k = 0; k < tensors.size(); ++k)
        nbytes = std::max(nbytes, tensors[k] == start ? step.tensors[k].layout.nbytes : 0);
      storage = c10::Storage(c10::Storage::use_byte_size_t{}, nbytes, c10::GetCPUAllocator(), true);
      std::memcpy(storage.mutable_data(), start, nbytes);
    }
    return tensor_over(storage, step.tensors[number].layout);
  }
};

}  // namespace

std::vector<at::Tensor> call_over(
    const CallStep& step,
    std::span<void* const> tensors,
    std::span<void* const> places,
    c10::DeviceIndex device,
    c10::ArrayRef<c10::Storage> keepers) {
  std::vector<ResultPlace> wanted;
  for (size_t k = 0; k < places.size(); ++k) {
    const auto& result = step.results[k];
    wanted.push_back(result ? ResultPlace{&result->layout, places[k]} : ResultPlace());
  }
  // What lies where the caller has it, and which tensors these are. They are kept, so that a result
  // over one of them shares it.
  std::vector<std::pair<at::Tensor, size_t>> passed;
  const bool keeps = step.on_host;
  Copies copies{step, tensors, {}};
  std::vector<std::pair<at::Tensor, at::Tensor>> changed;  // a copy, and what becomes like it
  size_t next = 0;
  const auto tensor = [&] {
    const auto number = next++;
    const auto& layout = step.tensors[number].layout;
    const bool kept = keeps && !keepers.empty() && keepers[number];
    auto storage = borrowed(tensors[number], layout.nbytes);
    if (kept)
      storage.set_data_ptr_noswap(kept_by(keepers[number], tensors[number]));
    const auto& made = passed.emplace_back(tensor_over(std::move(storage), layout), number).first;
    if (!keeps || kept)
      return made;
    const auto copy = copies.of(number, made);
    if (step.written[number])
      changed.emplace_back(copy, made);
    return copy;
  };
  const auto number = [&](const c10::IValue&) { return c10::IValue(tensor().item()); };
  torch::jit::Stack stack;
  for (const auto& argument : resolved(step).arguments)
    stack.push_back(host_argument(argument, tensor, number));
  call_on_host(resolved(step).op, stack, device, wanted);
  for (const auto& [copy, original] : changed)
    original.copy_(copy);
  for (const auto& [tensor, number] : passed)
    put_back(tensor, step.tensors[number].layout, tensors[number]);
  auto results = results_of(stack);
  place_results(resolved(step).op, results, device, wanted);
  return results;
}

void check_opens_no_file(const c10::OperatorHandle& op) {
  for (const auto& argument : op.schema().arguments())
    check_data(argument.name() != "filename", "{} opens a file", op.schema().name());
}

void resolve_call(CallStep& step) {
  auto found = std::make_shared<ResolvedCall>(ResolvedCall{op_of(step.op), {}});
  const auto& schema = found->op.schema();
  check_data(step.arguments.size() == schema.arguments().size(), "arguments of {}", schema.name());
  step.written.clear();
  for (size_t k = 0; k < step.arguments.size(); ++k) {
    const auto& argument = found->arguments.emplace_back(argument_from(step.arguments[k]));
    const auto& declared = schema.arguments()[k];
    const auto* alias = declared.alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    const auto& type = *declared.type();
    if (argument.kind == ArgumentPlan::tensor)
      check_data(c10::TensorType::get()->isSubtypeOf(type), "{} is no tensor", declared.name());
    else if (argument.kind != ArgumentPlan::number)
      check_data(
          takes(type, argument.value) && !(written && argument.value.isTensor()),
          "{} of another type: {}",
          declared.name(),
          argument.value.tagKind());
    const auto add = [&](const ArgumentPlan& one) {
      if (one.kind != ArgumentPlan::constant)
        step.written.push_back(written);
    };
    if (argument.kind == ArgumentPlan::list)
      std::for_each(argument.elements.begin(), argument.elements.end(), add);
    else
      add(argument);
  }
  step.on_host = is_foreign(found->op);
  step.resolved = std::move(found);
}

}  // namespace tenon
