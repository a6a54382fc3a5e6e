"""What recurrent layers, their cells and cells' gradients have to satisfy, as `constraints.py`."""

from __future__ import annotations

from typing import Any

from torch_tenon.testing.space import domains
from torch_tenon.testing.space.constraints import UNCHECKED, names_of, rule
from torch_tenon.testing.space.drawing import Drawing, Shape, Size
from torch_tenon.testing.space.loss_constraints import fractions

# Gates of a cell, by how the op's name begins.
_GATES = {"gru": 3, "lstm": 4, "rnn": 1}


def _gates(d: Drawing) -> int:
    return _GATES[d.name.split("_")[0]]


def _tensor(d: Drawing, shape: Shape) -> Any:
    """Numbers that products leave in range: beyond it a library's order of sums makes infinity or
    NaN. A call that need not be right has a size more, now and then."""
    if shape and not d.right and d.chance(12):
        k = d.whole(0, len(shape) - 1)
        shape = [*shape[:k], shape[k].with_(lambda n: n + 1), *shape[k + 1 :]]
    usual = domains.ordinary_of(d.dtype)
    return d.tensor(shape, None, d.some(domains.is_moderate) if d.chance(4) else usual)


def outs(d: Drawing, dtype: str | None = None) -> None:
    """Results of the dtype that they have; now and then any."""
    for a in d.schema.arguments:
        if a.is_out and (d.right or not d.chance(4)):
            d.given[a.name] = d.tensor(d.one(([Size.of(0)], d.shape)), dtype, expanded=[])


@rule("rnn_tanh rnn_relu gru lstm", 2, 3)
def _layers(d: Drawing) -> None:
    """Parameters of each layer and direction in order: weights of the input, of the state, their
    biases, a projection."""
    fractions(d)
    steps, batch, width, n = d.size(7), d.size(5), d.size(9), d.size(9)
    gates = n.with_(lambda k: _gates(d) * k)
    layers, directions = d.whole(1, 3), d.whole(1, 2)
    biased, first = d.given["has_biases"], d.given["batch_first"] = d.chance(2), d.chance(2)
    d.given |= {"num_layers": layers, "bidirectional": directions == 2}
    d.given["train"] = train = d.chance(2)
    # Where numbers are dropped at random, which ones is the generator's.
    d.given["dropout"] = d.one((0.0, 1.0) if train else (0.0, 0.5, 1.0))
    projected = d.size(5) if d.name == "lstm" and d.chance(4) else None
    state = projected or n
    if "batch_sizes" in names_of(d):
        # How many sequences have each step: no later one has more.
        counts = sorted((d.whole(1, 4) for _ in range(d.whole(1, 5))), reverse=True)
        batch, d.shape = Size((counts[0],) * 3), [Size((sum(counts),) * 3), width]
        d.given["data"] = _tensor(d, d.shape)
        count = Size((len(counts),) * 3)
        d.given["batch_sizes"] = d.tensor([count], "int64", counts, times=1, expanded=[], host=True)
    else:
        d.shape = [batch, steps, width] if first else [steps, batch, width]
        d.given["input"] = _tensor(d, d.shape)
    rows = Size((layers * directions,) * 3)
    if d.name == "lstm":
        d.given["hx"] = [_tensor(d, [rows, batch, state]), _tensor(d, [rows, batch, n])]
    else:
        d.given["hx"] = _tensor(d, [rows, batch, n])
    params = d.given["params"] = []
    for layer in range(layers):
        below = state.with_(lambda k: k * directions) if layer else width
        for _ in range(directions):
            params += [_tensor(d, [gates, below]), _tensor(d, [gates, state])]
            params += [_tensor(d, [gates]) for _ in range(2 if biased else 0)]
            params += [_tensor(d, [projected, n])] if projected else []
    if not d.right and d.chance(8):
        params.pop()


# Of packed sequences the kernel believes their lengths.
UNCHECKED.update(("rnn_tanh", "rnn_relu", "gru", "lstm"))


@rule("rnn_tanh_cell rnn_relu_cell gru_cell lstm_cell", 2, 2)
def _cell(d: Drawing) -> None:
    fractions(d)
    batch, width, n = d.size(5), d.size(9), d.size(9)
    gates = n.with_(lambda k: _gates(d) * k)
    d.shape = [batch, width]
    d.given["input"] = _tensor(d, d.shape)
    states = [_tensor(d, [batch, n]) for _ in range(2 if d.name == "lstm_cell" else 1)]
    d.given["hx"] = states if d.name == "lstm_cell" else states[0]
    d.given |= {"w_ih": _tensor(d, [gates, width]), "w_hh": _tensor(d, [gates, n])}
    biased = d.chance(2)
    for name in ("b_ih", "b_hh"):
        d.given[name] = _tensor(d, [gates]) if biased else None


@rule("_thnn_fused_gru_cell_backward _thnn_fused_lstm_cell_backward_impl", 2, 2)
def _cell_backward(d: Drawing) -> None:
    """The workspace is of numbers that the forward left: for a GRU five of each, for an LSTM the
    four gates."""
    fractions(d)
    batch, n = d.size(5), d.size(9)
    d.shape = [batch, n]
    lstm = d.name == "_thnn_fused_lstm_cell_backward_impl"
    for name in ("grad_hy", "grad_cy") if lstm else ("grad_hy",):
        d.given[name] = None if lstm and d.chance(6) else d.tensor(d.shape)
    if lstm:
        d.given["cx"], d.given["cy"] = d.tensor(d.shape), d.tensor(d.shape)
    d.given["workspace"] = d.tensor([batch, n.with_(lambda k: (4 if lstm else 5) * k)])
    d.given["has_bias"] = d.chance(2) or d.op.endswith(".out")
    outs(d)


UNCHECKED.update(("_thnn_fused_gru_cell_backward", "_thnn_fused_lstm_cell_backward_impl"))
