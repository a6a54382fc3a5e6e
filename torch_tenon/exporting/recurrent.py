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
    gates: Tensor, weight: Tensor, bias: Tensor, hidden: Tensor, *how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """What the op makes: the hidden states of all steps, and the last ones."""
    size = weight.shape[1]
    return (
        gates.new_empty(gates.shape[0], size),
        gates.new_empty(hidden.shape[0], size),
        gates.new_empty(hidden.shape[0], size),
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


def padded_layers(
    kind: int,
    x: Tensor,
    hx: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """The same of sequences of one length: `x` (T, N, I), or (N, T, I) where batches come first."""
    x = x.transpose(0, 1) if batch_first else x
    steps, batch = x.shape[:2]
    sizes = torch.full((steps,), batch, dtype=torch.int64, device=x.device)
    found = packed_layers(
        kind, x.flatten(0, 1), sizes, hx, weights, has_biases, layers, dropout, train, bidirectional
    )
    if found is NotImplemented:
        return found
    out, *states = found
    out = out.unflatten(0, (steps, batch))
    return out.transpose(0, 1) if batch_first else out, *states


def packed_layers(
    kind: int,
    data: Tensor,
    batch_sizes: Tensor,
    hx: Any,
    weights: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> Any:
    """The layers of `kind`, over `data` (R, I) and `batch_sizes` (T) as a PackedSequence has them:
    the hidden states (R, H) of the last layer, and the last ones of each. NotImplemented where the
    kernel is not for these."""
    if not _is_served(data, weights, train and dropout > 0):
        return NotImplemented
    hidden, cells = hx if kind == LSTM else (hx, hx)
    # With a projection a layer has a weight more, and hidden states of another size.
    if hidden.shape[2] != cells.shape[2]:
        return NotImplemented
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    last_hidden, last_cells = [], []
    x = data
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            w_input, w_hidden, *biases = weights[k * each : (k + 1) * each]
            count = w_hidden.shape[0]
            b_input, b_hidden = biases or (None, w_hidden.new_zeros(count))
            gates = torch.nn.functional.linear(x, w_input, b_input)
            out, h, c = _steps(
                gates, w_hidden, b_hidden, hidden[k], cells[k], batch_sizes, kind, direction == 1
            )
            outputs.append(out)
            last_hidden.append(h)
            last_cells.append(c)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    states = torch.stack(last_hidden), torch.stack(last_cells)
    return (x, *states) if kind == LSTM else (x, states[0])


def _steps(
    gates: Tensor,
    weight: Tensor,
    bias: Tensor,
    hidden: Tensor,
    cell: Tensor,
    batch_sizes: Tensor,
    kind: int,
    is_reversed: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if hidden.shape[0] == 0:
        return gates.new_empty(0, weight.shape[1]), hidden, cell
    return steps_op()(
        gates.contiguous(),
        _in_pieces(weight),
        bias.contiguous(),
        hidden.contiguous(),
        cell.contiguous(),
        batch_sizes,
        kind,
        is_reversed,
    )


def _is_served(x: Tensor, weights: Sequence[Tensor], drops: bool) -> bool:
    """Whether the kernel is for these: others are composed step by step."""
    return not drops and all(t.dtype is torch.float32 for t in (x, *weights))


def _in_pieces(weight: Tensor) -> Tensor:
    """The hidden state's weights (G, H) as the kernel reads them. It is computed once, where the
    weights are the model's own."""
    size = weight.shape[1]
    gates = weight.view(-1, size, size)
    gates = torch.nn.functional.pad(gates, (0, 0, 0, -size % UNITS))
    pieces = gates.view(len(gates), -1, UNITS, size)
    return pieces.permute(1, 3, 0, 2).contiguous()


RECURRENT: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: functools.partial(padded_layers, LSTM),
    aten.gru.input: functools.partial(padded_layers, GRU),
    aten.rnn_tanh.input: functools.partial(padded_layers, TANH),
    aten.rnn_relu.input: functools.partial(padded_layers, RELU),
}
