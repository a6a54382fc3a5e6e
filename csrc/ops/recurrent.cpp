// The LSTM's layers, and its fused cell: torch.nn's LSTMCell calls that on any device but the CPU,
// with the two matmuls outside. Written with other ops, which are recorded and fuse; here and not
// in Python, since a sequence calls it at every step.
//
// Batch N, hidden size H; gates (N, 4H) in the order input, forget, cell, output. The forward
// returns a workspace, the gates after their activations, laid out as PyTorch's GPU kernels
// (ATen/native/cuda/RNN.cu) have it. As there, half precision is computed in float.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/lstm_native.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "device/target.h"
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

// What follows a step's products, on any device: the new states and the gates.
std::tuple<Tensor, Tensor, Tensor> cell(const Tensor& gates, const Tensor& cx) {
  const auto parts = gates.chunk(4, 1);
  const auto i = parts[0].sigmoid(), f = parts[1].sigmoid();
  const auto g = parts[2].tanh(), o = parts[3].sigmoid();
  const auto cy = f.mul(cx).add(i.mul(g));
  return {o.mul(cy.tanh()), cy, at::cat({i, f, g, o}, 1)};
}

// The gradients of the gates before their activations, and of cx; at least one of hy and cy has
// one.
std::tuple<Tensor, Tensor> cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace) {
  const auto parts = workspace.chunk(4, 1);
  const auto &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  Tensor grad_c, grad_o;
  if (grad_hy.has_value()) {
    const auto tanh_cy = cy.tanh();
    grad_c = at::tanh_backward(grad_hy->mul(o), tanh_cy);
    if (grad_cy.has_value())
      grad_c = grad_c.add(*grad_cy);
    grad_o = at::sigmoid_backward(grad_hy->mul(tanh_cy), o);
  } else {
    grad_c = *grad_cy;
    grad_o = at::zeros_like(o);
  }
  const auto grad_gates = at::cat(
      {at::sigmoid_backward(grad_c.mul(g), i),
       at::sigmoid_backward(grad_c.mul(cx), f),
       at::tanh_backward(grad_c.mul(i), g),
       grad_o},
      1);
  return {grad_gates, grad_c.mul(f)};
}

// The same as one call that is recorded: a sequence has one at every step.
template <class Function>
const auto& recorded(const char* name) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
  return op;
}

std::tuple<Tensor, Tensor, Tensor> recorded_cell(const Tensor& gates, const Tensor& cx) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return recorded<decltype(cell)>("tenon::lstm_cell").call(gates, cx);
}

std::tuple<Tensor, Tensor> recorded_cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace) {
  const at::AutoDispatchBelowADInplaceOrView below;
  return recorded<decltype(cell_backward)>("tenon::lstm_cell_backward")
      .call(grad_hy, grad_cy, cx, cy, workspace);
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
  const auto [hy, cy, workspace] = recorded_cell(gates, wide(cx));
  const auto dtype = input_gates.scalar_type();
  return {hy.to(dtype), cy.to(dtype), workspace.to(dtype)};
}

// Of the gates (the same for input and hidden), of cx, and of the biases (the same for both).
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const Tensor& cx,
    const Tensor& cy,
    const Tensor& workspace,
    bool has_bias) {
  static Counter& counted = counter("decomposed", "aten::_thnn_fused_lstm_cell_backward_impl");
  const CountedCall counted_call(counted);
  const auto given = [](const OptionalTensor& t) {
    return t.has_value() && t->defined() ? OptionalTensor(wide(*t)) : std::nullopt;
  };
  const auto of_hy = given(grad_hy), of_cy = given(grad_cy);
  if (!of_hy && !of_cy)
    return {};
  const auto dtype = workspace.scalar_type();
  const auto [wide_gates, grad_cx] =
      recorded_cell_backward(of_hy, of_cy, wide(cx), wide(cy), wide(workspace));
  const auto grad_gates = wide_gates.to(dtype);
  return {grad_gates, grad_cx.to(dtype), has_bias ? grad_gates.sum(0) : Tensor()};
}

// torch.nn.LSTM. PyTorch has the input's products of all steps in one for the CPU alone, and
// differentiates the hidden ones step by step: a gradient of the weights for each step, and a sum
// of them. Here both weights meet one product, forward and backward, over all steps at once.

// The steps of one layer in one direction, for input gates (T, N, 4H) with all biases in them.
struct LstmSteps : torch::autograd::Function<LstmSteps> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  // The outputs (T, N, H) and the last cell state. What backward needs goes to `kept`, if given.
  static std::tuple<Tensor, Tensor> run(
      const Tensor& gates, const Tensor& weight, Tensor h, Tensor c, Tensors* kept) {
    const auto turned = weight.t().contiguous();  // once, and not packed for each step
    Tensors outputs;
    for (const auto& input : gates.unbind(0)) {
      const auto summed = input.addmm(h, turned);
      const auto before = c;
      Tensor workspace;
      std::tie(h, c, workspace) = kept != nullptr ? recorded_cell(summed, c) : cell(summed, c);
      if (kept != nullptr)
        kept->insert(kept->end(), {workspace, before});
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
    Tensors saved{gates, weight, h, c};
    const auto [output, last] = run(gates, weight, h, c, &saved);
    saved.insert(saved.end(), {last, output});
    context->save_for_backward(saved);
    return {output, last};
  }

  static Tensors backward(Context* context, Tensors grads) {
    const auto saved = context->get_saved_variables();
    const auto &weight = saved[1], &output = saved.back();
    if (c10::GradMode::is_enabled()) {  // to be differentiated once more
      const Tensors inputs(saved.begin(), saved.begin() + 4);
      const auto [again, last] = run(inputs[0], inputs[1], inputs[2], inputs[3], nullptr);
      Tensors needed, results(4);
      for (const auto& t : inputs) {
        if (t.requires_grad())
          needed.push_back(t);
      }
      const auto found = torch::autograd::grad(
          {again, last}, needed, grads, std::nullopt, /*create_graph=*/true, /*allow_unused=*/true);
      for (size_t k = 0, next = 0; k < 4; ++k)
        results[k] = inputs[k].requires_grad() ? found[next++] : Tensor();
      return results;
    }
    const auto steps = output.size(0);
    const auto of_outputs = grads[0].unbind(0);
    Tensor of_h, of_c = grads[1];
    Tensors of_gates(steps);
    for (int64_t t = steps - 1; t >= 0; --t) {
      const auto* kept = &saved[4 + 2 * t];
      const auto& after = t + 1 < steps ? kept[3] : saved[saved.size() - 2];
      const auto grad = of_h.defined() ? of_outputs[t].add(of_h) : of_outputs[t];
      std::tie(of_gates[t], of_c) = recorded_cell_backward(grad, of_c, kept[1], after, kept[0]);
      of_h = of_gates[t].mm(weight);
    }
    const auto gates = at::stack(of_gates);
    const auto hidden = at::cat({saved[2].unsqueeze(0), output.narrow(0, 0, steps - 1)});
    const auto of_weight = gates.flatten(0, 1).t().mm(hidden.flatten(0, 1));
    return {gates, of_weight, of_h, of_c};
  }
};

// Whether the layers are plain: else PyTorch's own composition has the answer, or the error.
bool is_plain(
    const Tensor& input, at::TensorList hx, at::TensorList params, int64_t count, int64_t per) {
  if (hx.size() != 2 || params.size() != static_cast<size_t>(count * per) || input.dim() != 3 ||
      input.numel() == 0 || at::autocast::is_autocast_enabled(kTenon) ||
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
      (input.scalar_type() != at::kFloat && input.scalar_type() != at::kDouble))
    return false;
  const auto like = [&](const Tensor& t) {
    return t.device() == input.device() && t.scalar_type() == input.scalar_type() &&
           !t._fw_grad(0).defined();
  };
  bool plain = like(input);
  for (const auto& t : hx)
    plain = plain && like(t) && t.dim() == 3 && t.size(0) == count && t.sizes() == hx[0].sizes();
  for (const auto& t : params)
    plain = plain && like(t);
  for (int64_t k = 0; plain && k < count; ++k)
    plain = params[k * per + 1].size(1) == hx[0].size(2);
  return plain;
}

std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& input,
    at::TensorList hx,
    at::TensorList params,
    bool has_biases,
    int64_t layers,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const int64_t directions = bidirectional ? 2 : 1, per = has_biases ? 4 : 2;
  const auto batch = input.dim() == 3 ? input.size(batch_first ? 0 : 1) : 0;
  if (!is_plain(input, hx, params, layers * directions, per) || hx[0].size(1) != batch)
    return at::native::lstm(
        input, hx, params, has_biases, layers, dropout, train, bidirectional, batch_first);
  auto x = batch_first ? input.transpose(0, 1) : input;
  std::vector<Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto k = layer * directions + direction;
      const auto* p = &params[k * per];
      OptionalTensor bias;
      if (has_biases)
        bias = p[2].add(p[3]);
      auto gates = at::linear(x, p[0], bias);
      if (direction == 1)
        gates = gates.flip({0});
      const auto made = LstmSteps::apply(gates, p[1], hx[0][k], hx[1][k]);
      last_h.push_back(made[0][-1]);
      last_c.push_back(made[1]);
      outputs.push_back(direction == 1 ? made[0].flip({0}) : made[0]);
    }
    x = directions == 2 ? at::cat(outputs, 2) : outputs[0];
    if (train && dropout != 0 && layer + 1 < layers)
      x = at::dropout(x, dropout, true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(last_h), at::stack(last_c)};
}

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def("lstm_cell(Tensor gates, Tensor cx) -> (Tensor hy, Tensor cy, Tensor workspace)");
  m.def(
      "lstm_cell_backward(Tensor? grad_hy, Tensor? grad_cy, Tensor cx, Tensor cy, "
      "Tensor workspace) -> (Tensor gates, Tensor cx)");
}

void compose(torch::Library& m) {
  m.impl("lstm_cell", cell);
  m.impl("lstm_cell_backward", cell_backward);
}

// What the host runs; what tells layouts; what plans and graphs are made of.
TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  compose(m);
}
TORCH_LIBRARY_IMPL(tenon, Meta, m) {
  compose(m);
}
TORCH_LIBRARY_IMPL(tenon, CompositeImplicitAutograd, m) {
  compose(m);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("lstm.input", lstm);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("lstm.input", lstm);
}

}  // namespace
}  // namespace tenon
