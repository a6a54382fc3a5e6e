"""Sequences of several lengths while a model is traced: packed, and padded again; and of a length
that each run chooses.

PyTorch's own trace knows no values, and so not how many rows a packed sequence has. Lengths that a
model computes of numbers alone have values here, and the layers get rows of fixed sizes. It writes
recurrent layers out step by step, so of a length that runs choose it would fix the one it sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decompositions as composed
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import PythonKeyTracer, get_proxy_mode, get_proxy_slot
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from torch_tenon.exporting.errors import ExportError
from torch_tenon.exporting.recurrent import GRU, LSTM, RELU, TANH, packed_layers, padded_layers

_OPS = torch._C._VariableFunctions
_LAYERS = {
    _OPS.lstm: (LSTM, composed.lstm_data_impl),
    _OPS.gru: (GRU, composed.gru_impl_data),
    _OPS.rnn_tanh: (TANH, composed.rnn_tanh_data),
    _OPS.rnn_relu: (RELU, composed.rnn_relu_data),
}
_PADDED = 9  # arguments of a layer: the last one says whether batches come first


class PackedSequences(TorchFunctionMode):
    """While it is entered, a trace knows the lengths of packed sequences. `by_hand`: the target has
    a kernel that goes from step to step."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.batch_sizes: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Takes the ops of packed sequences; others are PyTorch's."""
        if torch.compiler.is_dynamo_compiling():  # the parts of torch.cond, and of a loop
            return func(*args, **(kwargs or {}))
        if func is _OPS._pack_padded_sequence:
            return self._pack(*args)
        if func is _OPS._pad_packed_sequence:
            return self._pad(*args)
        known = self.batch_sizes.get(args[1]) if len(args) > 1 and _is_tensor(args[1]) else None
        if func in _LAYERS and known is not None:
            return self._run(func, known, *args)
        if func in _LAYERS and self.by_hand and not kwargs and _has_any_length(args):
            found = padded_layers(_LAYERS[func][0], *args)
            if found is not NotImplemented:
                return found
        if func is Tensor.__getitem__ and _is_tensor(args[0]) and isinstance(args[1], int):
            sizes = self.batch_sizes.get(args[0])
            if sizes is not None:
                return sizes[args[1]]
        return func(*args, **(kwargs or {}))

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        ends = _value(lengths)
        x = x.transpose(0, 1) if batch_first else x
        if list(ends) != sorted(ends, reverse=True) or not ends or ends[-1] < 1:
            raise ExportError(f"lengths {ends} of a packed sequence: they fall, and are at least 1")
        if len(ends) != x.shape[1] or ends[0] > x.shape[0]:
            raise ExportError(f"lengths {ends} of a packed sequence of the sizes {tuple(x.shape)}")
        sizes = [sum(end > t for end in ends) for t in range(ends[0])]
        rows = [t * len(ends) + n for t, size in enumerate(sizes) for n in range(size)]
        data = x.flatten(0, 1).index_select(0, torch.tensor(rows, device=x.device))
        batch_sizes = torch.tensor(sizes)
        self.batch_sizes[batch_sizes] = sizes
        return data, batch_sizes

    def _pad(
        self, data: Tensor, batch_sizes: Tensor, batch_first: bool, value: float, least: int
    ) -> tuple[Tensor, Tensor]:
        sizes = self.batch_sizes.get(batch_sizes) or _value(batch_sizes)
        steps, batch, count = max(least, len(sizes)), sizes[0], sum(sizes)
        rows = [count] * (steps * batch)  # a row of padding, behind the others
        row = 0
        for t, size in enumerate(sizes):
            rows[t * batch : t * batch + size] = range(row, row + size)
            row += size
        filled = torch.cat([data, data.new_full((1, *data.shape[1:]), value)])
        found = filled.index_select(0, torch.tensor(rows, device=data.device))
        found = found.unflatten(0, (steps, batch))
        lengths = torch.tensor([sum(size > n for size in sizes) for n in range(batch)])
        return found.transpose(0, 1) if batch_first else found, lengths

    def _run(
        self,
        func: Callable[..., Any],
        sizes: list[int],
        data: Tensor,
        batch_sizes: Tensor,
        *how: Any,
    ) -> Any:
        kind, step_by_step = _LAYERS[func]
        if self.by_hand:
            found = packed_layers(kind, data, batch_sizes, *how)
            if found is not NotImplemented:
                return found
        return step_by_step(data, sizes, *how)


def _has_any_length(args: tuple[Any, ...]) -> bool:
    """Whether a layer's arguments are a padded sequence with a length that runs choose."""
    x, is_batch_first = args[0], args[-1]
    padded = len(args) == _PADDED and isinstance(is_batch_first, bool) and x.dim() == 3
    return padded and isinstance(x.shape[int(is_batch_first)], torch.SymInt)


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _value(x: Tensor) -> list[int]:
    """What a trace's tensor holds, where it is computed of numbers. Raises ExportError."""
    mode = get_proxy_mode()
    assert mode is not None and isinstance(mode.tracer, PythonKeyTracer)
    found = _computed(get_proxy_slot(x, mode.tracer).proxy.node, mode.tracer.root)
    if found is None:
        raise ExportError(
            "the lengths of a packed sequence come from the model's inputs or state, which a "
            "trace does not know: let the model make them of numbers, or pad the sequences and "
            "mask what is behind them"
        )
    return [int(k) for k in found.tolist()]


def _computed(node: Node, root: torch.nn.Module) -> Tensor | None:
    """The value of a node of a trace's graph, of which `root` has the constants; None where it
    depends on anything else."""
    needed = _needed(node)
    if any(n.op not in ("call_function", "get_attr") or _is_random(n) for n in needed):
        return None
    if any(_writes(n) and not needed.isdisjoint(_needed(n)) for n in node.graph.nodes):
        return None  # as a view may have changed it
    values: dict[Node, Any] = {}
    with _disable_current_modes():
        for n in node.graph.nodes:
            if n not in needed:
                continue
            if n.op == "get_attr":
                values[n] = getattr(root, n.target)
            else:
                args, kwargs = torch.fx.map_arg((n.args, n.kwargs), values.__getitem__)
                values[n] = n.target(*args, **kwargs)
    found: Tensor = values[node]
    return found


def _needed(last: Node) -> set[Node]:
    """It, and what it is computed of."""
    found: set[Node] = set()
    left = [last]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable and not _is_detached(node)


def _is_detached(node: Node) -> bool:
    return node.target is torch.ops.aten.detach_.default  # writes no values
