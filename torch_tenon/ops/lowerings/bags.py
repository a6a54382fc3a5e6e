"""Sums over runs of rows: embedding bags and segments; and distances between all rows."""

from __future__ import annotations

import math
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Stored, Value, neutral, steps_read
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.indexing import filled, scatter_node, some_of
from torch_tenon.ops.lowerings.reductions import check_all, scan, shared
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_load,
    cast,
    lowering,
    of_one_dtype,
)
from torch_tenon.ops.lowerings.views import narrow

SUM, MEAN, MAX = 0, 1, 2
_FAST = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes that the host has fast kernels of bags for."""


def _bag_of(b: Build, starts: Value, rows: Index, bags: Index) -> Stored:
    """For each row, its bag: bags begin at `starts`, of which the first is 0."""
    marks = filled(b, (rows + 1,), 0, torch.int64)

    def mark(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        at = ops.indirect(starts.load([r[0] + 1]), rows + 1, "index")
        return ops.constant(1, torch.int64), marks.layout.index([at])

    done = scatter_node(b, marks, mark, [], [bags - 1], "sum")
    return b.program.realise(scan(b, done, 0, "sum", torch.int64))


def _check_ends(b: Build, starts: Value, rows: Index, ordered: bool) -> None:
    """Has the program raise, as PyTorch's kernel does, where the first bag does not begin at 0, or
    the last one behind all rows, or, of `ordered` ones, one before another that it follows."""
    first, last = (narrow(starts, 0, k, 1) for k in (0, starts.sizes[0] - 1))
    check_all(b, first, lambda i: ops.eq(i, 0), "offsets[0] has to be 0")
    within = lambda i: ops.le(ops.to(i, torch.int64), ops.index(rows))  # noqa: E731
    check_all(b, last, within, "offsets[-1] can not be greater than input's length")
    count = starts.sizes[0] - 1
    if ordered and count != 0:
        steps = Lazy(
            (count,),
            torch.int64,
            lambda p: ops.sub(*(ops.to(starts.load([i]), torch.int64) for i in (p[0] + 1, p[0]))),
            (starts,),
        )
        check_all(b, steps, lambda n: ops.ge(n, 0), "offsets have to grow")


@lowering("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(
    b: Build,
    table: Value,
    at: Value,
    starts: Value,
    scale_by_frequency: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    weights: Value | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> list[Value]:
    """Rows of a table summed, averaged or maximized over bags; also each row's bag, the bags' sizes
    and where the maxima stand. A sum needs neither: these are 0, as the host has them. Of an
    average the sizes are given twice."""
    bags, width, rows = b.out.sizes[0], b.out.sizes[1], at.numel()
    if bags == 0 and rows == 0 and starts.sizes[0] == 0:
        return [constant(m.sizes, 0, m.dtype) for m in b.results if m is not None]
    if bags == 0 or width == 0:
        raise CannotLower("no bag, or rows of nothing")
    if mode not in (SUM, MEAN, MAX):
        raise CannotLower("a mode that PyTorch's kernel refuses")
    of_one_dtype(table, weights)
    padding = padding + table.sizes[0] if padding < -1 else padding  # type: ignore[assignment]
    wide = TABLE[table.dtype].compute
    # The host's fast kernels ask more of their arguments than those for all others do.
    is_fast = mode != MAX and padding < 0 and table.dtype in _FAST
    is_fast = is_fast and _is_dense(table, 1) and (weights is None or _is_dense(weights, 0))
    _check_ends(b, starts, rows, is_fast)
    if rows == 0:
        return [constant(m.sizes, 0, m.dtype) for m in b.results if m is not None]
    bag_of = _bag_of(b, starts, rows, bags)
    ones = filled(b, (bags,), 0, torch.int64)

    def used(r: Index) -> Scalar:
        if padding < 0:
            return ops.constant(True, torch.bool)
        return ops.ne(ops.to(at.load([r]), torch.int64), padding)

    def bag(r: Index) -> Index:
        return ops.indirect(bag_of.load([r]), bags, "index")

    def one(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        return ops.to(used(r[0]), torch.int64), ones.layout.index([bag(r[0])])

    sizes = scatter_node(b, ones, one, [], [rows], "sum")
    element = _bag_element(table, at, weights, wide, "batch")
    start = neutral("max", wide) if mode == MAX else 0
    target = filled(b, (bags, width), start, wide)
    first = _first_rows(b, bags, rows, used, bag) if mode == MAX else None

    def add(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        is_used = used(r[0])
        if is_fast and include_last:  # what follows the last bag counts as one of it, and is 0
            is_used = is_used & ops.lt(ops.index(r[0]), ops.to(starts.load([bags]), torch.int64))
        value = element(r[0], p[0])
        if first is not None:  # no number is less than NaN, so that of the first row alone stays
            is_first = ops.eq(first.load([bag(r[0])]), ops.index(r[0]))
            is_used = is_used & (is_first | ~ops.isnan(value))
        return ops.where(is_used, value, start), target.layout.index([bag(r[0]), p[0]])

    total = scatter_node(b, target, add, [width], [rows], "max" if mode == MAX else "sum")

    def finish(p: Position) -> Scalar:
        count = sizes.load([p[0]])
        if mode == MEAN:
            return ops.div(total.load(p), ops.to(ops.maximum(count, 1), wide))
        return ops.where(ops.eq(count, 0), 0, total.load(p)) if mode == MAX else total.load(p)

    if mode == SUM:
        shown: list[Value] = [constant((bags,), 0, torch.int64)] * 2
    elif first is None:
        shown = [sizes, sizes]
    else:
        shown = [sizes, _places(b, total, first, used, bag, element, at)]
    results = [cast(Lazy(b.out.sizes, wide, finish, (total, sizes), 2), table.dtype)]
    for meta, value in zip(b.results[1:], (bag_of, *shown), strict=True):
        assert meta is not None
        results.append(_resized(value, meta.sizes, meta.dtype))
    return results


def _is_dense(x: Value, dim: int) -> bool:
    """Whether neighbours along a dimension are neighbours in memory; of what has none yet, whether
    the CPU's would be."""
    steps = x.layout.strides if isinstance(x, Stored) else steps_read(x)
    if steps is None:
        return True
    return steps[dim] == 1 or (x.sizes[dim] == 1 and steps[dim] == 0)  # a view has 0 for one


def _resized(x: Value, sizes: tuple[Index, ...], dtype: torch.dtype) -> Value:
    """The first elements of x: which results are kept whole is for the trace to say."""
    return cast(Lazy(sizes, x.dtype, lambda p: _within(x, p), (x,), 1), dtype)


def _within(x: Value, p: Position) -> Scalar:
    inside = ops.constant(True, torch.bool)
    for i, n in zip(p, x.sizes, strict=True):
        inside = inside & ops.lt(ops.index(i), ops.index(n))
    return ops.masked(inside, lambda: x.load(p), 0)


def _bag_element(
    table: Value, at: Value, weights: Value | None, wide: torch.dtype, check: str = "embedding"
) -> Any:
    some_of(table.sizes[0])

    def element(r: Index, k: Index) -> Scalar:
        row = ops.indirect(at.load([r]), table.sizes[0], check)
        value = ops.to(table.load([row, k]), wide)
        return value if weights is None else ops.mul(value, ops.to(weights.load([r]), wide))

    return element


def _first_rows(b: Build, bags: Index, rows: Index, used: Any, bag: Any) -> Stored:
    """For each bag the number of its first row that is used."""
    made = filled(b, (bags,), 2**62, torch.int64)

    def earliest(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        number = ops.where(used(r[0]), ops.index(r[0]), ops.constant(2**62, torch.int64))
        return number, made.layout.index([bag(r[0])])

    return scatter_node(b, made, earliest, [], [rows], "min")


def _places(
    b: Build, best: Stored, first: Stored, used: Any, bag: Any, element: Any, at: Value
) -> Value:
    """For each bag and column, the table's row that gave the greatest: the first such."""
    rows = at.numel()
    made = filled(b, best.sizes, 2**62, torch.int64)

    def earliest(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        home = bag(r[0])
        greatest = best.load([home, p[0]])
        is_first = ops.eq(first.load([home]), ops.index(r[0]))
        hit = ops.eq(element(r[0], p[0]), greatest) | (ops.isnan(greatest) & is_first)
        number = ops.where(used(r[0]) & hit, ops.index(r[0]), ops.constant(2**62, torch.int64))
        return number, made.layout.index([home, p[0]])

    where = scatter_node(b, made, earliest, [best.sizes[1]], [rows], "min")

    def row(p: Position) -> Scalar:
        found = ops.lt(where.load(p), ops.index(rows))
        i = ops.place(ops.where(found, where.load(p), 0), rows)
        return ops.where(found, ops.to(at.load([i]), torch.int64), 0)

    return Lazy(best.sizes, torch.int64, row, (where, at), 3)


@lowering("aten._embedding_bag_dense_backward")
def embedding_bag_backward(
    b: Build,
    g: Value,
    at: Value,
    bag_of: Value,
    sizes: Value,
    places: Value,
    rows: Index,
    scale_by_frequency: bool,
    mode: int,
    weights: Value | None,
    padding: int = -1,
) -> Value:
    """The gradient of the table."""
    if scale_by_frequency or g.numel() == 0 or at.numel() == 0:
        raise CannotLower("gradients scaled by frequency, or nothing")
    wide, width = TABLE[g.dtype].compute, g.sizes[1]
    target = filled(b, (rows, width), 0, wide)
    padding = padding + rows if padding < -1 else padding  # type: ignore[assignment]

    def add(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        index = at.load([r[0]])
        home = ops.indirect(bag_of.load([r[0]]), g.sizes[0], "index")
        value = ops.to(g.load([home, p[0]]), wide)
        if mode == MEAN:
            value = ops.div(value, ops.to(ops.maximum(sizes.load([home]), 1), wide))
        if weights is not None:
            value = ops.mul(value, ops.to(weights.load([r[0]]), wide))
        if padding >= 0:
            value = ops.where(ops.eq(ops.to(index, torch.int64), padding), 0, value)
        row = ops.indirect(index, rows, "embedding")
        return value, target.layout.index([row, p[0]])

    def add_greatest(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        row = ops.indirect(places.load([r[0], p[0]]), rows, "embedding")
        value = ops.where(ops.eq(sizes.load([r[0]]), 0), 0, ops.to(g.load([r[0], p[0]]), wide))
        return value, target.layout.index([row, p[0]])

    body, count = (add_greatest, g.sizes[0]) if mode == MAX else (add, at.numel())
    return cast(scatter_node(b, target, body, [width], [count], "sum"), g.dtype)


@lowering("aten._embedding_bag_per_sample_weights_backward")
def embedding_bag_weights_backward(
    b: Build,
    g: Value,
    table: Value,
    at: Value,
    starts: Value,
    bag_of: Value,
    mode: int,
    padding: int = -1,
) -> Value:
    """The gradient of the weights: products of a bag's gradient with the rows of the table."""
    wide = TABLE[g.dtype].compute
    some_of(g.sizes[0])
    element = _bag_element(table, at, None, wide)
    if bag_of.numel() == 0:  # PyTorch's fast kernels leave it out
        bag_of = _bag_of(b, starts, at.numel(), g.sizes[0])

    def product_(p: list[Index], r: list[Index]) -> Scalar:
        home = ops.indirect(bag_of.load([p[0]]), g.sizes[0], "index")
        value = ops.mul(ops.to(g.load([home, r[0]]), wide), element(p[0], r[0]))
        if padding < 0:
            return value
        return ops.where(ops.eq(ops.to(at.load([p[0]]), torch.int64), padding), 0, value)

    return cast(b.program.reduce(at.sizes, [g.sizes[1]], product_, "sum", wide), g.dtype)


# Distances between rows


def _difference(x: Value, y: Value, batch: Position, i: Index, j: Index, k: Index) -> Scalar:
    sides = []
    for v, row in ((x, i), (y, j)):
        lead = batch[len(batch) - (len(v.sizes) - 2) :]
        at = [0 if n == 1 else q for n, q in zip(v.sizes[:-2], lead, strict=True)]
        sides.append(v.load([*at, row, k]))
    return ops.sub(*sides)


@lowering("aten._cdist_forward")
def cdist(b: Build, x: Value, y: Value, p: float, mode: Any = None) -> Value:
    """The p-norms of the differences of all rows of x and of y."""
    of_one_dtype(x, y)
    x, y = shared(b, x), shared(b, y)
    dtype = b.out.dtype
    if x.sizes[-1] == 0:
        return constant(b.out.sizes, 0, dtype)

    def element(at: list[Index], r: list[Index]) -> Scalar:
        d = ops.abs(_difference(x, y, at[:-2], at[-2], at[-1], r[0]))
        if p == 0:
            return ops.where(ops.isnan(d), d, ops.to(ops.ne(d, 0.0), d.dtype))
        if math.isinf(p):  # no comparison holds for NaN
            return ops.where(ops.isnan(d), 0, d)
        return d if p == 1 else ops.mul(d, d) if p == 2 else ops.pow(d, p)

    combine = "max" if math.isinf(p) else "sum"
    total = b.program.reduce(b.out.sizes, [x.sizes[-1]], element, combine, TABLE[dtype].compute)

    def root(at: Position) -> Scalar:
        value = total.load(at)
        if p in (0, 1) or math.isinf(p):
            return value
        return ops.sqrt(value) if p == 2 else ops.pow(value, 1 / p)

    return cast(Lazy(b.out.sizes, total.dtype, root, (total,), 4), dtype)


@lowering("aten._cdist_backward")
def cdist_backward(b: Build, g: Value, x: Value, y: Value, p: float, distances: Value) -> Value:
    """The gradient of x."""
    g, x, y, distances = (shared(b, v) for v in (g, x, y, distances))
    wide = TABLE[x.dtype].compute
    if p == 0 or y.sizes[-2] == 0:
        return constant(b.out.sizes, 0, b.out.dtype)
    rank = len(b.out.sizes)

    def element(at: list[Index], r: list[Index]) -> Scalar:
        batch, i, k = at[:-2], at[-2], at[-1]
        d = _difference(x, y, batch, i, r[0], k)
        length = broadcast_load(
            distances, [*b.out.sizes[: rank - 1], y.sizes[-2]], [*batch, i, r[0]]
        )
        up = broadcast_load(g, [*b.out.sizes[: rank - 1], y.sizes[-2]], [*batch, i, r[0]])
        size = ops.abs(d)
        if p == 1:
            return ops.mul(up, ops.sign(d))
        if p == math.inf:
            gap = ops.sub(size, length)
            slope = ops.where(ops.eq(gap, 0.0), ops.sign(d), 0)
            return ops.mul(up, ops.where(ops.isnan(gap), gap, slope))
        if p == 2:
            slope = ops.div(ops.mul(up, d), length)
        else:
            power = ops.mul(ops.sign(d), ops.pow(size, p - 1))
            slope = ops.div(ops.mul(power, up), ops.pow(length, p - 1))
        nowhere = ops.eq(length, 0.0)
        if p < 1:
            nowhere = ops.logical_or(nowhere, ops.eq(size, 0.0))
        return ops.where(nowhere, 0, slope)

    return cast(b.program.reduce(b.out.sizes, [y.sizes[-2]], element, "sum", wide), b.out.dtype)
