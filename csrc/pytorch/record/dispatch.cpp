// Where ops reach the device.

#include <ATen/core/dispatch/Dispatcher.h>

#include <deque>

#include "record/execution.h"
#include "record/op_rules.h"
#include "record/record.h"

namespace tenon {
namespace {

using c10::DispatchKey;

// Such an op says where its results go, which is not always where it runs.
bool takes_device(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    const auto& type = argument.type();
    if (type->isSubtypeOf(*c10::OptionalType::create(c10::DeviceObjType::get())))
      return true;
  }
  return false;
}

// A storage is the device's own: views of tensors have others.
bool takes_storage(const c10::FunctionSchema& schema) {
  return std::any_of(
      schema.arguments().begin(), schema.arguments().end(), [](const auto& argument) {
        return argument.type()->kind() == c10::TypeKind::StorageType;
      });
}

// Whether it works on a process group. PyTorch composes such ops of collectives, which wait for
// nothing. Their work belongs to the tensors that they were given: host views would be others.
bool is_collective(const c10::OperatorHandle& op) {
  const auto space = op.schema().getNamespace().value_or("");
  return space == "c10d" || space == "_dtensor" || space == "symm_mem" ||
         space.rfind("_c10d_functional", 0) == 0;
}

// They last as long as the process.
std::deque<c10::RegistrationHandleRAII>& registrations() {
  static auto* handles = new std::deque<c10::RegistrationHandleRAII>();
  return *handles;
}

bool host_has_whole(const c10::OperatorHandle& op, DispatchKey host_key) {
  if (is_collective(op))
    return false;
  if (op.hasKernelForDispatchKey(host_key))
    return true;
  return host_key == DispatchKey::CPU &&
         op.hasKernelForDispatchKey(DispatchKey::CompositeExplicitAutograd) &&
         !makes_views(op.schema()) && !takes_device(op.schema()) && !takes_storage(op.schema()) &&
         !op.hasTag(at::Tag::nondeterministic_seeded) && !op.hasTag(at::Tag::inplace_view);
}

// Passes a call on to the host's kernel for the same layout.
class HostLayoutKernel final : public c10::OperatorKernel {
 public:
  explicit HostLayoutKernel(DispatchKey host_key) : host_(host_key) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    op.redispatchBoxed(host_, stack);
  }

 private:
  c10::DispatchKeySet host_;
};

}  // namespace

void take_by_host(const std::string& name, const std::string& overload, const std::string& layout) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchemaOrThrow(name.c_str(), overload.c_str());
  registrations().push_back(dispatcher.registerImpl(
      op.operator_name(),
      c10::parseDispatchKey(layout + "PrivateUse1"),
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<HostLayoutKernel>(c10::parseDispatchKey(layout + "CPU"))),
      std::nullopt,
      nullptr,
      "registered by torch_tenon: the host's kernel"));
}

int64_t register_reference_kernels() {
  op_rules_are_complete();
  auto* handles = &registrations();
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto by_reference = c10::KernelFunction::makeFromBoxedFunction<&run_reference>();
  // Ops that come later, such as those of another package. Those that only sparse, quantised or
  // nested tensors have.
  for (const auto& [device_key, host_key] : kKeys)
    handles->push_back(dispatcher.registerFallback(device_key, by_reference, "torch_tenon"));
  int64_t count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema())
      continue;
    for (const auto& [device_key, host_key] : kKeys) {
      if (op->hasKernelForDispatchKey(device_key) || !host_has_whole(*op, host_key))
        continue;
      handles->push_back(dispatcher.registerImpl(
          name,
          device_key,
          device_key == DispatchKey::PrivateUse1 ? record_kernel(*op) : by_reference,
          std::nullopt,
          nullptr,
          "registered by torch_tenon: recorded, or run by reference"));
      ++count;
    }
  }
  return count;
}

void record_op(const std::string& name, const std::string& overload) {
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto op = dispatcher.findSchemaOrThrow(name.c_str(), overload.c_str());
  registrations().push_back(dispatcher.registerImpl(
      op.operator_name(),
      DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<RecordKernel>(op)),
      std::nullopt,
      nullptr,
      "registered by torch_tenon: recorded"));
}

}  // namespace tenon
