"""Convolutions of an exported graph, made ready for images whose channels are dense in memory.

Weights are laid out anew as the driver of products reads them, and a batch norm after a convolution
becomes part of its weights. What lies between convolutions follows them (`Program.by_channel`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import Node

from torch_tenon.exporting.held import Graph, Held
from torch_tenon.exporting.laid_out import LaidOut, enter, in_panels

aten = torch.ops.aten
NORM = aten._native_batch_norm_legit_no_training.default
LARGEST_KERNEL = 64  # of depthwise weights, which are written out


@functools.cache
def _op() -> Any:
    """The op that such convolutions become, which has a lowering and no kernel."""
    library = torch.library.Library("tenon", "FRAGMENT")
    library.define(
        "convolve_by_channel(Tensor images, Tensor weights, Tensor? bias, int[] kernel, "
        "int[] stride, int[] padding, int[] dilation, bool depthwise) -> Tensor"
    )
    _op.library = library  # type: ignore[attr-defined]
    return torch.ops.tenon.convolve_by_channel.default


class _Convolution(NamedTuple):
    """The arguments of a convolution of images, whichever op it is."""

    images: Node
    weight: Node
    bias: Node | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def convolve_by_channel(graph: Graph, laid_out: LaidOut) -> None:
    """Replaces the convolutions of float32 images by weights that runs do not change."""
    held = {p.node: p for p in graph.placeholders if isinstance(p, Held) and not p.is_written}
    for node in list(graph.module.graph.nodes):
        found = _convolution(node)
        if found is not None and _is_served(found, held):
            _replace(graph, node, found, held, laid_out)
    graph.drop_dead()


def _convolution(node: Node) -> _Convolution | None:
    """What the node convolves; None where it is another op, or one with uneven padding."""
    if node.target is aten.convolution.default:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        if transposed:
            return None
    elif node.target in (aten.conv2d.default, aten.conv2d.padding):
        given: list[Any] = list(node.args)
        is_named = node.target is aten.conv2d.padding
        defaults: list[Any] = [None, [1], "valid" if is_named else [0], [1], 1]
        given += defaults[len(given) - 2 :]
        x, weight, bias, stride, padding, dilation, groups = given
    else:
        return None
    kernel = cast(Node, weight).meta["val"].shape[2:]
    apart = _pair(dilation)
    if padding == "same":
        around = [d * (n - 1) for d, n in zip(apart, kernel, strict=True)]
        if any(n % 2 for n in around):
            return None
        padding = [n // 2 for n in around]
    before = [0, 0] if padding == "valid" else _pair(padding)
    return _Convolution(
        cast(Node, x),
        cast(Node, weight),
        cast("Node | None", bias),
        _pair(stride),
        before,
        apart,
        cast(int, groups),
    )


def _pair(numbers: Any) -> list[int]:
    many = [numbers] if isinstance(numbers, int) else list(numbers)
    return many * 2 if len(many) == 1 else many


def _is_served(c: _Convolution, held: dict[Node, Held]) -> bool:
    images, found = c.images.meta["val"], held.get(c.weight)
    if found is None or not found.has_value or (c.bias is not None and c.bias not in held):
        return False
    w = found.tensor
    if w.dtype is not torch.float32 or w.dim() != 4 or images.dim() != 4:
        return False
    if c.groups == 1:
        return w.numel() > 0
    return c.groups == len(w) == images.shape[1] and 0 < w[0].numel() <= LARGEST_KERNEL


def _replace(
    graph: Graph,
    node: Node,
    c: _Convolution,
    held: dict[Node, Held],
    laid_out: LaidOut,
) -> None:
    of = held[c.weight]
    w = of.tensor.detach().cpu().double()
    shift = None if c.bias is None else held[c.bias].tensor.detach().cpu().double()
    last, norm = _norm_of(node, held)
    if norm is not None:
        scale, before = norm
        w = w * scale.reshape(-1, 1, 1, 1)
        shift = before if shift is None else before + shift * scale
    w = w.float()
    depthwise = c.groups != 1
    by_place = w.permute(2, 3, 1, 0)
    made = by_place[:, :, 0].contiguous() if depthwise else in_panels(by_place.reshape(-1, len(w)))
    weights = enter(graph, of, "by_channel", laid_out.equal(made))
    bias = None
    if shift is not None:
        bias = enter(graph, of, "shift", laid_out.equal(shift.float()))
    with graph.module.graph.inserting_before(last):
        how = ([*w.shape[2:]], c.stride, c.padding, c.dilation, depthwise)
        new = graph.module.graph.call_function(_op(), (c.images, weights, bias, *how))
    new.meta = dict(node.meta)
    last.replace_all_uses_with(new)


def _norm_of(node: Node, held: dict[Node, Held]) -> tuple[Node, tuple[Tensor, Tensor] | None]:
    """The last of the nodes that a convolution and the batch norm after it are, with the factors
    and the shift of that; the convolution itself where nothing is folded."""
    if len(node.users) != 1:
        return node, None
    (norm,) = node.users
    if norm.target is not NORM or norm.args[0] is not node:
        return node, None
    if any(n is not None and n not in held for n in norm.args[1:5]):
        return node, None
    found = [u for u in norm.users if u.target is operator.getitem and u.args[1] == 0]
    if len(found) != 1 or any(u.users for u in norm.users if u is not found[0]):
        return node, None
    weight, bias, mean, variance = (
        None if n is None else held[cast(Node, n)].tensor.detach().cpu().double()
        for n in norm.args[1:5]
    )
    assert mean is not None and variance is not None
    scale = (variance + cast(float, norm.args[6])).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale
    return found[0], (scale, shift if bias is None else shift + bias)
