#include "record/dispatch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <deque>

#include "execute/reference.h"

namespace tenon {
namespace {

// Ops that come later, such as those of another package's extension, and those that only sparse,
// quantised or nested tensors have.
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_reference>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_reference>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_reference>());
}
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_reference>());
}
TORCH_LIBRARY_IMPL(_, NestedTensorPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_reference>());
}

bool makes_views(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite())
      return true;
  }
  return false;
}

// Such an op says where its results go, which is not always where it runs.
bool takes_device(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    const auto& type = argument.type();
    if (type->isSubtypeOf(*c10::OptionalType::create(c10::DeviceObjType::get())))
      return true;
  }
  return false;
}

bool host_has_whole(const c10::OperatorHandle& op) {
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CPU))
    return true;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) &&
      !makes_views(op.schema()) && !takes_device(op.schema()) &&
      !op.hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace

int64_t register_reference_kernels() {
  // The registrations last as long as the process.
  static auto* handles = new std::deque<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) ||
        !host_has_whole(*op))
      continue;
    handles->push_back(dispatcher.registerImpl(
        name,
        c10::DispatchKey::PrivateUse1,
        c10::KernelFunction::makeFromBoxedFunction<&run_reference>(),
        std::nullopt,
        nullptr,
        "registered by torch_tenon: reference execution"));
    ++count;
  }
  return count;
}

}  // namespace tenon
