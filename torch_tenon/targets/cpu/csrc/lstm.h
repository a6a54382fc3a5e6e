// An LSTM's layer in one direction, by what the host has for it.

#pragma once

#include <torch/csrc/autograd/custom_function.h>

namespace tenon {

// The parameters of a layer in one direction: weights of the input (4H, I) and of the hidden state
// (4H, H), and their biases (4H), if there are any.
using Parameters = std::array<at::Tensor, 4>;

// A layer in one direction over x (T, N, I): the outputs (T, N, H), and the last states (N, H), the
// hidden one first. Differentiable, twice too.
torch::autograd::variable_list lstm_by_steps(
    const at::Tensor& x,
    const Parameters& p,
    const at::Tensor& h,
    const at::Tensor& c,
    bool reverse);

// The same by oneDNN, which PyTorch has for the host, where `lstm_has_library`.
torch::autograd::variable_list lstm_by_library(
    const at::Tensor& x,
    const Parameters& p,
    const at::Tensor& h,
    const at::Tensor& c,
    bool reverse);
bool lstm_has_library(const at::Tensor& x);

}  // namespace tenon
