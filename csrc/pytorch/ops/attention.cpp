// Attention as the library of a target runs it: what compiled code calls it by. Who has a kernel
// for it registers that; the cpu target's is in torch_tenon/targets/cpu/csrc/attention.cpp.

#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

#include "device/target.h"

namespace tenon {
namespace {

// Which way `scaled_dot_product_attention` goes on the device: the CPU's choice, or products and a
// softmax where plans are made and the target's library has no attention. PyTorch asks it past the
// dispatcher, since a trace must not see it.
int64_t choose(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  if (target().runs_plans && !target().runs_attention)
    return static_cast<int64_t>(at::SDPBackend::math);
  return at::native::_fused_sdp_choice_cpp(
      query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, float dropout_p=0.0, "
      "bool is_causal=False, *, Tensor? attn_mask=None, float? scale=None) "
      "-> (Tensor output, Tensor logsumexp)");
  m.def(
      "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
      "Tensor logsumexp, float dropout_p, bool is_causal, *, Tensor? attn_mask=None, "
      "float? scale=None) -> (Tensor grad_query, Tensor grad_key, Tensor grad_value)");
}

}  // namespace
}  // namespace tenon

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tenon::choose);
}  // namespace at::native
