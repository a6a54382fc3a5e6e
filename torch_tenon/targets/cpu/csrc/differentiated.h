// Gradients that are differentiated once more, for autograd functions whose own cannot be.

#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

namespace tenon {

// The gradients of `inputs`, where they require one, by what `run` makes of them with ops that
// autograd knows. An input may be computed of another one: `run` gets views, so that a gradient
// ends at the input that it is of.
template <typename F>
torch::autograd::variable_list gradients_by(
    const F& run,
    const torch::autograd::variable_list& inputs,
    const torch::autograd::variable_list& grads) {
  torch::autograd::variable_list views, needed;
  for (const auto& t : inputs) {
    const bool is_needed = t.defined() && t.requires_grad();
    views.push_back(is_needed ? t.view_as(t) : t);
    if (is_needed)
      needed.push_back(views.back());
  }
  const auto found = torch::autograd::grad(
      run(views), needed, grads, std::nullopt, /*create_graph=*/true, /*allow_unused=*/true);
  torch::autograd::variable_list results(inputs.size());
  for (size_t k = 0, next = 0; k < inputs.size(); ++k) {
    if (inputs[k].defined() && inputs[k].requires_grad())
      results[k] = found[next++];
  }
  return results;
}

}  // namespace tenon
