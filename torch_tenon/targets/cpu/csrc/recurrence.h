// The steps of one recurrent layer in one direction.
//
// R rows are those of all steps, one step after another: T steps of N rows, or as many as
// `batch_sizes` (T) says, as in a PackedSequence. H is the hidden size, G that of the gates side by
// side: of an LSTM 4 H (input, forget, cell, output), of a GRU 3 H (reset, update, new), else H.

#pragma once

#include <ATen/core/Tensor.h>

namespace tenon {

enum class Cell : int64_t { kTanh, kRelu, kLstm, kGru };

inline int64_t gates_of(Cell cell) {
  return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1;
}

struct Recurrence {
  at::Tensor gates;   // the input's products with the input's bias: (T, N, G) or (R, G)
  at::Tensor weight;  // of the hidden state, (G, H)
  std::optional<at::Tensor> bias;  // of the hidden state, (G)
  at::Tensor h, c;                 // before the first step, (N, H); c of an LSTM alone
  std::optional<at::Tensor> batch_sizes;
  Cell cell;
  bool reverse;  // from the last step to the first
};

struct States {
  at::Tensor output;  // of all steps, (T, N, H) or (R, H)
  at::Tensor h, c;    // after the last step of each row, (N, H)
};

// By `tenon::recurrence`, a call of the host's, on the device's tensors. Differentiable, twice too.
States recur(const Recurrence& given);

// The same by ops that autograd knows: for gradients that are differentiated again, derivatives
// forwards, and transforms of functions.
States recur_by_ops(const Recurrence& given);

}  // namespace tenon
