// `tenon::attention` by PyTorch's fused kernel for the host.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <torch/library.h>

namespace tenon {
namespace {

TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  m.impl("attention", TORCH_FN(at::cpu::_scaled_dot_product_flash_attention_for_cpu));
  m.impl(
      "attention_backward",
      TORCH_FN(at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward));
}

}  // namespace
}  // namespace tenon
