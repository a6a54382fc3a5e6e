// Attention by the host's fused kernel. `scaled_dot_product_attention` asks the device which way to
// take (a dispatch stub) and calls a name that is free for devices like this one; both are answered
// with the CPU's own choice and kernel, so results and memory are the CPU's as well.

#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include "execute/counters.h"

namespace tenon {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// A host tensor with the metadata of `t` and no memory: all that the choice looks at. It is made
// without the dispatcher, since the tensor may be a fake one inside a trace.
Tensor shell(const Tensor& t) {
  auto result = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU)),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      t.dtype());
  auto* impl = result.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(t.sym_sizes(), t.sym_strides());
  impl->set_requires_grad(c10::GradMode::is_enabled() && t.requires_grad());
  return result;
}

// The CPU's choice, asked of its kernel past the dispatcher: a trace must not see the question.
int64_t choose(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  constexpr auto kMath = static_cast<int64_t>(at::SDPBackend::math);
  // A nested tensor has no strides to look at.
  if (query.is_nested() || key.is_nested() || value.is_nested())
    return kMath;
  const auto choice = at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      shell(query),
      shell(key),
      shell(value),
      mask ? OptionalTensor(shell(*mask)) : mask,
      dropout_p,
      is_causal,
      scale,
      enable_gqa);
  return choice == kMath ? kMath : static_cast<int64_t>(at::SDPBackend::overrideable);
}

// Calls an op of the device by its name, below autograd; the arguments go in, the results come out.
torch::jit::Stack call(const char* name, torch::jit::Stack arguments) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&arguments);
  return arguments;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
attention(
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const OptionalTensor& bias,
    double dropout_p,
    bool is_causal,
    bool,
    std::optional<double> scale) {
  TENON_COUNT_KERNEL("aten::_scaled_dot_product_fused_attention_overrideable");
  const auto results = call(
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      {query, key, value, dropout_p, is_causal, bias, scale});
  // The rest is for kernels that pack sequences or draw random numbers.
  const auto none = at::empty({0}, query.options().dtype(at::kLong));
  return {
      results[0].toTensor(),
      results[1].toTensor(),
      none,
      none,
      query.sym_size(2),
      key.sym_size(2),
      none,
      none,
      none};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& grad_out,
    const Tensor& query,
    const Tensor& key,
    const Tensor& value,
    const Tensor& bias,
    std::array<bool, 4>,
    const Tensor& out,
    const Tensor& logsumexp,
    const Tensor&,
    const Tensor&,
    c10::SymInt,
    c10::SymInt,
    double dropout_p,
    bool is_causal,
    const Tensor&,
    const Tensor&,
    std::optional<double> scale) {
  TENON_COUNT_KERNEL("aten::_scaled_dot_product_fused_attention_overrideable_backward");
  const auto results = call(
      "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
      {grad_out,
       query,
       key,
       value,
       out,
       logsumexp,
       dropout_p,
       is_causal,
       bias.defined() ? OptionalTensor(bias) : std::nullopt,
       scale});
  // The CPU does not choose this kernel where the mask needs a gradient.
  return {results[0].toTensor(), results[1].toTensor(), results[2].toTensor(), Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", attention);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attention_backward);
}

}  // namespace
}  // namespace tenon

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tenon::choose);
}  // namespace at::native
