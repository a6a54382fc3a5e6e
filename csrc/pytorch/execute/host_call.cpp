#include "execute/host_call.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "device/generator.h"
#include "device/host_allocator.h"
#include "device/storage.h"
#include "device/target.h"
#include "device/threads.h"
#include "execute/run_threads.h"
#include "record/op_rules.h"
#include "record/values.h"

namespace tenon {
namespace {

// Whether both strides mean the same places. Those of dimensions with one element do not matter.
bool same_places(at::IntArrayRef sizes, at::IntArrayRef a, at::IntArrayRef b) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0)
      return true;
    if (sizes[d] != 1 && a[d] != b[d])
      return false;
  }
  return true;
}

bool is_in_place(const at::Tensor& got, const ResultPlace& wanted) {
  const auto& want = *wanted.layout;
  if (!got.is_cpu() || got.sizes() != want.sizes || got.storage_offset() != want.offset ||
      got.is_conj() || got.is_neg() || !same_places(want.sizes, got.strides(), want.strides))
    return false;
  return wanted.place != nullptr ? got.storage().data() == wanted.place
                                 : got.storage().use_count() == 1;
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

// The results of a call one by one: those of a list are each its own, and what is no tensor is
// none.
std::vector<at::Tensor> results_of(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (const auto& value : stack) {
    if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      results.insert(results.end(), list.begin(), list.end());
    } else {
      results.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
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

// Whether an argument is the two numbers of a stream, the first of which is that tensor of the
// call.
bool is_stream(const CallStep& step, const ArgumentPlan& argument, size_t first) {
  const auto is_number = [&](size_t k) {
    const auto& layout = step.tensors[k].layout;
    return layout.sizes.empty() && scalar_type(layout) == at::kLong;
  };
  return argument.elements.size() == 2 && first + 2 <= step.tensors.size() &&
         argument.elements[0].kind == ArgumentPlan::tensor &&
         argument.elements[1].kind == ArgumentPlan::tensor && is_number(first) &&
         is_number(first + 1);
}

RandomStream stream_of(const c10::IValue& numbers) {
  const auto both = numbers.toList();
  const auto number = [&](size_t k) {
    return static_cast<uint64_t>(both.get(k).toTensor().item<int64_t>());
  };
  return {number(0), number(1)};
}

// Whether a call draws from the host's generator, as the program does: it takes its turn where the
// program enqueues it, not where a device comes to it.
bool draws_as_the_program(const ResolvedCall& call) {
  if (!call.op.hasTag(at::Tag::nondeterministic_seeded))
    return false;
  const auto& declared = call.op.schema().arguments();
  for (size_t k = 0; k < call.arguments.size(); ++k) {
    const auto& [kind, value, elements] = call.arguments[k];
    if (kind == ArgumentPlan::list && takes_generator(declared[k]))
      return false;
    if (declared[k].name() == "dropout_p" && value.isDouble() && value.toDouble() == 0)
      return false;
  }
  return true;
}

}  // namespace

bool takes_generator(const c10::Argument& argument) {
  return argument.type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get()));
}

c10::Storage borrowed(void* data, size_t nbytes) {
  constexpr c10::Storage::use_byte_size_t in_bytes;
  c10::DataPtr memory(data, c10::Device(c10::kCPU));
  return {in_bytes, nbytes, std::move(memory), host_allocator(), /*resizable=*/true};
}

void put_back(const at::Tensor& written, const TensorLayout& layout, void* place) {
  TORCH_CHECK(
      written.sizes() == layout.sizes,
      c10::str("a call gave what it writes the sizes ", written.sizes()),
      c10::str(", and they were to be ", at::IntArrayRef(layout.sizes)));
  if (written.storage().data() != place)
    copy_into(tensor_over(borrowed(place, layout.nbytes), layout), written);
}

c10::IValue host_argument(
    const ArgumentPlan& plan,
    c10::function_ref<at::Tensor()> tensor,
    c10::function_ref<c10::IValue(const c10::IValue&)> number) {
  switch (plan.kind) {
    case ArgumentPlan::constant:
      return plan.value.isDevice() && plan.value.toDevice().type() == kTenon
                 ? c10::IValue(c10::Device(c10::kCPU))
                 : plan.value;
    case ArgumentPlan::number:
      return number(plan.value);
    case ArgumentPlan::tensor:
      return tensor();
    case ArgumentPlan::list:
      break;
  }
  c10::impl::GenericList list(plan.value.toList().elementType());
  for (const auto& element : plan.elements)
    list.push_back(host_argument(element, tensor, number));
  return list;
}

void call_on_host(
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    c10::DeviceIndex device,
    c10::ArrayRef<ResultPlace> places) {
  Blocks blocks;
  for (const auto& [layout, place] : places) {
    if (place != nullptr && layout->offset == 0 && !is_foreign(op))
      blocks.emplace_back(place, layout->nbytes);
  }
  const HostAllocationScope on_device(device);
  const HostPlacement placement(std::move(blocks));
  const Threads threads(threads_beside_builder());
  op.callBoxed(&stack);
}

void place_results(
    const c10::OperatorHandle& op,
    std::vector<at::Tensor>& results,
    c10::DeviceIndex device,
    c10::ArrayRef<ResultPlace> places) {
  const HostAllocationScope on_device(device);
  const auto& name = op.operator_name();
  TORCH_CHECK(results.size() >= places.size(), name, " gave fewer results than are wanted");
  // A call may have put one result where another one's place is, or where its own is in another
  // order. Such a result is moved out of the way before the places are filled.
  for (size_t k = 0; k < places.size(); ++k) {
    auto& got = results[k];
    if (!got.defined() || got.layout() != at::kStrided)
      continue;
    const void* data = got.storage().data();
    const bool in_a_place = std::any_of(places.begin(), places.end(), [data](const auto& p) {
      return p.place != nullptr && p.place == data;
    });
    if (in_a_place && !(places[k].place != nullptr && is_in_place(got, places[k])))
      got = got.clone();
  }
  for (size_t k = 0; k < places.size(); ++k) {
    if (places[k].layout == nullptr)
      continue;
    auto& got = results[k];
    const auto& want = *places[k].layout;
    TORCH_CHECK(got.defined(), name, " did not give a result that is wanted");
    const bool as_wanted = got.sizes() == want.sizes && got.scalar_type() == scalar_type(want);
    TORCH_CHECK(
        as_wanted && got.layout() == at::kStrided,
        c10::str(name, " gave a result of sizes ", got.sizes(), " and dtype ", got.scalar_type()),
        c10::str(
            ", and ", at::IntArrayRef(want.sizes), " and ", scalar_type(want), " are wanted: "),
        "its shape depends on data, or what computes it beforehand is wrong. Report it; eager code "
        "runs with TENON_EXECUTE=reference");
    if (is_in_place(got, places[k]))
      continue;
    const auto target = places[k].place != nullptr
                            ? tensor_over(borrowed(places[k].place, want.nbytes), want)
                            : at::empty_strided(want.sizes, want.strides, scalar_type(want));
    copy_into(target, got);
    got = target;
  }
}

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
  const bool keeps = resolved(step).may_keep;
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
  for (const auto& argument : resolved(step).arguments) {
    auto value = host_argument(argument, tensor, number);
    const bool seeds = argument.kind == ArgumentPlan::list &&
                       takes_generator(resolved(step).op.schema().arguments()[stack.size()]);
    stack.push_back(seeds ? c10::IValue(host_generator(stream_of(value))) : std::move(value));
  }
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
    const bool written = is_written(declared);
    const auto& type = *declared.type();
    if (argument.kind == ArgumentPlan::tensor)
      check_data(c10::TensorType::get()->isSubtypeOf(type), "{} is no tensor", declared.name());
    else if (argument.kind == ArgumentPlan::list && takes_generator(declared))
      check_data(is_stream(step, argument, step.written.size()), "numbers of no stream");
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
  found->may_keep = is_foreign(found->op);
  step.on_host = found->may_keep || draws_as_the_program(*found);
  step.resolved = std::move(found);
}

}  // namespace tenon
