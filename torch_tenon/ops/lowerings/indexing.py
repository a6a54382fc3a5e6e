"""Reads at indices that are data (gather, embedding), advanced indexing, and parts replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, floordiv, less, nonnegative, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Stored, Value, reindex, reshape
from torch_tenon.ops import manifest
from torch_tenon.ops.lowerings.reductions import fitting_tensor
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_load,
    broadcast_sizes,
    cast,
    lowering,
    number,
    of_one_dtype,
)
from torch_tenon.ops.lowerings.views import diagonal_of, from_front, select, slice_bounds, wrap_dim


def some_of(count: Index) -> None:
    """Raises CannotLower for a dimension without elements: any index into it is an error."""
    if count == 0:
        raise CannotLower("an index into nothing")


@lowering("aten.embedding")
def embedding(b: Build, table: Value, at: Value, *args: Any, **keywords: Any) -> Value:
    """Rows of a table."""
    some_of(table.sizes[0])

    def body(p: Position) -> Scalar:
        row = ops.indirect(at.load(p[:-1]), table.sizes[0], "embedding")
        return table.load([row, p[-1]])

    return Lazy(b.out.sizes, table.dtype, body, (table, at), 2)


@lowering("aten.embedding_dense_backward")
def embedding_dense_backward(
    b: Build, g: Value, at: Value, rows: Index, padding: int, by_frequency: bool
) -> Value:
    """The gradient of a table: each row the sum of the gradients of its uses. An index of no row is
    left out, as by the CPU's kernel: what looked the rows up has raised the error."""
    if by_frequency:
        raise CannotLower("gradients scaled by frequency")
    wide, width, count = TABLE[g.dtype].compute, g.sizes[-1], at.numel()
    if g.numel() != count * width:
        raise CannotLower("gradients of more or fewer rows")
    flat_g, flat_at = reshape(g, (count, width)), reshape(at, (count,))
    target = filled(b, (rows, width), 0, wide)
    if rows == 0:
        return cast(target, g.dtype)

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        index = ops.to(flat_at.load([r[0]]), torch.int64)
        counts = ops.ge(index, 0) & ops.lt(index, ops.index(rows))
        row = ops.place(ops.where(counts, index, 0), rows)
        if padding >= 0:
            counts = counts & ops.ne(index, padding)
        value = ops.where(counts, ops.to(flat_g.load([r[0], p[0]]), wide), 0)
        return value, target.layout.index([row, p[0]])

    return cast(scatter_node(b, target, body, [width], [count], "sum"), g.dtype)


def filled(b: Build, sizes: Sequence[Index], value: Any, dtype: torch.dtype) -> Stored:
    """Fresh memory that holds one number everywhere."""
    return b.program.copy(Lazy(sizes, dtype, lambda p: number(value, dtype), (), 0))


def scatter_node(
    b: Build, target: Stored, body: Any, outer: Sequence[Index], inner: Sequence[Index], mode: str
) -> Stored:
    """A loop that stores or combines in place; the result is the target's new version."""
    if product([*outer, *inner]) == 0:
        return target
    fresh = b.program.version(target)
    b.program.loop("scatter", body, outer, inner, fresh.buffer, mode)
    return fresh


@lowering("aten.index.Tensor", "aten._unsafe_index")
def index(b: Build, x: Value, at: Sequence[Any]) -> Value:
    """Advanced indexing with integer tensors; None keeps a dimension."""
    plan = _IndexPlan(x, at)

    def body(p: Position) -> Scalar:
        return x.load(plan.position(p))

    return Lazy(plan.sizes, x.dtype, body, [x, *plan.tensors], 2)


class _IndexPlan:
    """Where the dimensions of an indexing result come from."""

    def __init__(self, x: Value, at: Sequence[Any]) -> None:
        at = [*at, *[None] * (len(x.sizes) - len(at))]
        if any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in at):
            raise CannotLower("a boolean index: the result's shape depends on data")
        if any(t is not None and t.dtype not in (torch.int32, torch.int64) for t in at):
            raise CannotLower("numbers that PyTorch's kernel does not take for indices")
        self.x, self.at = x, at
        self.tensors = [t for t in at if t is not None]
        self.shape = broadcast_sizes(*(t.sizes for t in self.tensors))
        where = [d for d, t in enumerate(at) if t is not None]
        adjacent = where == list(range(where[0], where[0] + len(where)))
        self.start = where[0] if adjacent else 0
        kept = [x.sizes[d] for d, t in enumerate(at) if t is None]
        self.sizes = (*kept[: self.start], *self.shape, *kept[self.start :])
        if product(self.shape) != 0:
            some_of(product(x.sizes[d] for d in where))

    def position(self, p: Position) -> list[Index]:
        """The position in x of element p of the result."""
        rank = len(self.shape)
        indices = p[self.start : self.start + rank]
        rest = iter([*p[: self.start], *p[self.start + rank :]])
        found: list[Index] = []
        for d, t in enumerate(self.at):
            if t is None:
                found.append(next(rest))
            else:
                value = broadcast_load(t, self.shape, indices)
                found.append(ops.indirect(value, self.x.sizes[d], "index", wrap=True))
        return found


def one_d(x: Value) -> Value:
    """`x` with a dimension at least: along which ops that index take a tensor without."""
    return x if x.sizes else reshape(x, (1,))


@lowering("aten.index_select")
def index_select(b: Build, x: Value, dim: int, at: Value) -> Value:
    """Some positions of a dimension."""
    x, shape = one_d(x), b.out.sizes
    d = wrap_dim(dim, len(x.sizes))
    some_of(x.sizes[d])
    if len(at.sizes) > 1 or at.dtype not in (torch.int32, torch.int64):
        raise CannotLower("an index of another rank or dtype")
    flat = reshape(at, (at.numel(),))
    check = "batch" if d == 1 else "embedding"  # the CPU has a kernel of its own for that dimension

    def body(p: Position) -> Scalar:
        i = ops.indirect(flat.load([p[d]]), x.sizes[d], check)
        return x.load([*p[:d], i, *p[d + 1 :]])

    return reshape(Lazy(shape or flat.sizes, x.dtype, body, (x, at), 2), shape)


@lowering("aten.take")
def take(b: Build, x: Value, at: Value) -> Value:
    """Elements by their numbers in row-major order."""
    count = x.numel()
    some_of(count)
    flat = reshape(x, (count,))

    def body(p: Position) -> Scalar:
        return flat.load([ops.indirect(at.load(p), count, "index", wrap=True)])

    return Lazy(at.sizes, x.dtype, body, (flat, at), 2)


@lowering("aten.gather")
def gather(b: Build, x: Value, dim: int, at: Value, **keywords: Any) -> Value:
    """x at the same position but for one dimension, where an index says."""
    shape = at.sizes
    x, at = one_d(x), one_d(at)
    d = wrap_dim(dim, len(x.sizes))
    some_of(x.sizes[d])
    # Of the op that is composed of this, where that has one.
    check = manifest.of(f"aten::{b.program.origin}").index_check or "gather"

    def body(p: Position) -> Scalar:
        i = ops.indirect(at.load(p), x.sizes[d], check)
        return x.load([*p[:d], i, *p[d + 1 :]])

    return reshape(Lazy(at.sizes, x.dtype, body, (x, at), 2), shape)


@lowering("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    b: Build,
    x: Value,
    at: Sequence[Any],
    values: Value,
    accumulate: bool = False,
    unsafe: bool = False,
) -> Value:
    """x with values stored or added at indices, `unsafe` ones too only where they are in range."""
    if x.dtype not in TABLE:
        raise CannotLower(f"no loops over {x.dtype}")
    of_one_dtype(x, values)
    if (
        len(at) == 1
        and at[0] is not None
        and at[0].dtype is torch.bool
        and not accumulate
        and product(values.sizes) == 1
    ):
        return _masked_put(x, at[0], values)
    plan = _IndexPlan(x, at)
    if not _is_broadcast(values.sizes, plan.sizes):
        raise CannotLower("values of other sizes than what is indexed")
    target = b.program.owned(x, (values, *plan.tensors))
    rank = len(plan.shape)
    kept = [*range(plan.start), *range(plan.start + rank, len(plan.sizes))]
    indexed = list(range(plan.start, plan.start + rank))

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        position: list[Index] = [0] * len(plan.sizes)
        for k, i in zip(kept, p, strict=True):
            position[k] = i
        for k, i in zip(indexed, r, strict=True):
            position[k] = i
        value = ops.to(broadcast_load(values, plan.sizes, position), x.dtype)
        return value, target.layout.index(plan.position(position))

    return scatter_node(
        b,
        target,
        body,
        [plan.sizes[k] for k in kept],
        [plan.sizes[k] for k in indexed],
        "sum" if accumulate else "store",
    )


def _is_broadcast(sizes: Sequence[Index], to: Sequence[Index]) -> bool:
    """Whether sizes are known to broadcast to others; more dimensions in front are of size 1."""
    extra = max(len(sizes) - len(to), 0)
    last = to[len(to) - (len(sizes) - extra) :]
    pairs = zip(sizes[extra:], last, strict=True)
    return all(n == 1 for n in sizes[:extra]) and all(n in (1, m) for n, m in pairs)


def _masked_put(x: Value, mask: Value, value: Value) -> Value:
    if mask.sizes != x.sizes[: len(mask.sizes)]:
        raise CannotLower("a mask of other sizes than what is indexed")
    fill = cast(value, x.dtype)

    def body(p: Position) -> Scalar:
        keep = mask.load(p[: len(mask.sizes)])
        return ops.where(keep, fill.load([0] * len(fill.sizes)), x.load(p))

    return Lazy(x.sizes, x.dtype, body, (x, mask, value))


@lowering("aten.masked_fill")
def masked_fill(b: Build, x: Value, mask: Value, value: Any) -> Value:
    """x with a number where the mask holds."""
    sizes, value = b.out.sizes, fitting_tensor(b, value, x.dtype)

    def body(p: Position) -> Scalar:
        fill = cast(value, x.dtype).load(()) if isinstance(value, Value) else value
        kept = broadcast_load(x, sizes, p)
        fill = fill if isinstance(fill, Scalar) else number(fill, x.dtype)
        return ops.where(broadcast_load(mask, sizes, p), fill, kept)

    inputs = [v for v in (x, mask, value) if isinstance(v, Value)]
    return Lazy(sizes, x.dtype, body, inputs)


def _replaced(b: Build, x: Value, part: Value, source: Value, body: Any) -> Value:
    """x with a part of it replaced: in its memory where that may be, else element by element."""
    if x.dtype not in TABLE:
        raise CannotLower(f"no loops over {x.dtype}")
    if source.sizes != part.sizes:
        raise CannotLower("a source of other sizes than what it replaces")
    if (
        isinstance(x, Stored)
        and isinstance(part, Stored)
        and b.program.takes(x)
        and not b.program.copies_first(part, source, x.numel())
    ):
        return Stored(b.program.write(part, source).buffer, x.layout)
    return Lazy(x.sizes, x.dtype, body, (x, source), 3)


@lowering("aten.select_scatter")
def select_scatter(b: Build, x: Value, source: Value, dim: int, at: Index) -> Value:
    """x with one position of a dimension replaced."""
    d = wrap_dim(dim, len(x.sizes))
    where = from_front(at, x.sizes[d])
    if not (nonnegative(where) and less(where, x.sizes[d])):
        raise CannotLower("a position that may be none of the dimension")
    source = cast(source, x.dtype)

    def body(p: Position) -> Scalar:
        here = ops.eq(ops.index(p[d]), ops.index(where))
        new = ops.masked(here, lambda: source.load([*p[:d], *p[d + 1 :]]), 0)
        return ops.where(here, new, x.load(p))

    return _replaced(b, x, select(b, x, dim, at), source, body)


@lowering("aten.slice_scatter")
def slice_scatter(
    b: Build,
    x: Value,
    source: Value,
    dim: int = 0,
    start: Any = None,
    end: Any = None,
    step: int = 1,
) -> Value:
    """x with a slice of a dimension replaced."""
    d = wrap_dim(dim, len(x.sizes))
    if len(source.sizes) != len(x.sizes):
        raise CannotLower("a source of another rank")
    first, last = slice_bounds(start, end, step, x.sizes[d], source.sizes[d])
    source = cast(source, x.dtype)

    def body(p: Position) -> Scalar:
        i = p[d]
        inside = ops.ge(ops.index(i), ops.index(first)) & ops.lt(ops.index(i), ops.index(last))
        if step != 1:
            inside = inside & ops.eq(ops.index((i - first) % step), 0)
        at = (i - first) // step if step != 1 else i - first
        new = ops.masked(inside, lambda: source.load([*p[:d], at, *p[d + 1 :]]), 0)
        return ops.where(inside, new, x.load(p))

    if nonnegative(last - x.sizes[d]):
        last = x.sizes[d]
    length = last - first
    if less(length, 0) or (source.sizes[d] == 0 and not nonnegative(length - 1)):
        length = 0
    sizes = (*x.sizes[:d], floordiv(length + step - 1, step), *x.sizes[d + 1 :])
    part = reindex(x, sizes, lambda p: [*p[:d], first + p[d] * step, *p[d + 1 :]])
    return _replaced(b, x, part, source, body)


@lowering("aten.diagonal_scatter")
def diagonal_scatter(
    b: Build, x: Value, source: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """x with a diagonal replaced."""
    rank = len(x.sizes)
    d1, d2 = wrap_dim(dim1, rank), wrap_dim(dim2, rank)
    if d1 == d2:
        raise CannotLower("one dimension as two")
    source = cast(source, x.dtype)
    others = [n for d, n in enumerate(x.sizes) if d not in (d1, d2)]
    length = _smaller(x.sizes[d1] + min(offset, 0), x.sizes[d2] - max(offset, 0))
    part = diagonal_of(x, (*others, length), offset, d1, d2)

    def body(p: Position) -> Scalar:
        i, j = p[d1] + min(offset, 0), p[d2] - max(offset, 0)
        here = ops.eq(ops.index(i), ops.index(j)) & ops.ge(ops.index(i), 0)
        rest = [q for k, q in enumerate(p) if k not in (d1, d2)]
        new = ops.masked(here, lambda: source.load([*rest, i]), 0)
        return ops.where(here, new, x.load(p))

    return _replaced(b, x, part, source, body)


def _smaller(a: Index, b: Index) -> Index:
    """The smaller one of two lengths, of which those below 0 are 0. Raises CannotLower where that
    is not known."""
    for n, m in ((a, b), (b, a)):
        if nonnegative(m - n):
            if nonnegative(n):
                return n
            if less(n, 0):
                return 0
    raise CannotLower("the length of the diagonal depends on run-time sizes")
