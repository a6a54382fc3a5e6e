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

}  // namespace

int64_t register_reference_kernels(const std::unordered_set<std::string>& whole) {
  // The registrations last as long as the process.
  static auto* handles = new std::deque<c10::RegistrationHandleRAII>();
  auto& dispatcher = c10::Dispatcher::singleton();
  int64_t count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1))
      continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && whole.count(toString(name)) == 0)
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
