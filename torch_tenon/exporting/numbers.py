"""Numbers that a model takes out of its tensors, put back into tensors.

A program has no other numbers that are known only in a run.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

aten = torch.ops.aten
ITEMS = (aten.item.default, aten._local_scalar_dense.default)
_OPS: dict[Any, Any] = {
    operator.eq: aten.eq.Tensor,
    operator.ne: aten.ne.Tensor,
    operator.lt: aten.lt.Tensor,
    operator.le: aten.le.Tensor,
    operator.gt: aten.gt.Tensor,
    operator.ge: aten.ge.Tensor,
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.neg: aten.neg.default,
    operator.mod: aten.remainder.Tensor,
    operator.floordiv: aten.floor_divide.default,
    operator.and_: aten.bitwise_and.Tensor,
    operator.or_: aten.bitwise_or.Tensor,
    operator.not_: aten.logical_not.default,
    torch.sym_not: aten.logical_not.default,
}
"""What computes with numbers, and the op that does the same with tensors of int64 or float64."""


class NoTensor(Exception):
    """A number that no tensor has; the message says why."""


def in_tensor(number: Node) -> Node:
    """The tensor without dimensions that has a number of the graph. Its nodes are entered where the
    graph is written at. Raises NoTensor."""
    value = number.meta["val"]
    if number.target in ITEMS:
        return _item(number.args[0])  # type: ignore[arg-type]
    if isinstance(value, int | float | bool) or not free_unbacked_symbols(value):
        return _of_sizes(number, number, value)
    op = _OPS.get(number.target)
    if op is None:
        raise NoTensor(f"{number.target} has no such form")
    operands = [_operand(x, number) for x in number.args]
    return _call(number, op, *operands)


def _operand(x: Any, user: Node) -> Node:
    return in_tensor(x) if isinstance(x, Node) else _of_sizes(user, x, x)


def _item(x: Node) -> Node:
    held = x.meta["val"]
    if held.dtype.is_complex or held.dtype is torch.uint64:
        raise NoTensor(f"it is one of {held.dtype}")
    found = x if held.dim() == 0 else _call(x, aten.view.default, x, [])
    if held.dtype is torch.bool:
        return found
    wide = torch.float64 if held.dtype.is_floating_point else torch.int64
    return found if held.dtype is wide else _call(x, aten._to_copy.default, found, dtype=wide)


def _of_sizes(near: Node, x: Any, value: Any) -> Node:
    """A number that is known before a run: a constant, or one of sizes."""
    if isinstance(value, bool | torch.SymBool):
        raise NoTensor("a condition on sizes is part of it")
    dtype = torch.int64 if isinstance(value, int | torch.SymInt) else torch.float64
    return _call(near, aten.scalar_tensor.default, x, dtype=dtype)


def _call(near: Node, op: Any, *args: Any, **keywords: Any) -> Node:
    found = near.graph.call_function(op, args, keywords)
    given = [n.meta.get("val") for n in near.graph.find_nodes(op="placeholder")]
    like = next(x for x in given if isinstance(x, FakeTensor))
    if op is aten.scalar_tensor.default:
        found.kwargs = keywords = keywords | {"device": like.device}
    with like.fake_mode:
        values = (x.meta["val"] if isinstance(x, Node) else x for x in args)
        found.meta["val"] = op(*values, **keywords)
    return found
