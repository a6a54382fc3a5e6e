"""Results that are views of an argument, as AOTAutograd wants them.

It makes such a result anew from the caller's tensor. Where a run-time number decides about the
view, it does so by the layout of what the graph gives. A plan gives a view of the argument's memory
where the trace says where that is. Any other is made here, by the ops that the trace has.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from torch_tenon.ir.index import Expr, Index, Symbol, evaluate
from torch_tenon.ops.lowerings.table import CannotLower


@dataclass(frozen=True)
class ArgumentView:
    """A view of the graph's argument of that number, by ops with their arguments but the first.
    Among these are expressions of run-time sizes."""

    argument: int
    ops: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]

    def of(self, arguments: list[Any], sizes: Mapping[Symbol, int]) -> Tensor:
        """The view, for the arguments and sizes of a run."""
        found = arguments[self.argument]
        for op, args, keywords in self.ops:
            found = op(found, *_with_sizes(args, sizes), **_with_sizes(keywords, sizes))
        assert isinstance(found, Tensor)
        return found


def argument_view(number: int, result: Node, index: Callable[[Any], Index]) -> ArgumentView:
    """The view that a result is of an argument, by the ops of the trace; `index` makes expressions
    of symbolic numbers. Raises CannotLower where it is no view of the argument, nor of what that
    becomes."""
    given = result.graph.find_nodes(op="placeholder")[number].meta["val"]
    base, ops = viewed(result)
    found = base.meta["val"]
    sizes, expected = (tuple(map(index, t.shape)) for t in (found, given))
    if sizes != expected or found.dtype is not given.dtype:
        raise CannotLower("a view of an argument that gets other sizes")

    def plain(x: Any) -> Any:
        value = x.meta.get("val") if isinstance(x, Node) else x
        if isinstance(value, Tensor | torch.SymFloat):
            raise CannotLower("a view of an argument by data")
        if isinstance(value, list | tuple):
            return [plain(y) for y in value]
        return index(value) if isinstance(value, torch.SymInt) else value

    steps = []
    for n in ops:
        assert callable(n.target)
        args, keywords = tuple(map(plain, n.args[1:])), {k: plain(x) for k, x in n.kwargs.items()}
        steps.append((n.target, args, keywords))
    return ArgumentView(number, tuple(steps))


def viewed(n: Node) -> tuple[Node, list[Node]]:
    """What a node is a view of, and the ops in between in their order."""
    ops: list[Node] = []
    while _is_view(n):
        ops.append(n)
        (n, *_) = n.args  # type: ignore[assignment]
    return n, ops[::-1]


def _is_view(n: Node) -> bool:
    if not n.args or not isinstance(n.args[0], Node):
        return False
    if n.target is operator.getitem:
        return _is_view(n.args[0])
    return isinstance(n.target, OpOverload) and n.target.is_view


def _with_sizes(x: Any, sizes: Mapping[Symbol, int]) -> Any:
    if isinstance(x, Expr):
        return evaluate(x, sizes)
    if isinstance(x, list | tuple):
        return type(x)(_with_sizes(y, sizes) for y in x)
    return {k: _with_sizes(y, sizes) for k, y in x.items()} if isinstance(x, dict) else x
