// torch.nn's recurrent layers. PyTorch has kernels of whole layers for GPUs, and oneDNN's LSTM for
// the CPU; others it composes, with a dozen ops for each step. Here a layer in one direction is a
// call on the host, or what PyTorch composes where the host does not reach the memory.

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/gru_cell_native.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_cell_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <torch/library.h>

#include <numeric>

#include "device/target.h"
#include "lstm.h"
#include "recurrence.h"

namespace tenon {
namespace {

using at::Tensor;
using torch::autograd::variable_list;

// What torch.nn's layers of one kind are told, but for their tensors.
struct Layers {
  Cell cell;
  bool has_biases;
  int64_t count;
  double dropout;
  bool train, bidirectional;

  int64_t directions() const {
    return bidirectional ? 2 : 1;
  }
  int64_t parameters() const {
    return has_biases ? 4 : 2;
  }
};

// Whether the layers are plain: else PyTorch's own composition has the answer, or the error.
bool is_plain(
    const Tensor& input,
    int64_t batch,
    at::TensorList hx,
    at::TensorList params,
    const Layers& layers) {
  const auto count = layers.count * layers.directions();
  if (params.size() != static_cast<size_t>(count * layers.parameters()) || input.numel() == 0 ||
      at::autocast::is_autocast_enabled(kTenon) ||
      (input.scalar_type() != at::kFloat && input.scalar_type() != at::kDouble))
    return false;
  const auto like = [&](const Tensor& t) {
    return t.device() == input.device() && t.scalar_type() == input.scalar_type();
  };
  const auto is_state = [&](const Tensor& t) {
    return like(t) && t.dim() == 3 && t.size(0) == count && t.size(1) == batch &&
           t.sizes() == hx[0].sizes();
  };
  if (!like(input) || !std::all_of(hx.begin(), hx.end(), is_state) ||
      !std::all_of(params.begin(), params.end(), like))
    return false;
  const auto size = hx[0].size(2), width = gates_of(layers.cell) * size;
  for (size_t k = 0; k < params.size(); ++k) {
    const int64_t which = k % layers.parameters(), of = k / layers.parameters();
    const auto wide = which == 1                 ? size
                      : of < layers.directions() ? input.size(-1)
                                                 : size * layers.directions();
    if (params[k].sizes() != (which < 2 ? at::IntArrayRef{width, wide} : at::IntArrayRef{width}))
      return false;
  }
  return true;
}

bool is_of_functions() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// Whether a transform of functions, or a derivative forwards, has to see each op.
bool is_looked_into(const Tensor& input, at::TensorList hx, at::TensorList params) {
  const auto has_tangent = [](const Tensor& t) { return t._fw_grad(0).defined(); };
  return is_of_functions() || has_tangent(input) ||
         std::any_of(hx.begin(), hx.end(), has_tangent) ||
         std::any_of(params.begin(), params.end(), has_tangent);
}

// A layer in one direction: its outputs, and the last states.
using LayerOf = std::function<variable_list(
    const Tensor& x, const Parameters& p, const Tensor& h, const Tensor& c, bool reverse)>;

States over_layers(
    Tensor x,
    const Tensor& h,
    const Tensor& c,
    at::TensorList params,
    const Layers& layers,
    const LayerOf& layer_of) {
  const auto directions = layers.directions(), per = layers.parameters();
  std::vector<Tensor> last_h, last_c;
  for (int64_t layer = 0; layer < layers.count; ++layer) {
    std::vector<Tensor> outputs;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const auto k = layer * directions + direction;
      Parameters p;
      std::copy_n(&params[k * per], per, p.begin());
      const auto made = layer_of(x, p, h[k], c.defined() ? c[k] : h.new_empty({0}), direction == 1);
      outputs.push_back(made[0]);
      last_h.push_back(made[1]);
      last_c.push_back(made[2]);
    }
    x = directions == 2 ? at::cat(outputs, -1) : outputs[0];
    if (layers.train && layers.dropout != 0 && layer + 1 < layers.count)
      x = at::dropout(x, layers.dropout, true);
  }
  return {x, at::stack(last_h), c.defined() ? at::stack(last_c) : Tensor()};
}

using Recur = States(const Recurrence&);

// A layer by one of the ways of its steps, of equal or of such sizes.
LayerOf by(Recur* recur_so, Cell cell, const std::optional<Tensor>& batch_sizes) {
  return [=](const Tensor& x, const Parameters& p, const Tensor& h, const Tensor& c, bool reverse) {
    std::optional<Tensor> of_input, of_hidden;
    if (p[2].defined() && cell == Cell::kGru)
      std::tie(of_input, of_hidden) = std::tuple(p[2], p[3]);
    else if (p[2].defined())
      of_input = p[2].add(p[3]);
    const auto gates = at::linear(x, p[0], of_input);
    auto made = recur_so({gates, p[1], of_hidden, h, c, batch_sizes, cell, reverse});
    return variable_list{made.output, made.h, made.c};
  };
}

std::tuple<Tensor, Tensor, Tensor> lstm(
    const Tensor& input,
    at::TensorList hx,
    at::TensorList params,
    bool has_biases,
    int64_t count,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const Layers layers{Cell::kLstm, has_biases, count, dropout, train, bidirectional};
  const auto batch = input.dim() == 3 ? input.size(batch_first ? 0 : 1) : -1;
  if (hx.size() != 2 || !is_plain(input, batch, hx, params, layers))
    return at::native::lstm(
        input, hx, params, has_biases, count, dropout, train, bidirectional, batch_first);
  const auto x = batch_first ? input.transpose(0, 1) : input;
  const LayerOf layer_of = is_looked_into(input, hx, params)
                               ? by(recur_by_ops, Cell::kLstm, std::nullopt)
                           : lstm_has_library(input) ? lstm_by_library
                           : target().host_memory    ? by(recur, Cell::kLstm, std::nullopt)
                                                     : lstm_by_steps;
  const auto made = over_layers(x, hx[0], hx[1], params, layers, layer_of);
  return {batch_first ? made.output.transpose(0, 1) : made.output, made.h, made.c};
}

// The rows of the first step of a PackedSequence, if the numbers are of one and can be read; -1
// otherwise.
int64_t batch_of(const Tensor& data, const Tensor& batch_sizes) {
  if (is_of_functions() || data.dim() != 2 || batch_sizes.device().type() != at::kCPU ||
      batch_sizes.dim() != 1 || batch_sizes.scalar_type() != at::kLong || batch_sizes.numel() == 0)
    return -1;
  const auto dense = batch_sizes.contiguous();
  const c10::ArrayRef sizes(dense.const_data_ptr<int64_t>(), dense.numel());
  const auto rows = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const bool falls = std::is_sorted(sizes.rbegin(), sizes.rend()) && sizes.back() > 0;
  return falls && rows == data.size(0) ? sizes.front() : -1;
}

std::tuple<Tensor, Tensor, Tensor> packed_lstm(
    const Tensor& data,
    const Tensor& batch_sizes,
    at::TensorList hx,
    at::TensorList params,
    bool has_biases,
    int64_t count,
    double dropout,
    bool train,
    bool bidirectional) {
  const Layers layers{Cell::kLstm, has_biases, count, dropout, train, bidirectional};
  const auto batch = batch_of(data, batch_sizes);
  if (!target().host_memory || hx.size() != 2 || batch < 0 ||
      !is_plain(data, batch, hx, params, layers))
    return at::native::lstm(
        data, batch_sizes, hx, params, has_biases, count, dropout, train, bidirectional);
  const auto sizes = batch_sizes.to(data.device());
  const auto way = is_looked_into(data, hx, params) ? recur_by_ops : recur;
  const auto made = over_layers(data, hx[0], hx[1], params, layers, by(way, Cell::kLstm, sizes));
  return {made.output, made.h, made.c};
}

using Padded = std::tuple<Tensor, Tensor>(
    const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double, bool, bool, bool);
using Packed = std::tuple<Tensor, Tensor>(
    const Tensor&, const Tensor&, const Tensor&, at::TensorList, bool, int64_t, double, bool, bool);

template <Cell cell, Padded* native>
std::tuple<Tensor, Tensor> padded(
    const Tensor& input,
    const Tensor& hx,
    at::TensorList params,
    bool has_biases,
    int64_t count,
    double dropout,
    bool train,
    bool bidirectional,
    bool batch_first) {
  const Layers layers{cell, has_biases, count, dropout, train, bidirectional};
  const auto batch = input.dim() == 3 ? input.size(batch_first ? 0 : 1) : -1;
  const bool is_seen = is_looked_into(input, hx, params);
  if (!(target().host_memory || is_seen) || !is_plain(input, batch, hx, params, layers))
    return native(input, hx, params, has_biases, count, dropout, train, bidirectional, batch_first);
  const auto x = batch_first ? input.transpose(0, 1) : input;
  const auto made = over_layers(
      x, hx, {}, params, layers, by(is_seen ? recur_by_ops : recur, cell, std::nullopt));
  return {batch_first ? made.output.transpose(0, 1) : made.output, made.h};
}

template <Cell cell, Packed* native>
std::tuple<Tensor, Tensor> packed(
    const Tensor& data,
    const Tensor& batch_sizes,
    const Tensor& hx,
    at::TensorList params,
    bool has_biases,
    int64_t count,
    double dropout,
    bool train,
    bool bidirectional) {
  const Layers layers{cell, has_biases, count, dropout, train, bidirectional};
  const auto batch = batch_of(data, batch_sizes);
  if (!target().host_memory || batch < 0 || !is_plain(data, batch, hx, params, layers))
    return native(data, batch_sizes, hx, params, has_biases, count, dropout, train, bidirectional);
  const auto sizes = batch_sizes.to(data.device());
  const auto way = is_looked_into(data, hx, params) ? recur_by_ops : recur;
  const auto made = over_layers(data, hx, {}, params, layers, by(way, cell, sizes));
  return {made.output, made.h};
}

// A single step by plain ops, where that is asked for and the arguments fit.
std::optional<States> step_by_ops(
    Cell cell,
    const Tensor& x,
    at::TensorList hx,
    const Tensor& of_input,
    const Tensor& of_hidden,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  std::vector<Tensor> params{of_input, of_hidden};
  const auto has = [](const std::optional<Tensor>& bias) { return bias && bias->defined(); };
  if (has(input_bias) && has(hidden_bias))
    params.insert(params.end(), {*input_bias, *hidden_bias});
  if (has(input_bias) != has(hidden_bias) || x.dim() != 2 || !is_looked_into(x, hx, params))
    return std::nullopt;
  std::vector<Tensor> states;
  for (const auto& state : hx)
    states.push_back(state.unsqueeze(0));
  const Layers layer{cell, params.size() == 4, 1, 0, false, false};
  if (!is_plain(x, x.size(0), states, params, layer))
    return std::nullopt;
  const auto c = hx.size() == 2 ? hx[1] : hx[0].new_empty({0});
  const auto gates = at::linear(x, of_input, input_bias).unsqueeze(0);
  return recur_by_ops({gates, of_hidden, hidden_bias, hx[0], c, std::nullopt, cell, false});
}

std::tuple<Tensor, Tensor> lstm_cell(
    const Tensor& x,
    at::TensorList hx,
    const Tensor& of_input,
    const Tensor& of_hidden,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  if (hx.size() == 2) {
    const auto made = step_by_ops(Cell::kLstm, x, hx, of_input, of_hidden, input_bias, hidden_bias);
    if (made)
      return {made->h, made->c};
  }
  const auto [h, c] = at::native::lstm_cell(x, hx, of_input, of_hidden, input_bias, hidden_bias);
  // PyTorch's fused cell keeps c for backward, and who has it may change it in place.
  return {h, c.requires_grad() ? c.clone() : c};
}

Tensor gru_cell(
    const Tensor& x,
    const Tensor& h,
    const Tensor& of_input,
    const Tensor& of_hidden,
    const std::optional<Tensor>& input_bias,
    const std::optional<Tensor>& hidden_bias) {
  const auto made = step_by_ops(Cell::kGru, x, h, of_input, of_hidden, input_bias, hidden_bias);
  return made ? made->h : at::native::gru_cell(x, h, of_input, of_hidden, input_bias, hidden_bias);
}

void register_layers(torch::Library& m) {
  m.impl("lstm.input", lstm);
  m.impl("lstm.data", packed_lstm);
  m.impl("gru.input", padded<Cell::kGru, at::native::gru>);
  m.impl("gru.data", packed<Cell::kGru, at::native::gru>);
  m.impl("rnn_tanh.input", padded<Cell::kTanh, at::native::rnn_tanh>);
  m.impl("rnn_tanh.data", packed<Cell::kTanh, at::native::rnn_tanh>);
  m.impl("rnn_relu.input", padded<Cell::kRelu, at::native::rnn_relu>);
  m.impl("rnn_relu.data", packed<Cell::kRelu, at::native::rnn_relu>);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  register_layers(m);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  register_layers(m);
  // Below gradients they are PyTorch's compositions.
  m.impl("lstm_cell", lstm_cell);
  m.impl("gru_cell", gru_cell);
}

}  // namespace
}  // namespace tenon
