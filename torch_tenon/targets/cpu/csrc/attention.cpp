// Attention by the host's fused kernel, `_scaled_dot_product_flash_attention_for_cpu`, wherever the
// CPU would take it: `scaled_dot_product_attention` asks the device which way to go (a dispatch
// stub), and the CPU's choice answers. It is asked past the dispatcher: a trace must not see it.

#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &_fused_sdp_choice_cpp);
}  // namespace at::native
