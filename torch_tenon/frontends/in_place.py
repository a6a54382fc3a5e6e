"""Ops that write arguments, in graphs.

A trace has such an op as `auto_functionalized_v2(op, **arguments)`: called on copies of the tensors
that it writes, the bases, of which its arguments may be views. The node gives the op's results and
then the copies as they are after it.

PyTorch's traces have no place for writes through views whose elements share memory. Functionalized,
each element of such a view has a value of its own, and what is put back into the base is what a few
of them have: the rest is lost. Of windows with gaps between them, what lies in the gaps is lost.
Nor have they a place for ops on lists that write what they read later in the list: functionalized,
all of it is read first. And PyTorch's kernels refuse to scatter to what they read, as index or as
source. `writes_shared_elements` finds these before anything is traced. An op with an `out=` that
also writes another argument has its results mixed up by a trace, or crashes it:
`writes_beside_out` finds it.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.compiler.parts import is_dense, may_overlap
from torch_tenon.ir.values import Layout
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.ops.variants import is_written

FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2


@dataclass
class WritingCall:
    """The op, its other arguments by name, the bases, and what is said of each written argument:
    a view of one of them, a list of such views, or None."""

    op: OpOverload
    arguments: dict[str, Any]
    bases: list[Node]
    written: dict[str, Any]


def writing_call(n: Node) -> WritingCall:
    """What a node of that kind says. Raises CannotLower for what is no op of the dispatcher's."""
    from torch._higher_order_ops import auto_functionalize

    (op,) = n.args
    if not isinstance(op, OpOverload):
        raise CannotLower(f"{op} writes its arguments inside a compiled graph")
    given = dict(n.kwargs)
    bases: Any = given.pop("_all_bases")
    changed = [a for a in op._schema.arguments if is_written(a)]
    types: Any = [a.type for a in changed]
    written = auto_functionalize.read_view_information_from_args(
        [a.name for a in changed], types, given, bases
    )
    return WritingCall(op, given, list(bases), written)


def changed_base(n: Any) -> Node | None:
    """The base that a node is as the op has left it, of an op that reads it in no other way; None
    for another node."""
    if not isinstance(n, Node) or n.target is not operator.getitem:
        return None
    call, number = n.args
    if not isinstance(call, Node) or call.target is not FUNCTIONALIZED:
        return None
    bases: Any = call.kwargs["_all_bases"]
    first = len(call.meta["val"]) - len(bases)
    base = bases[number - first] if number >= first else None  # type: ignore[operator]
    others = [x for name, x in call.kwargs.items() if name != "_all_bases"]
    return base if isinstance(base, Node) and base not in tree_leaves(others) else None


def writes_shared_elements(module: GraphModule) -> bool:
    """Whether a graph of Dynamo's writes memory of which a tensor has several elements at one
    place: one that is expanded, or unfolded with a step that is shorter than the window; or
    unfolded with a longer one. Also whether it writes a list of tensors of which one shares
    elements with what another is computed of, or elements that the same op reads at other places,
    or moves. Where that depends on sizes of any value, the graph is for those that give the same
    answer."""
    for graph in (m.graph for m in module.modules() if isinstance(m, GraphModule)):
        changed = {_storage(x) for n in graph.nodes for x in _written(n) if isinstance(x, Node)}
        shared: set[int | None] = set()
        for n in graph.nodes:
            written = {x for x in _written(n) if isinstance(x, Node)}
            if (
                _lists_meet(n, written)
                or _meets_what_it_reads(n, written)
                or _moves_what_it_writes(n, written)
                or any(_storage(x) in shared for x in written)
            ):
                return True
            candidates = [t for t in _tensors_of(n) if _memory(t) in changed - shared]
            gaps = _has_gaps(n, candidates)
            shared |= {_memory(t) for t in candidates if gaps or _has_shared_elements(t)}
    return False


def writes_beside_out(module: GraphModule) -> bool:
    """Whether a graph of Dynamo's has an op with an `out=` that also writes another argument."""
    graphs = (m.graph for m in module.modules() if isinstance(m, GraphModule))
    return any(_writes_beside_out(n) for graph in graphs for n in graph.nodes)


def _writes_beside_out(n: Node) -> bool:
    for op in _overloads_with_out(n):
        values = dict(zip((a.name for a in op._schema.arguments), n.args, strict=False)) | n.kwargs
        others = [a.name for a in op._schema.arguments if is_written(a) and not a.is_out]
        if any(isinstance(x, Node) for x in tree_leaves([values.get(name) for name in others])):
            return True
    return False


def out_arguments(n: Node) -> dict[str, Any]:
    """The `out=` arguments of a node of Dynamo's by name, in the order of the results. PyTorch's
    functions call it so, ops of the dispatcher's may have other names."""
    names = [a.name for op in _overloads_with_out(n) for a in op._schema.arguments if a.is_out]
    return {name: n.kwargs[name] for name in names or ["out"] if n.kwargs.get(name) is not None}


def _overloads_with_out(n: Node) -> list[OpOverload]:
    """The overloads that a node may call which have `out=` arguments, all of them given."""
    target = n.target
    found: list[OpOverload] = [target] if isinstance(target, OpOverload) else []
    if isinstance(target, OpOverloadPacket):
        found = [getattr(target, overload) for overload in target.overloads()]
    outs = [{a.name for a in op._schema.arguments if a.is_out} for op in found]
    return [op for op, out in zip(found, outs, strict=True) if out and out <= n.kwargs.keys()]


def _lists_meet(n: Node, written: set[Node]) -> bool:
    """Whether an op on lists, which goes through them in order, writes at one place in a list what
    it reads or writes at another."""
    given = (*n.args, *n.kwargs.values())
    lists = [x for x in given if isinstance(x, list | tuple)]
    if not any(isinstance(x, Node) and x in written for many in lists for x in many):
        return False
    used = [(place, x) for many in lists for place, x in enumerate(many)]
    used += [(-1, x) for x in given if isinstance(x, Node)]  # is read at each place
    changed = {_storage(x) for x in written}
    spans: dict[int | None, list[tuple[int, int, int]]] = {}  # by memory: first, end, place
    for place, x in used:
        for t in _tensors_of(x) if isinstance(x, Node) else ():
            if (memory := _memory(t)) in changed and (span := _span(t)) is not None:
                spans.setdefault(memory, []).append((*span, place))
    return any(_meet(found) for found in spans.values())


def _meets_what_it_reads(n: Node, written: set[Node]) -> bool:
    """Whether an op writes a part of memory and reads another that overlaps it. Where one of the
    two has gaps, PyTorch's kernels do not see it, and what they give is not defined."""
    changed = [(x, t) for x in written for t in _tensors_of(x)]
    given = n.args[1:] if n.target is operator.setitem else (n.args, n.kwargs)
    nodes = [x for x in tree_leaves(given) if changed and isinstance(x, Node)]
    read = [t for x in nodes for t in _tensors_of(x)]
    return any(
        _memory(t) == _memory(other) and _overlap_in_part(_part_written(n, x, t), _seen(other))
        for x, t in changed
        for other in read
    )


def _moves_what_it_writes(n: Node, written: set[Node]) -> bool:
    """Whether an op that is no matter of single elements writes the very elements that it reads as
    another argument, as `x.scatter_(0, index, x)` does."""
    out = out_arguments(n)
    if out:
        kwargs = {name: x for name, x in n.kwargs.items() if name not in out}
        changed, read = tree_leaves(out), tree_leaves((n.args, kwargs))
    else:
        changed, read = [*n.args[:1]], tree_leaves((n.args[1:], n.kwargs))
    changed = [t for x in changed if isinstance(x, Node) and x in written for t in _tensors_of(x)]
    if not changed or _is_pointwise(n):
        return False
    places = {(_memory(t), _seen(t)[:3]) for t in changed if 0 not in _seen(t).sizes}
    others = [t for x in read if isinstance(x, Node) for t in _tensors_of(x)]
    return any((_memory(t), _seen(t)[:3]) in places for t in others)


def _is_pointwise(n: Node) -> bool:
    """Whether each element of an op's result is of those at its place, as PyTorch's tags say."""
    if n.target in _OPERATORS:
        return n.target is not operator.setitem
    target = n.target
    if isinstance(target, OpOverload):
        target = target.overloadpacket
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    name = name.strip("_").removeprefix("foreach_")
    packet = getattr(torch.ops.aten, name, None)
    found = [] if packet is None else packet.overloads()
    return any(torch.Tag.pointwise in getattr(packet, overload).tags for overload in found)


class _Seen(NamedTuple):
    """How a tensor lies in its memory, with numbers that it has or may have."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int
    start: Any  # its offset and how many elements it has, as they are
    count: Any

    @property
    def is_dense(self) -> bool:
        """Whether it has elements, which lie side by side."""
        return 0 not in self.sizes and is_dense(Layout(self.sizes, self.strides))

    @property
    def span(self) -> tuple[Any, Any]:
        """The first byte of a dense one, and the one after the last."""
        return self.start * self.itemsize, (self.start + self.count) * self.itemsize


def _seen(t: torch.Tensor) -> _Seen:
    sizes, strides = (tuple(map(_example, numbers)) for numbers in (t.shape, t.stride()))
    offset = t.storage_offset()
    return _Seen(sizes, strides, _example(offset), t.itemsize, offset, t.numel())


def _part_written(n: Node, x: Node, t: torch.Tensor) -> _Seen:
    """What a node writes of a tensor: all of it, or what its subscript shows."""
    seen = _seen(t)
    if n.target is not operator.setitem or n.args[0] is not x or 0 in seen.sizes:
        return seen
    at = map_arg(n.args[1], lambda k: k.meta.get("example_value"))
    if not all(k is None or k is ... or isinstance(k, int | slice) for k in tree_leaves(at)):
        return seen  # which elements depends on data
    sizes, strides, offset, itemsize, *_ = seen
    span = offset + 1 + sum((n - 1) * k for n, k in zip(sizes, strides, strict=True))
    whole = torch.empty(span, device="meta").as_strided(sizes, strides, offset)
    return _seen(whole[tree_map(_subscript, at)])._replace(itemsize=itemsize)


def _subscript(k: Any) -> Any:
    if isinstance(k, slice):
        return slice(*map(_subscript, (k.start, k.stop, k.step)))
    return _example(k) if isinstance(k, torch.SymInt) else k


def _overlap_in_part(a: _Seen, b: _Seen) -> bool:
    """Whether two dense tensors of one memory overlap, and are not the same elements in the same
    order."""
    if not (a.is_dense and b.is_dense):
        return False
    (first, end), (other_first, other_end) = a.span, b.span
    if not (is_less(first, other_end) and is_less(other_first, end)):
        return False
    ends = (first, other_first), (end, other_end)
    return a.strides != b.strides or any(is_less(*x) or is_less(*x[::-1]) for x in ends)


def _meet(spans: list[tuple[int, int, int]]) -> bool:
    """Whether two spans of different places meet."""
    ends: dict[int, int] = {}  # of the two places that reach furthest
    for first, end, place in sorted(spans):
        if any(first < other for k, other in ends.items() if k != place):
            return True
        ends[place] = max(end, ends.get(place, 0))
        ends = dict(sorted(ends.items(), key=lambda item: item[1])[-2:])
    return False


def _span(t: torch.Tensor) -> tuple[int, int] | None:
    """The first byte of a tensor in its memory, and the one after the last."""
    sizes, strides = ([_example(n) for n in numbers] for numbers in (t.shape, t.stride()))
    if 0 in sizes:
        return None
    first = _example(t.storage_offset())
    last = first + sum((n - 1) * k for n, k in zip(sizes, strides, strict=True))
    return first * t.itemsize, (last + 1) * t.itemsize


def _written(n: Node) -> Iterator[Any]:
    """The arguments of a node of Dynamo's that it may write."""
    yield from tree_leaves(out_arguments(n))
    if n.op not in ("call_method", "call_function") or not n.args:
        return
    target = n.target
    if isinstance(target, OpOverloadPacket):
        target = getattr(target, target.overloads()[0])
    if isinstance(target, OpOverload):
        for a, x in zip(target._schema.arguments, n.args, strict=False):
            if is_written(a):
                yield from tree_leaves(x)
        names = [a.name for a in target._schema.arguments if is_written(a)]
        yield from tree_leaves([n.kwargs.get(name) for name in names])
        return
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    given = _arguments(n)
    if in_place and isinstance(n.args[0], list | tuple):
        yield from _written_lists(n, name)
    if in_place or name in _METHODS or target in _OPERATORS or given.get("inplace"):
        yield from tree_leaves(n.args[0])
    yield from (given.get(name) for name in _STATISTICS)


def _written_lists(n: Node, name: str) -> Iterator[Any]:
    """What PyTorch's op on lists of that name writes beside the first of them: steps of fused
    optimizers do."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is not None:
        schema = getattr(packet, packet.overloads()[0])._schema
        for a, x in zip(schema.arguments, n.args, strict=False):
            if is_written(a):
                yield from tree_leaves(x)


def _arguments(n: Node) -> dict[str, Any]:
    """What a function of Python's is called with, by the names of its parameters."""
    if not inspect.isfunction(n.target):
        return dict(n.kwargs)
    try:
        return inspect.signature(n.target).bind(*n.args, **n.kwargs).arguments
    except (TypeError, ValueError):
        return dict(n.kwargs)


# Python's assignments to a part, and its operators in place.
_IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul"
_OPERATORS = {operator.setitem, *(getattr(operator, name) for name in _IN_PLACE.split())}
_METHODS = {"__setitem__", *(f"__{name}__" for name in _IN_PLACE.split())}
# What norms that train write beside what they return.
_STATISTICS = ("running_mean", "running_var")


def _tensors_of(n: Node) -> list[torch.Tensor]:
    value = n.meta.get("example_value")
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _storage(x: Any) -> int | None:
    tensors = _tensors_of(x) if isinstance(x, Node) else []
    return _memory(tensors[0]) if tensors else None


def _memory(t: torch.Tensor) -> int | None:
    while is_functorch_wrapped_tensor(t):  # of a function that is transformed
        t = get_unwrapped(t)
    return t.untyped_storage()._cdata if t.layout is torch.strided else None


def _has_gaps(n: Node, found: list[torch.Tensor]) -> bool:
    """Whether a node unfolds a tensor and leaves some of it out. A trace puts windows that were
    written into zeros, not into what was there."""
    if n.target not in ("unfold", torch.Tensor.unfold, torch.ops.aten.unfold.default):
        return False
    bases = [t for x in n.args[:1] if isinstance(x, Node) for t in _tensors_of(x)]
    return any(is_less(t.numel(), base.numel()) for t in found for base in bases)


def _has_shared_elements(t: torch.Tensor) -> bool:
    if t.layout is not torch.strided:
        return False
    if all(isinstance(n, int) for n in (*t.shape, *t.stride())):
        return may_overlap(Layout(tuple(t.shape), t.stride()))
    dims = sorted(zip(t.stride(), t.shape, strict=True), key=lambda dim: tuple(map(_example, dim)))
    extent: Any = 1  # of the dimensions inside
    for stride, size in dims:
        if _example(size) == 0:
            return False
        if _example(size) > 1 and is_less(stride, extent):
            return True
        extent = extent + stride * (size - 1)
    return False


def is_less(a: Any, b: Any) -> bool:
    """Whether a number is less than another. If they are sizes, the graph gets a guard of that."""
    if is_known(a) and is_known(b):
        return bool(a < b)
    return _example(a) < _example(b)


def is_known(n: int | torch.SymInt) -> bool:
    """Whether a size is a number, or one of any value that has one now."""
    return isinstance(n, int) or bool(n.node.has_hint())


def _example(n: int | torch.SymInt) -> int:
    """A size, or one of those that it may have."""
    return n if isinstance(n, int) else int(n.node.hint if is_known(n) else 2)


def lists_in(x: Any) -> list[bool]:
    """Which results of an op are lists of tensors."""
    return [isinstance(y, list | tuple) for y in x] if isinstance(x, list | tuple) else []
