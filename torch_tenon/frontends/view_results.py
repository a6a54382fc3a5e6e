"""Results that are views, made by the ops that the trace has.

AOTAutograd makes a view of an argument, or of another result, anew from that tensor. Where a
run-time number decides about the view, it does so by the layout of what the graph gives. A plan
gives a view where the trace says where that lies. It has none that are conjugated or negated
lazily, nor some of other dtypes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_tenon.frontends.nodes import memory_of
from torch_tenon.ir.index import Expr, Index, Symbol, evaluate
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.ops.variants import known_of


@dataclass(frozen=True)
class View:
    """A view of the graph's argument of that number, or of the program's output, by ops with their
    arguments but the first. Among these are expressions of run-time sizes."""

    number: int
    is_of_argument: bool
    ops: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]

    def made(
        self, arguments: Sequence[Any], outputs: Sequence[Any], sizes: Mapping[Symbol, int]
    ) -> Tensor:
        """The view, in a run."""
        found = (arguments if self.is_of_argument else outputs)[self.number]
        for op, args, keywords in self.ops:
            found = op(found, *_with_sizes(args, sizes), **_with_sizes(keywords, sizes))
        assert isinstance(found, Tensor)
        return found


def view_of_argument(number: int, result: Node, index: Callable[[Any], Index]) -> View | None:
    """The view that a result is of an argument; `index` makes expressions of symbolic numbers. None
    where the ops do not tell."""
    given = result.graph.find_nodes(op="placeholder")[number].meta["val"]
    base, ops = viewed(result, written=True)
    found = base.meta["val"]
    sizes, expected = (tuple(map(index, t.shape)) for t in (found, given))
    if sizes != expected or found.dtype is not given.dtype:
        return None
    return View(number, True, _steps(ops, index))


def view_of_output(number: int, ops: Sequence[Node], index: Callable[[Any], Index]) -> View:
    """The view that these ops make of an output."""
    return View(number, False, _steps(ops, index))


def _steps(ops: Sequence[Node], index: Callable[[Any], Index]) -> Any:
    def plain(x: Any) -> Any:
        value = x.meta.get("val") if isinstance(x, Node) else x
        if isinstance(value, Tensor | torch.SymFloat):
            raise CannotLower("a view by data")
        if isinstance(value, list | tuple):
            return [plain(y) for y in value]
        return index(value) if isinstance(value, torch.SymInt) else value

    keywords = [{k: plain(x) for k, x in n.kwargs.items()} for n in ops]
    args = [tuple(map(plain, n.args[1:])) for n in ops]
    return tuple(zip((n.target for n in ops), args, keywords, strict=True))


def viewed(n: Node, written: bool = False) -> tuple[Node, list[Node]]:
    """What a node is a view of, and the ops in between in their order. With `written`, what an op
    makes of a tensor by writing a part of it lies where that tensor does."""
    ops: list[Node] = []
    while True:
        if _is_view(n):
            ops.append(n)
        elif not (written and known_of(n.target).partial):
            return n, ops[::-1]
        (n, *_) = n.args  # type: ignore[assignment]


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


def memory_of_results(nodes: Sequence[Node]) -> dict[int | None, Node]:
    """Nodes that get memory as results are views of them, by that memory. Several results share it,
    as in eager code. A view of all elements lies where they do: a loop of its own, in the view's
    shape, would compute them again beside the one that others read."""
    (output,) = (n for n in nodes if n.op == "output")
    results = dict.fromkeys(n for n in output.args[0] if isinstance(n, Node))  # type: ignore[union-attr]
    seen: dict[int | None, list[Node]] = {}
    for n in results:
        seen.setdefault(memory_of(n), []).append(n)
    makers: dict[int | None, Node] = {}
    for n in nodes:
        if n.op == "call_function":
            makers.setdefault(memory_of(n), n)
    given = {memory_of(n) for n in nodes if n.op != "call_function"}
    return {
        m: n
        for m, n in makers.items()
        if m not in given | {None} and m in seen and (len(seen[m]) > 1 or _has_all(seen[m][0], n))
    }


def _has_all(view: Node, maker: Node) -> bool:
    """Whether a view, and no other node, has as many elements as what it is a view of."""
    if view is maker:
        return False
    return statically_known_true(view.meta["val"].numel() == maker.meta["val"].numel())
