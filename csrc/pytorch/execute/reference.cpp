#include <c10/core/DeviceGuard.h>

#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "device/counters.h"
#include "device/generator.h"
#include "device/pending.h"
#include "device/profile.h"
#include "device/target.h"
#include "execute/host_call.h"
#include "execute/host_views.h"
#include "record/execution.h"
#include "record/graph.h"
#include "record/layout.h"
#include "record/op_rules.h"
#include "record/surroundings.h"

namespace tenon {
namespace {

using c10::FunctionSchema;
using c10::IValue;
using torch::jit::Stack;
using Use = HostViews::Use;

bool g_warn_fallback = false;

// Calls `f` for every defined tensor in a value: the tensor itself, or those of a list.
template <class F>
void for_each_tensor(const IValue& value, F&& f) {
  if (value.isTensor()) {
    if (value.toTensor().defined())
      f(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& element : value.toListRef())
      for_each_tensor(element, f);
  }
}

// Where an op is told to put its results (`device=`).
std::optional<c10::Device> device_argument(c10::ArrayRef<IValue> arguments) {
  for (const auto& value : arguments) {
    if (!value.isDevice())
      continue;
    const auto device = value.toDevice();
    return device.type() == kTenon ? c10::Device(kTenon, check_index(device.index())) : device;
  }
  return std::nullopt;
}

// The device of the first tensor of the device.
std::optional<c10::Device> device_of_tensors(c10::ArrayRef<IValue> arguments) {
  std::optional<c10::Device> device;
  for (const auto& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& t) {
      if (!device && t.device().type() == kTenon)
        device = t.device();
    });
  }
  return device;
}

// A tensor that may not meet those of a device, and which argument it is.
struct Stranger {
  at::Tensor tensor;
  size_t argument = 0;
};

std::optional<Stranger> find_stranger(
    const FunctionSchema& schema,
    c10::Device device,
    c10::ArrayRef<IValue> arguments,
    const std::vector<bool>& written) {
  std::optional<Stranger> found;
  for (size_t i = 0; i < arguments.size(); ++i) {
    for_each_tensor(arguments[i], [&](const at::Tensor& t) {
      if (t.device() == device || found)
        return;
      // A scalar of the host may be read beside tensors of any device, as everywhere in PyTorch;
      // a list may have tensors of several devices in it.
      const bool read = !written[i] || arguments[i].isList();
      if (!t.device().is_cpu() ||
          !((t.dim() == 0 && read) || is_host_argument(schema, schema.arguments()[i].name())))
        found = Stranger{t, i};
    });
  }
  return found;
}

// What PyTorch composes of other ops checks no devices: its parts do, and a list may be taken
// apart, or what is copied come from anywhere. The key of that kernel.
std::optional<c10::DispatchKey> composed(const c10::OperatorHandle& op) {
  for (const auto key :
       {c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (op.hasKernelForDispatchKey(key))
      return key;
  }
  return std::nullopt;
}

[[noreturn]] void raise_for(
    const FunctionSchema& schema, c10::Device device, const Stranger& stranger) {
  const auto& argument = schema.arguments()[stranger.argument];
  const auto other = stranger.tensor.device();
  TORCH_CHECK(
      false,
      "Expected all tensors to be on the same device, but found at least two devices, ",
      c10::str(device, " and ", other, "! (when checking argument "),
      c10::str(argument.name(), " in ", schema.name()),
      argument.is_out()
          ? c10::str(
                ": Expected out tensor to have device ", device, ", but got ", other, " instead")
          : "",
      ")");
}

// The device that an op runs on that no tensor of the device was given to: that of a device
// argument, or the current one.
c10::Device device_without_tensors(c10::ArrayRef<IValue> arguments) {
  if (const auto asked = device_argument(arguments); asked && asked->type() == kTenon)
    return *asked;
  // A generator brings an op of the host's tensors here too.
  for (const auto& value : arguments) {
    if (value.isGenerator())
      check_generator(c10::Device(c10::kCPU), value.toGenerator());
  }
  return {kTenon, current_device()};
}

// Whether the tensor covers all that its storage holds.
bool is_whole(const at::Tensor& t) {
  return t.layout() == at::kStrided && !t.is_nested() && t.has_storage() &&
         t.is_non_overlapping_and_dense() && t.nbytes() == t.storage().nbytes();
}

// Says in the profile what runs.
void note_call(Profiled& profiled, const std::string& name, c10::ArrayRef<IValue> arguments) {
  profiled->subject = subject_of({name, name_of(Touching::reason())});
  note_line(profiled);
  for (const auto& value : arguments) {
    for_each_tensor(value, [&](const at::Tensor& t) {
      profiled->amount += t.layout() == at::kStrided && !t.is_nested() ? t.nbytes() : 0;
    });
  }
}

// Whether the host has a kernel, of its own or composed of other ops, for any layout.
bool has_host_kernel(const c10::OperatorHandle& op) {
  return std::any_of(std::begin(kKeys), std::end(kKeys), [&](const auto& keys) {
    return op.hasComputedKernelForDispatchKey(keys.second);
  });
}

}  // namespace

void set_warn_fallback(bool warn) {
  g_warn_fallback = warn;
}

void run_reference(const c10::OperatorHandle& op, Stack* stack) {
  if (C10_UNLIKELY(is_capturing()))
    refuse_in_capture(toString(op.operator_name()));
  const auto& schema = op.schema();
  const auto name = toString(op.operator_name());
  TORCH_CHECK_NOT_IMPLEMENTED(
      has_host_kernel(op),
      "'",
      name,
      "' has no kernel for the device 'tenon' and none for the CPU to fall back to. Register one "
      "for "
      "the dispatch key PrivateUse1 (see docs/adding-an-op.md).");

  Counter& counted = counter("fallback", name);
  if (g_warn_fallback && counted.calls == 0)
    TORCH_WARN("'", name, "' falls back to the CPU (TENON_WARN_FALLBACK is set)");
  CountedCall counted_call(counted);

  const auto count = schema.arguments().size();
  const auto written = arguments_written(op);
  const auto of_tensors = device_of_tensors(torch::jit::last(*stack, count));
  if (of_tensors) {
    if (const auto stranger =
            find_stranger(schema, *of_tensors, torch::jit::last(*stack, count), written)) {
      if (const auto key = composed(op)) {
        try {
          return op.callBoxedForDispatchKey(*key, *stack);
        } catch (const c10::Error&) {
          // Its parts do not say which arguments of this op met.
        }
      }
      raise_for(schema, *of_tensors, *stranger);
    }
  }
  const std::vector<IValue> arguments = torch::jit::pop(*stack, count);
  const auto device = of_tensors ? *of_tensors : device_without_tensors(arguments);
  auto results_device = device_argument(arguments);
  if (results_device == device)
    results_device.reset();
  const c10::OptionalDeviceGuard device_guard(device);

  HostViews views(device);
  const auto replaced = arguments_replaced(op);
  const auto host_of = [&](size_t i, const at::Tensor& t) {
    const auto whole = replaced[i] && t.defined() && is_whole(t);
    return views.to_host(
        t,
        !written[i]    ? Use::reads
        : !replaced[i] ? Use::writes
        : whole        ? Use::replaces
                       : Use::replaces_part);
  };
  // First those that are written: a tensor may be both.
  for (size_t i = 0; i < count; ++i) {
    if (written[i])
      for_each_tensor(arguments[i], [&](const at::Tensor& t) { host_of(i, t); });
  }
  Stack host_arguments;
  host_arguments.reserve(count);
  const bool seeded = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < count; ++i) {
    const auto& value = arguments[i];
    if (takes_generator(schema.arguments()[i]) && (seeded || !value.isNone())) {
      const auto given = value.toOptional<at::Generator>();
      // A generator of the host that was passed on purpose is used as it is.
      const bool host = given && given->device().is_cpu();
      host_arguments.emplace_back(host ? *given : host_generator(draw(given, device.index())));
    } else if (value.isDevice() && value.toDevice().type() == kTenon) {
      host_arguments.emplace_back(c10::Device(c10::kCPU));
    } else {
      host_arguments.push_back(
          map_tensors(value, [&](const at::Tensor& t) { return host_of(i, t); }));
    }
  }
  {
    const auto now = surroundings();
    const NeutralThread neutral;
    const AsRecorded as_called(now);
    Profiled profiled(Activity::at_once, device.index());
    if (profiled)
      note_call(profiled, name, arguments);
    call_on_host(op, host_arguments, results_device ? c10::DeviceIndex{-1} : device.index());
  }

  for (size_t i = 0; i < count; ++i) {
    if (written[i])
      for_each_tensor(arguments[i], [&](const at::Tensor& t) { views.written(t, host_of(i, t)); });
  }
  std::optional<HostViews> there;
  if (results_device)
    there.emplace(*results_device);
  const auto returned = arguments_returned(schema);
  for (size_t i = 0; i < returned.size(); ++i) {
    const IValue& result = torch::jit::peek(host_arguments, i, returned.size());
    if (returned[i] >= 0)
      torch::jit::push(*stack, arguments[returned[i]]);
    else if (results_device && results_device->is_cpu())
      torch::jit::push(*stack, result);
    else
      torch::jit::push(*stack, map_tensors(result, [&](const at::Tensor& t) {
        return (there ? *there : views).to_device(t);
      }));
  }
  views.finish();
  counted.bytes_copied.fetch_add(views.bytes_copied(), std::memory_order_relaxed);
}

}  // namespace tenon
