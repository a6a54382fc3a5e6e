// Histograms of whole numbers, which PyTorch has on GPUs and not on the CPU: models with experts
// count by them how many tokens each expert gets.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "record/record.h"

namespace tenon {
namespace {

at::Tensor histc(
    const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (c10::isIntegralType(self.scalar_type(), /*includeBool=*/false))
    return at::histc(self.to(at::kDouble), bins, min, max).to(self.scalar_type());
  static auto* kernel =
      new RecordKernel(c10::Dispatcher::singleton().findSchemaOrThrow("aten::histc", ""));
  torch::jit::Stack stack{self, bins, min, max};
  (*kernel)(kernel->info().op, {}, &stack);
  return std::move(stack[0]).toTensor();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("histc", histc);
}

}  // namespace
}  // namespace tenon
