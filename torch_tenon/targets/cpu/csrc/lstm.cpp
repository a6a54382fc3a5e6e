// An LSTM's layer, and its fused cell, which PyTorch has for GPUs alone: composed here, for the
// host, for layouts and for plans; the device records it as one call. PyTorch has the input's
// products of all steps in one for the CPU alone, and differentiates the hidden ones step by step:
// a gradient of the weights for each step, and a sum of them. Here both weights meet one product,
// forward and backward, over all steps at once. What follows a step's products is the cell; here
// and not in Python, since a sequence has one at every step. Batch N, hidden size H; gates (N, 4H)
// in the order input, forget, cell, output. The workspace is the gates after their activations, as
// PyTorch's GPU kernels (ATen/native/cuda/RNN.cu) have it; as there, half precision is computed in
// float. Layers of float in the host's memory are oneDNN's, which keeps a step's products and its
// cell together; what that cannot differentiate twice is composed.

#include "lstm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "device/target.h"
#include "differentiated.h"

namespace tenon {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

Tensor wide(const Tensor& t) {
  const auto dtype = t.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? t.to(at::kFloat) : t;
}

Tensor biased(const Tensor& gates, const OptionalTensor& bias) {
  return bias.has_value() && bias->defined() ? wide(gates).add(*bias) : wide(gates);
}

// hy, cy and the workspace.
std::tuple<Tensor, Tensor, Tensor> cell(
    const Tensor& input_gates,
    const Tensor& hidden_gates,
    const Tensor& cx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  const auto gates = biased(hidden_gates, hidden_bias).add(biased(input_gates, input_bias));
  const auto size = cx.size(1);
  const auto in_and_forget = gates.narrow(1, 0, 2 * size).sigmoid();
  const auto g = gates.narrow(1, 2 * size, size).tanh();
  const auto o = gates.narrow(1, 3 * size, size).sigmoid();
  const auto all = at::cat({in_and_forget, g, o}, 1);
  const auto parts = all.chunk(4, 1);
  const auto cy = parts[1].mul(wide(cx)).add(parts[0].mul(parts[2]));
  const auto dtype = input_gates.scalar_type();
  return {parts[3].mul(cy.tanh()).to(dtype), cy.to(dtype), all.to(dtype)};
}

// The gradients of the gates, the same for input and hidden, of cx, and of the biases.
std::tuple<Tensor, Tensor, Tensor> cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  const bool of_hy = grad_hy.has_value() && grad_hy->defined();
  const bool of_cy = grad_cy.has_value() && grad_cy->defined();
  if (!of_hy && !of_cy)
    return {};
  const auto parts = wide(workspace).chunk(4, 1);
  const auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const auto tanh_cy = wide(cy).tanh();
  const auto h = of_hy ? wide(*grad_hy) : at::zeros_like(o);
  auto c = at::tanh_backward(h.mul(o), tanh_cy);
  if (of_cy)
    c = c.add(*grad_cy);
  const auto dtype = workspace.scalar_type();
  const auto gates = at::cat(
                         {at::sigmoid_backward(c.mul(g), i),
                          at::sigmoid_backward(c.mul(wide(cx)), f),
                          at::tanh_backward(c.mul(i), g),
                          at::sigmoid_backward(h.mul(tanh_cy), o)},
                         1)
                         .to(dtype);
  return {gates, c.mul(f).to(dtype), has_bias ? gates.sum(0) : Tensor()};
}

// The steps of one layer in one direction, for input gates (T, N, 4H) with all biases in them.
struct LstmSteps : torch::autograd::Function<LstmSteps> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = variable_list;

  // The outputs (T, N, H) and the last cell state. What backward needs is added to `kept`.
  static std::tuple<Tensor, Tensor> run(
      const Tensor& gates, const Tensor& weight, Tensor h, Tensor c, Tensors& kept) {
    const auto turned = weight.t().contiguous();  // once, and not packed for each step
    Tensors outputs;
    for (const auto& input : gates.unbind(0)) {
      const auto h_before = h, c_before = c;
      Tensor workspace;
      std::tie(h, c, workspace) = at::_thnn_fused_lstm_cell(input, h.mm(turned), c);
      kept.insert(kept.end(), {workspace, h_before, c_before});
      outputs.push_back(h);
    }
    return {at::stack(outputs), c};
  }

  static Tensors forward(
      Context* context,
      const Tensor& gates,
      const Tensor& weight,
      const Tensor& h,
      const Tensor& c) {
    const at::AutoDispatchBelowADInplaceOrView below;
    Tensors saved{gates, weight, h, c};
    const auto [output, last] = run(gates, weight, h, c, saved);
    saved.push_back(last);
    context->save_for_backward(saved);
    return {output, last};
  }

  static Tensors backward(Context* context, Tensors grads) {
    const auto saved = context->get_saved_variables();
    const auto& weight = saved[1];
    if (c10::GradMode::is_enabled()) {  // to be differentiated once more
      const auto again = [](const Tensors& t) {
        Tensors kept;
        const auto [output, last] = run(t[0], t[1], t[2], t[3], kept);
        return Tensors{output, last};
      };
      return gradients_by(again, Tensors(saved.begin(), saved.begin() + 4), grads);
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto of_outputs = grads[0].unbind(0);
    const auto steps = static_cast<int64_t>(of_outputs.size());
    Tensor of_h, of_c = grads[1], after = saved.back();
    Tensors of_gates(steps), states(steps);
    for (int64_t t = steps - 1; t >= 0; --t) {
      const auto &workspace = saved[4 + 3 * t], &before = saved[6 + 3 * t];
      states[t] = saved[5 + 3 * t];
      const auto grad = of_h.defined() ? of_outputs[t].add(of_h) : of_outputs[t];
      std::tie(of_gates[t], of_c, std::ignore) = at::_thnn_fused_lstm_cell_backward_impl(
          grad, of_c, before, after, workspace, /*has_bias=*/false);
      of_h = of_gates[t].mm(weight);
      after = before;
    }
    const auto gates = at::stack(of_gates), hidden = at::stack(states);
    // Gradients may come as a batch of them, for which PyTorch has no rule of `flatten`.
    const auto rows = [](const Tensor& x) { return x.reshape({-1, x.size(-1)}); };
    const auto of_weight = rows(gates).t().mm(rows(hidden));
    return {gates, of_weight, of_h, of_c};
  }
};

}  // namespace

variable_list lstm_by_steps(
    const Tensor& x, const Parameters& p, const Tensor& h, const Tensor& c, bool reverse) {
  const auto bias = p[2].defined() ? std::optional(p[2].add(p[3])) : std::nullopt;
  const auto gates = at::linear(x, p[0], bias);
  const auto made = LstmSteps::apply(reverse ? gates.flip({0}) : gates, p[1], h, c);
  return {reverse ? made[0].flip({0}) : made[0], made[0][-1], made[1]};
}

namespace {

// The same by oneDNN, which PyTorch has for the host.
struct LibraryLayer : torch::autograd::Function<LibraryLayer> {
  using Context = torch::autograd::AutogradContext;
  static constexpr int64_t kLstm = 2;

  static variable_list in_order(at::TensorList given) {
    variable_list dense;
    for (const auto& t : given)
      dense.push_back(t.contiguous());
    return dense;
  }

  // `given`: x, the parameters with both biases, h and c.
  static variable_list forward(
      Context* context, at::TensorList given, bool reverse, bool differentiable) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = in_order(given);
    const auto size = dense[2].size(1);
    const at::AutoGradMode keeps_workspace(differentiable);
    const auto [output, h, c, workspace] = at::mkldnn_rnn_layer(
        dense[0],
        dense[1],
        dense[2],
        dense[3],
        dense[4],
        dense[5],
        dense[6],
        reverse,
        {},
        kLstm,
        size,
        /*num_layers=*/1,
        /*has_biases=*/true,
        /*bidirectional=*/false,
        /*batch_first=*/false,
        /*train=*/differentiable);
    variable_list kept(given.begin(), given.end());
    kept.insert(kept.end(), {output, h, c, workspace});
    context->save_for_backward(kept);
    context->saved_data["reverse"] = reverse;
    return {output, h, c};
  }

  static variable_list backward(Context* context, variable_list grads) {
    const auto s = context->get_saved_variables();
    const bool reverse = context->saved_data["reverse"].toBool();
    variable_list found(9);             // two of them are of what is no tensor
    if (c10::GradMode::is_enabled()) {  // to be differentiated once more, which it cannot be
      const auto by_steps = [&](const variable_list& t) {
        return lstm_by_steps(t[0], {t[1], t[2], t[3], t[4]}, t[5], t[6], reverse);
      };
      auto again = gradients_by(by_steps, variable_list(s.begin(), s.begin() + 7), grads);
      std::move(again.begin(), again.end(), found.begin());
      return found;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto dense = in_order(s);
    const auto made = at::mkldnn_rnn_layer_backward(
        dense[0],
        dense[1],
        dense[2],
        dense[3],
        dense[4],
        dense[5],
        dense[6],
        dense[7],
        dense[8],
        dense[9],
        grads[0].contiguous(),
        grads[1].contiguous(),
        grads[2].contiguous(),
        reverse,
        kLstm,
        dense[2].size(1),
        /*num_layers=*/1,
        /*has_biases=*/true,
        /*train=*/true,
        /*bidirectional=*/false,
        {},
        /*batch_first=*/false,
        dense[10]);
    std::tie(found[0], found[1], found[2], found[3], found[4], found[5], found[6]) = made;
    return found;
  }
};

}  // namespace

bool lstm_has_library(const Tensor& x) {
  return target().host_memory && x.scalar_type() == at::kFloat && at::hasMKLDNN() &&
         at::globalContext().userEnabledMkldnn();
}

variable_list lstm_by_library(
    const Tensor& x, const Parameters& p, const Tensor& h, const Tensor& c, bool reverse) {
  const auto none = p[2].defined() ? Tensor() : x.new_zeros({p[0].size(0)});
  const variable_list given{
      x, p[0], p[1], p[2].defined() ? p[2] : none, p[2].defined() ? p[3] : none, h, c};
  const bool differentiable =
      c10::GradMode::is_enabled() &&
      std::any_of(given.begin(), given.end(), [](const Tensor& t) { return t.requires_grad(); });
  return LibraryLayer::apply(at::TensorList(given), reverse, differentiable);
}

TORCH_LIBRARY_IMPL(aten, CompositeExplicitAutograd, m) {
  m.impl("_thnn_fused_lstm_cell", cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", cell_backward);
}

}  // namespace tenon
