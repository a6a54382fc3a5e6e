"""Recurrent layers for programs without PyTorch: the input's products of all steps at once, then a
kernel that goes from step to step. Written out op by op, a sequence would have kernels for each of
its steps, and one length."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torch_tenon.ops.kernel_file import load_kernels

aten = torch.ops.aten

TANH, RELU, LSTM, GRU = range(4)
UNITS = 16  # whose weights lie side by side


def shapes(
    gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, cell: Tensor, *how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What the op makes: the hidden states of all steps, and the last ones."""
    steps, batch = gates.shape[:2]
    size = weight.shape[1]
    return (
        gates.new_empty(steps, batch, size),
        gates.new_empty(batch, size),
        gates.new_empty(batch, size),
    )


@functools.cache
def steps_op() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """The op that goes from step to step."""
    found = load_kernels(Path(__file__).with_name("recurrent.yaml"))
    op: Callable[..., tuple[Tensor, Tensor, Tensor]] = found["tenon::recurrent_steps"]
    return op


def compositions() -> dict[Any, Callable[..., Any]]:
    """How the layers are composed, for a trace."""
    steps_op()
    return dict(RECURRENT)


def _lstm(
    x: Tensor,
    hx: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    if not _is_served(x, weights, train and dropout > 0) or len(hx) != 2:
        return NotImplemented
    # With a projection a layer has a weight more, and hidden states of another size.
    if hx[0].shape[2] != hx[1].shape[2]:
        return NotImplemented
    return _layers(LSTM, x, hx[0], hx[1], weights, has_biases, layers, bidirectional, batch_first)


def _single(
    kind: int,
    x: Tensor,
    hx: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    if not _is_served(x, weights, train and dropout > 0):
        return NotImplemented
    found = _layers(kind, x, hx, hx, weights, has_biases, layers, bidirectional, batch_first)
    return found[:2]


def _is_served(x: Tensor, weights: Sequence[Tensor], drops: bool) -> bool:
    """Whether the kernel is for these: others are composed step by step."""
    return not drops and all(t.dtype is torch.float32 for t in (x, *weights))


def _layers(
    kind: int,
    x: Tensor,
    hidden: Tensor,
    cells: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    x = x.transpose(0, 1) if batch_first else x
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    last_hidden, last_cells = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            w_input, w_hidden, *biases = weights[k * each : (k + 1) * each]
            count = w_hidden.shape[0]
            b_input, b_hidden = biases or (None, w_hidden.new_zeros(count))
            gates = torch.nn.functional.linear(x, w_input, b_input)
            out, h, c = steps_op()(
                gates.contiguous(),
                _in_pieces(w_hidden),
                b_hidden.contiguous(),
                hidden[k].contiguous(),
                cells[k].contiguous(),
                kind,
                direction == 1,
            )
            outputs.append(out)
            last_hidden.append(h)
            last_cells.append(c)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    x = x.transpose(0, 1) if batch_first else x
    return x, torch.stack(last_hidden), torch.stack(last_cells)


def _in_pieces(weight: Tensor) -> Tensor:
    """The hidden state's weights (G, H) as the kernel reads them. It is computed once, where the
    weights are the model's own."""
    size = weight.shape[1]
    gates = weight.view(-1, size, size)
    gates = torch.nn.functional.pad(gates, (0, 0, 0, -size % UNITS))
    pieces = gates.view(len(gates), -1, UNITS, size)
    return pieces.permute(1, 3, 0, 2).contiguous()


# Of padded sequences; those that are packed are composed step by step.
RECURRENT: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _lstm,
    aten.gru.input: functools.partial(_single, GRU),
    aten.rnn_tanh.input: functools.partial(_single, TANH),
    aten.rnn_relu.input: functools.partial(_single, RELU),
}
