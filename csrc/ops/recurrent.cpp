// The fused LSTM cell: torch.nn's LSTM calls it on any device but the CPU, with the two matmuls
// outside. Written with other ops, which are recorded and fuse; here and not in Python, since a
// sequence calls it at every step.
//
// Batch N, hidden size H; gates (N, 4H) in the order input, forget, cell, output. The forward
// returns a workspace, the gates after their activations, laid out as PyTorch's GPU kernels
// (ATen/native/cuda/RNN.cu) have it. As there, half precision is computed in float.

#include <ATen/ATen.h>
#include <torch/library.h>

#include "execute/counters.h"

namespace tenon {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor wide(const Tensor& t) {
  const auto dtype = t.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? t.to(at::kFloat) : t;
}

Tensor biased(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? wide(gates).add(*bias) : wide(gates);
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  static Counter& counted = counter("decomposed", "aten::_thnn_fused_lstm_cell");
  const CountedCall counted_call(counted);
  const auto gates = biased(hidden_gates, hidden_bias).add(biased(input_gates, input_bias));
  const auto parts = gates.chunk(4, 1);
  const auto i = parts[0].sigmoid(), f = parts[1].sigmoid();
  const auto g = parts[2].tanh(), o = parts[3].sigmoid();
  const auto cy = f.mul(cx).add(i.mul(g));
  const auto hy = o.mul(cy.tanh());
  const auto dtype = input_gates.scalar_type();
  return {hy.to(dtype), cy.to(dtype), at::cat({i, f, g, o}, 1).to(dtype)};
}

// Of the gates (the same for input and hidden), of cx, and of the biases (the same for both).
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const Tensor& cx_,
    const Tensor& cy_,
    const Tensor& workspace_,
    bool has_bias) {
  static Counter& counted = counter("decomposed", "aten::_thnn_fused_lstm_cell_backward_impl");
  const CountedCall counted_call(counted);
  const bool has_hy = grad_hy.has_value() && grad_hy->defined();
  const bool has_cy = grad_cy.has_value() && grad_cy->defined();
  if (!has_hy && !has_cy)
    return {};
  const auto dtype = workspace_.scalar_type();
  const auto cx = wide(cx_), cy = wide(cy_);
  const auto parts = wide(workspace_).chunk(4, 1);
  const auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  Tensor grad_c, grad_o;
  if (has_hy) {
    const auto tanh_cy = cy.tanh(), grad_h = wide(*grad_hy);
    grad_c = at::tanh_backward(grad_h.mul(o), tanh_cy);
    if (has_cy)
      grad_c = grad_c.add(wide(*grad_cy));
    grad_o = at::sigmoid_backward(grad_h.mul(tanh_cy), o);
  } else {
    grad_c = wide(*grad_cy);
    grad_o = at::zeros_like(o);
  }
  const auto grad_gates = at::cat(
                              {at::sigmoid_backward(grad_c.mul(g), i),
                               at::sigmoid_backward(grad_c.mul(cx), f),
                               at::tanh_backward(grad_c.mul(i), g),
                               grad_o},
                              1)
                              .to(dtype);
  return {grad_gates, grad_c.mul(f).to(dtype), has_bias ? grad_gates.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
}

}  // namespace
}  // namespace tenon
