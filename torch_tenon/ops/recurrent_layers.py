"""Recurrent layers in traced graphs: PyTorch's compositions of them.

Layers of eager code are kernels of the target's (recurrent.cpp), one call for all steps or
the steps one by one, by their data's dtype and gradients. Neither is what a trace can look into.
"""

from __future__ import annotations

import torch
from torch._decomp.decompositions import (
    gru_impl,
    gru_impl_data,
    lstm_data_impl,
    lstm_impl,
    rnn_relu_data,
    rnn_relu_input,
    rnn_tanh_data,
    rnn_tanh_input,
)

from torch_tenon.ops.traced import above_gradients

aten = torch.ops.aten

above_gradients(aten.lstm.input, lstm_impl)
above_gradients(aten.lstm.data, lstm_data_impl)
above_gradients(aten.gru.input, gru_impl)
above_gradients(aten.gru.data, gru_impl_data)
above_gradients(aten.rnn_tanh.input, rnn_tanh_input)
above_gradients(aten.rnn_tanh.data, rnn_tanh_data)
above_gradients(aten.rnn_relu.input, rnn_relu_input)
above_gradients(aten.rnn_relu.data, rnn_relu_data)
