// `tenon::recurrence`: the steps of a recurrent layer as one call, and their gradients as another.
// PyTorch has a dozen ops for each step, and differentiates each. Here a step is the product with
// the hidden state's weight and a few ops in place; the weight's gradient is one product over all
// steps.

#include "recurrence.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "differentiated.h"

namespace tenon {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

// A step's rows among all, and how many of the batch take part in it: the first ones.
struct Step {
  int64_t first, count;
};

std::vector<Step> steps_of(
    const Tensor& rows, const Tensor& h, const OptionalTensor& batch_sizes, bool reverse) {
  const auto batch = h.size(0);
  std::vector<Step> steps;
  int64_t first = 0;
  if (batch_sizes.has_value()) {
    const auto sizes = batch_sizes->contiguous();
    auto before = batch;
    for (const auto n : c10::ArrayRef(sizes.const_data_ptr<int64_t>(), sizes.numel())) {
      TORCH_CHECK(
          0 < n && n <= before, "tenon::recurrence: a batch size of ", n, " after ", before);
      steps.push_back({first, n});
      first += before = n;
    }
  } else {
    for (; batch > 0 && first < rows.size(0); first += batch)
      steps.push_back({first, batch});
  }
  TORCH_CHECK(
      first == rows.size(0), "tenon::recurrence: ", rows.size(0), " rows for steps of ", first);
  if (reverse)
    std::reverse(steps.begin(), steps.end());
  return steps;
}

// What backward needs of a step, in columns of H: the gates after their activations, what else a
// cell computes, of a cell without gates its state after the step, and the states before it.
struct Kept {
  Tensor all;
  int64_t size;

  Tensor columns(int64_t first, int64_t count = 1) const {
    return all.narrow(1, first * size, count * size);
  }
};

int64_t columns_kept(Cell cell) {
  return cell == Cell::kLstm ? 7 : cell == Cell::kGru ? 5 : 2;  // the last is h
}

struct Lstm {
  Tensor in_and_forget, i, f, g, o, tanh_c, c, h;

  explicit Lstm(const Kept& k)
      : in_and_forget(k.columns(0, 2)),
        i(k.columns(0)),
        f(k.columns(1)),
        g(k.columns(2)),
        o(k.columns(3)),
        tanh_c(k.columns(4)),
        c(k.columns(5)),
        h(k.columns(6)) {}
};

struct Gru {
  Tensor reset_and_update, r, z, n, hidden_n, h;

  explicit Gru(const Kept& k)
      : reset_and_update(k.columns(0, 2)),
        r(k.columns(0)),
        z(k.columns(1)),
        n(k.columns(2)),
        hidden_n(k.columns(3)),
        h(k.columns(4)) {}
};

// One step: `h` and `c` become the states after it; `products` is scratch, (rows, G).
void take_step(
    Cell cell, const Tensor& input, Tensor& products, const Kept& k, Tensor& h, Tensor& c) {
  const auto size = k.size;
  if (cell == Cell::kGru) {
    Gru s(k);
    at::add_out(s.reset_and_update, products.narrow(1, 0, 2 * size), input.narrow(1, 0, 2 * size));
    s.reset_and_update.sigmoid_();
    s.hidden_n.copy_(products.narrow(1, 2 * size, size));
    at::addcmul_out(s.n, input.narrow(1, 2 * size, size), s.r, s.hidden_n);
    s.n.tanh_();
    h.sub_(s.n).mul_(s.z).add_(s.n);
  } else if (cell == Cell::kLstm) {
    Lstm s(k);
    s.c.copy_(c);
    products.add_(input);
    at::sigmoid_out(s.in_and_forget, products.narrow(1, 0, 2 * size));
    at::tanh_out(s.g, products.narrow(1, 2 * size, size));
    at::sigmoid_out(s.o, products.narrow(1, 3 * size, size));
    c.mul_(s.f).addcmul_(s.i, s.g);
    at::tanh_out(s.tanh_c, c);
    at::mul_out(h, s.o, s.tanh_c);
  } else {
    at::add_out(h, products, input);
    cell == Cell::kTanh ? h.tanh_() : h.relu_();
    k.columns(0).copy_(h);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recurrence(
    const Tensor& gates,
    const Tensor& weight,
    const OptionalTensor& bias,
    const Tensor& first_h,
    const Tensor& first_c,
    const OptionalTensor& batch_sizes,
    int64_t kind,
    bool reverse,
    bool keeps) {
  const auto cell = static_cast<Cell>(kind);
  const auto size = weight.size(1), width = weight.size(0);
  const auto rows = gates.contiguous().view({-1, width});
  const auto steps = steps_of(rows, first_h, batch_sizes, reverse);
  const auto turned = weight.t().contiguous();  // once, and not packed for each step
  auto h = first_h.clone(at::MemoryFormat::Contiguous);
  auto c = first_c.clone(at::MemoryFormat::Contiguous);
  const auto batch = h.size(0), columns = columns_kept(cell);
  const auto output = rows.new_empty({rows.size(0), size});
  const auto kept = rows.new_empty({keeps ? rows.size(0) : batch, columns * size});
  const auto products = rows.new_empty({batch, width});
  for (const auto& [first, count] : steps) {
    auto active_h = h.narrow(0, 0, count);
    auto active_c = c.numel() ? c.narrow(0, 0, count) : c;
    auto product = products.narrow(0, 0, count);
    if (bias.has_value())
      at::addmm_out(product, *bias, active_h, turned);
    else
      at::mm_out(product, active_h, turned);
    const Kept k{kept.narrow(0, keeps ? first : 0, count), size};
    k.columns(columns - 1).copy_(active_h);
    take_step(cell, rows.narrow(0, first, count), product, k, active_h, active_c);
    output.narrow(0, first, count).copy_(active_h);
  }
  auto sizes = gates.sizes().vec();
  sizes.back() = size;
  return {output.view(sizes), h, c, keeps ? kept : rows.new_empty({0})};
}

// The gradients of a step's gates, of the hidden state's products, and of c before it in `of_c`;
// `of_h` becomes what of h's does not come through the products.
void take_back(
    Cell cell, const Kept& k, Tensor& of_h, Tensor& of_c, Tensor& of_gates, Tensor& of_products) {
  const auto size = k.size;
  const auto gate = [&](int64_t n, int64_t count = 1) {
    return of_gates.narrow(1, n * size, count * size);
  };
  if (cell == Cell::kGru) {
    const Gru s(k);
    auto of_r = gate(0), of_z = gate(1), of_n = gate(2);
    at::sigmoid_backward_out(of_z, at::sub(s.h, s.n).mul_(of_h), s.z);
    const auto through = at::mul(of_h, s.z);
    at::tanh_backward_out(of_n, of_h.sub(through), s.n);
    at::sigmoid_backward_out(of_r, at::mul(of_n, s.hidden_n), s.r);
    of_products.narrow(1, 0, 2 * size).copy_(gate(0, 2));
    auto of_hidden_n = of_products.narrow(1, 2 * size, size);
    at::mul_out(of_hidden_n, of_n, s.r);
    of_h.copy_(through);
  } else if (cell == Cell::kLstm) {
    const Lstm s(k);
    auto of_i = gate(0), of_f = gate(1), of_g = gate(2), of_o = gate(3);
    at::sigmoid_backward_out(of_o, at::mul(of_h, s.tanh_c), s.o);
    of_c.add_(at::tanh_backward(at::mul(of_h, s.o), s.tanh_c));
    at::sigmoid_backward_out(of_i, at::mul(of_c, s.g), s.i);
    at::sigmoid_backward_out(of_f, at::mul(of_c, s.c), s.f);
    at::tanh_backward_out(of_g, at::mul(of_c, s.i), s.g);
    of_c.mul_(s.f);
    of_h.zero_();
  } else {
    if (cell == Cell::kTanh)
      at::tanh_backward_out(of_gates, of_h, k.columns(0));
    else
      at::threshold_backward_out(of_gates, of_h, k.columns(0), 0);
    of_h.zero_();
  }
}

// Of the gates, the weight, the bias, and the states before the first step.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> recurrence_backward(
    const Tensor& grad_output,
    const Tensor& grad_h,
    const Tensor& grad_c,
    const Tensor& weight,
    const Tensor& kept,
    const OptionalTensor& batch_sizes,
    int64_t kind,
    bool reverse) {
  const auto cell = static_cast<Cell>(kind);
  const auto size = weight.size(1), width = weight.size(0), columns = columns_kept(cell);
  const auto grads = grad_output.reshape({-1, size});
  auto of_h = grad_h.clone(at::MemoryFormat::Contiguous);
  auto of_c = grad_c.clone(at::MemoryFormat::Contiguous);
  auto steps = steps_of(grads, of_h, batch_sizes, !reverse);
  const auto of_gates = weight.new_empty({grads.size(0), width});
  const auto of_products = cell == Cell::kGru ? at::empty_like(of_gates) : of_gates;
  for (const auto& [first, count] : steps) {
    auto active_h = of_h.narrow(0, 0, count);
    auto active_c = of_c.numel() ? of_c.narrow(0, 0, count) : of_c;
    auto gates = of_gates.narrow(0, first, count), products = of_products.narrow(0, first, count);
    active_h.add_(grads.narrow(0, first, count));
    const Kept k{kept.narrow(0, first, count), size};
    take_back(cell, k, active_h, active_c, gates, products);
    active_h.addmm_(products, weight);
  }
  const auto before = kept.narrow(1, (columns - 1) * size, size);
  auto sizes = grad_output.sizes().vec();
  sizes.back() = width;
  return {of_gates.view(sizes), of_products.t().mm(before), of_products.sum(0), of_h, of_c};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> layouts(
    const Tensor& gates,
    const Tensor& weight,
    const OptionalTensor& /*bias*/,
    const Tensor& h,
    const Tensor& c,
    const OptionalTensor& /*batch_sizes*/,
    int64_t kind,
    bool /*reverse*/,
    bool keeps) {
  auto sizes = gates.sym_sizes().vec();
  sizes.back() = weight.sym_size(1);
  const auto output = gates.new_empty_symint(sizes);
  const auto columns = columns_kept(static_cast<Cell>(kind)) * weight.sym_size(1);
  auto kept = keeps ? gates.new_empty_symint({output.sym_numel() / weight.sym_size(1), columns})
                    : gates.new_empty({0});
  return {
      output,
      h.new_empty_symint(h.sym_sizes()),
      c.new_empty_symint(c.sym_sizes()),
      std::move(kept)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_layouts(
    const Tensor& grad_output,
    const Tensor& grad_h,
    const Tensor& grad_c,
    const Tensor& weight,
    const Tensor& /*kept*/,
    const OptionalTensor& /*batch_sizes*/,
    int64_t /*kind*/,
    bool /*reverse*/) {
  auto sizes = grad_output.sym_sizes().vec();
  sizes.back() = weight.sym_size(0);
  return {
      grad_output.new_empty_symint(sizes),
      weight.new_empty_symint(weight.sym_sizes()),
      weight.new_empty_symint({weight.sym_size(0)}),
      grad_h.new_empty_symint(grad_h.sym_sizes()),
      grad_c.new_empty_symint(grad_c.sym_sizes())};
}

TORCH_LIBRARY_FRAGMENT(tenon, m) {
  m.def(
      "recurrence(Tensor gates, Tensor weight, Tensor? bias, Tensor h, Tensor c, "
      "Tensor? batch_sizes, int kind, bool reverse, bool keeps) "
      "-> (Tensor output, Tensor last_h, Tensor last_c, Tensor kept)");
  m.def(
      "recurrence_backward(Tensor grad_output, Tensor grad_h, Tensor grad_c, Tensor weight, "
      "Tensor kept, Tensor? batch_sizes, int kind, bool reverse) "
      "-> (Tensor grad_gates, Tensor grad_weight, Tensor grad_bias, Tensor grad_h, Tensor grad_c)");
}

TORCH_LIBRARY_IMPL(tenon, CPU, m) {
  m.impl("recurrence", recurrence);
  m.impl("recurrence_backward", recurrence_backward);
}

TORCH_LIBRARY_IMPL(tenon, Meta, m) {
  m.impl("recurrence", layouts);
  m.impl("recurrence_backward", backward_layouts);
}

template <typename F>
c10::TypedOperatorHandle<F> typed(const char* name, F* /*kernel*/) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").template typed<F>();
}

OptionalTensor if_defined(const Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

}  // namespace

States recur_by_ops(const Recurrence& given) {
  const auto size = given.weight.size(1);
  const auto rows = given.gates.reshape({-1, given.weight.size(0)});
  const auto sizes =
      given.batch_sizes.has_value() ? OptionalTensor(given.batch_sizes->cpu()) : std::nullopt;
  const auto steps = steps_of(rows, given.h, sizes, given.reverse);
  auto h = given.h, c = given.c;
  std::vector<Tensor> outputs;
  for (const auto& [first, count] : steps) {
    const auto input = rows.narrow(0, first, count), before = h.narrow(0, 0, count);
    const auto products = at::linear(before, given.weight, given.bias);
    Tensor after, after_c;
    if (given.cell == Cell::kGru) {
      const auto parts = products.chunk(3, 1), inputs = input.chunk(3, 1);
      const auto r = parts[0].add(inputs[0]).sigmoid(), z = parts[1].add(inputs[1]).sigmoid();
      const auto n = inputs[2].add(r.mul(parts[2])).tanh();
      after = before.sub(n).mul(z).add(n);
    } else if (given.cell == Cell::kLstm) {
      const auto parts = products.add(input).chunk(4, 1);
      after_c = parts[1]
                    .sigmoid()
                    .mul(c.narrow(0, 0, count))
                    .add(parts[0].sigmoid().mul(parts[2].tanh()));
      after = parts[3].sigmoid().mul(after_c.tanh());
      c = at::cat({after_c, c.narrow(0, count, c.size(0) - count)});
    } else {
      const auto sum = products.add(input);
      after = given.cell == Cell::kTanh ? sum.tanh() : sum.relu();
    }
    outputs.push_back(after);
    h = at::cat({after, h.narrow(0, count, h.size(0) - count)});
  }
  if (given.reverse)
    std::reverse(outputs.begin(), outputs.end());
  auto shape = given.gates.sizes().vec();
  shape.back() = size;
  return {at::cat(outputs).view(shape), h, c};
}

namespace {

struct ByCall : torch::autograd::Function<ByCall> {
  using Context = torch::autograd::AutogradContext;

  static variable_list forward(
      Context* context,
      const Tensor& gates,
      const Tensor& weight,
      const OptionalTensor& bias,
      const Tensor& first_h,
      const Tensor& first_c,
      const OptionalTensor& batch_sizes,
      int64_t cell,
      bool reverse,
      bool keeps) {
    static const auto op = typed("tenon::recurrence", recurrence);
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [output, h, c, kept] =
        op.call(gates, weight, bias, first_h, first_c, batch_sizes, cell, reverse, keeps);
    const auto or_none = [](const OptionalTensor& t) { return t.value_or(Tensor()); };
    context->save_for_backward(
        {gates, weight, or_none(bias), first_h, first_c, or_none(batch_sizes), kept});
    context->saved_data["cell"] = cell;
    context->saved_data["reverse"] = reverse;
    if (!c.numel())
      context->mark_non_differentiable({c});
    return {output, h, c};
  }

  static variable_list backward(Context* context, variable_list grads) {
    static const auto op = typed("tenon::recurrence_backward", recurrence_backward);
    const auto s = context->get_saved_variables();
    const auto cell = context->saved_data["cell"].toInt();
    const bool reverse = context->saved_data["reverse"].toBool();
    const bool has_c = static_cast<Cell>(cell) == Cell::kLstm;
    const auto sizes = if_defined(s[5]);
    variable_list found(9);             // four of them are of what is no tensor, or not of floats
    if (c10::GradMode::is_enabled()) {  // to be differentiated once more
      const auto run = [&](const variable_list& t) {
        const auto again = recur_by_ops(
            {t[0], t[1], if_defined(t[2]), t[3], t[4], sizes, static_cast<Cell>(cell), reverse});
        variable_list results{again.output, again.h};
        if (has_c)
          results.push_back(again.c);
        return results;
      };
      grads.resize(has_c ? 3 : 2);
      auto again = gradients_by(run, variable_list(s.begin(), s.begin() + 5), grads);
      std::move(again.begin(), again.end(), found.begin());
      return found;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto of_c = has_c ? grads[2] : s[4];
    const auto made = op.call(grads[0], grads[1], of_c, s[1], s[6], sizes, cell, reverse);
    std::tie(found[0], found[1], found[2], found[3], found[4]) = made;
    if (!s[2].defined())
      found[2] = Tensor();
    if (!has_c)
      found[4] = Tensor();
    return found;
  }
};

}  // namespace

States recur(const Recurrence& given) {
  const auto& [gates, weight, bias, h, c, batch_sizes, cell, reverse] = given;
  const auto needs = [](const Tensor& t) { return t.requires_grad(); };
  const bool keeps =
      c10::GradMode::is_enabled() &&
      (needs(gates) || needs(weight) || (bias && needs(*bias)) || needs(h) || needs(c));
  const auto made = ByCall::apply(
      gates, weight, bias, h, c, batch_sizes, static_cast<int64_t>(cell), reverse, keeps);
  return {made[0], made[1], made[2]};
}

}  // namespace tenon
