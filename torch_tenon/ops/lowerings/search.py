"""Running extremes, binary search, and moves of elements whose places a mask decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, product, unflatten
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Stored, Value, reshape
from torch_tenon.ops.lowerings.indexing import filled, scatter_node
from torch_tenon.ops.lowerings.reductions import check_all, scan, shared
from torch_tenon.ops.lowerings.table import (
    LOWERINGS,
    Build,
    CannotLower,
    broadcast_to,
    cast,
    lowering,
    number,
    of_fractions,
    promote,
)
from torch_tenon.ops.lowerings.views import wrap_dim


def _running(combine: str) -> Callable[..., list[Value]]:
    def lower(b: Build, x: Value, dim: int) -> list[Value]:
        d = wrap_dim(dim, len(x.sizes))
        if not x.sizes:
            return [x, Lazy((), torch.int64, lambda p: ops.constant(0, torch.int64))]
        x = shared(b, x)
        best = scan(b, x, d, combine, x.dtype)

        def here(p: Position) -> Scalar:
            value, top = x.load(p), best.load(p)
            hit = ops.eq(value, top)
            if value.dtype.is_floating_point:
                hit = hit | (ops.isnan(value) & ops.isnan(top))
            return ops.where(hit, ops.index(p[d]), ops.constant(0, torch.int64))

        # The last place that held the extreme so far: places only grow.
        where = scan(b, Lazy(x.sizes, torch.int64, here, (x, best)), d, "max", torch.int64)
        if not x.dtype.is_floating_point:
            return [best, where]

        def taken(p: Position) -> Scalar:  # a zero has the sign of the last one
            at = ops.place(where.load(p), x.sizes[d])
            return x.load([*p[:d], at, *p[d + 1 :]])

        return [Lazy(x.sizes, x.dtype, taken, (x, where), 2), where]

    return lower


for _name, _combine in (("cummax", "max"), ("cummin", "min")):
    LOWERINGS[f"aten.{_name}"] = _running(_combine)


@lowering("aten.logcumsumexp")
def logcumsumexp(b: Build, x: Value, dim: int) -> Value:
    """The logarithm of running sums of exponentials."""
    of_fractions(x, torch.complex64, torch.complex128)
    return scan(b, x, dim, "logaddexp", x.dtype)


def _bound(b: Build, row: Value, values: Value, sorter: Value | None, right: bool) -> Value:
    """For each of `values`, how many elements of its sorted row are before it."""
    compute = promote(row, values)
    length = row.sizes[-1] if row.sizes else None
    ordered = compute in TABLE and compute is not torch.bool and not compute.is_complex
    if not ordered or not isinstance(length, int):
        raise CannotLower(f"a search in {length} elements of {compute}")
    if sorter is not None and sorter.dtype is not torch.int64:
        raise CannotLower(f"places of {sorter.dtype}, which the kernel refuses")
    compare = ops.gt if right else ops.ge
    if sorter is not None:
        is_place = lambda i: ops.ge(i, 0) & ops.lt(i, length)  # noqa: E731
        check_all(b, sorter, is_place, "torch.searchsorted(): sorter index out of range")
    row = b.program.realise(row)

    whole = torch.int32 if length < 2**30 else torch.int64  # sums of two places

    def element(lead: Position, at: Index) -> Scalar:
        if sorter is not None:
            at = ops.indirect(sorter.load([*lead, at]), length, "index")
        return ops.to(row.load([*lead, at]), compute)

    def body(p: Position) -> Scalar:
        value = ops.to(values.load(p if values.sizes else ()), compute)
        lead = [] if len(row.sizes) == 1 else list(p[:-1])
        low, high = ops.constant(0, whole), ops.constant(length, whole)
        least = most = length  # elements between them
        while least > 0:
            middle = ops.rshift(ops.add(low, high), 1)
            beyond = compare(element(lead, ops.sure_place(middle, length)), value)
            high = ops.where(beyond, middle, high)
            low = ops.where(beyond, low, ops.add(middle, 1))
            least, most = (least - 1) // 2, most // 2
        if most == 0:
            return ops.to(low, b.out.dtype)
        # Of a search that has met shorter halves there is nothing left.
        middle = ops.rshift(ops.add(low, high), 1)
        active = ops.lt(low, high)
        last = lambda: compare(element(lead, ops.place(middle, length)), value)  # noqa: E731
        beyond = ops.masked(active, last, True)
        low = ops.where(beyond, low, ops.add(middle, 1))
        return ops.to(low, b.out.dtype)

    inputs = [v for v in (row, values, sorter) if v is not None]
    return Lazy(b.out.sizes, b.out.dtype, body, inputs, 8 * length.bit_length())


@lowering("aten.searchsorted")
def searchsorted(
    b: Build,
    row: Value,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    """Where values would go in sorted rows."""
    if side not in (None, "left", "right"):
        raise CannotLower("a side that is none, as the kernel says")
    return _bound(b, row, _tensor(values, row), sorter, right or side == "right")


@lowering("aten.bucketize")
def bucketize(
    b: Build, values: Any, row: Value, *, out_int32: bool = False, right: bool = False
) -> Value:
    """The number of the interval that each value lies in."""
    if len(row.sizes) != 1:
        raise CannotLower("boundaries in several rows, which the kernel refuses")
    return _bound(b, row, _tensor(values, row), None, right)


def _tensor(x: Any, row: Value) -> Value:
    """A number as a tensor, in the dtype that it is compared with a row in."""
    if isinstance(x, Value):
        return x
    dtype = promote(row, x)
    return Lazy((), dtype, lambda p: number(x, dtype))


def ranks(b: Build, mask: Value) -> Stored:
    """For each element of a flat mask, how many hold up to and with it."""
    held = Lazy(mask.sizes, torch.int64, lambda p: ops.to(mask.load(p), torch.int64), (mask,))
    return b.program.realise(scan(b, held, 0, "sum", torch.int64))


def _flat(x: Value) -> Value:
    return reshape(x, (x.numel(),))


def _compacted(
    b: Build, mask: Value, count: Index, dtype: torch.dtype, fill: Any, value: Any, width: int
) -> Value:
    """`value(i, k)`, k below `width`, of the first `count` elements i that hold; then `fill`."""
    number_of = ranks(b, mask)
    # One row more takes what is not wanted.
    target = filled(b, (count + 1, width), fill, dtype)

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        rank = ops.sub(number_of.load(r), 1)
        wanted = mask.load(r) & ops.lt(rank, ops.index(count))
        row = ops.place(ops.where(wanted, rank, ops.index(count)), count + 1)
        return value(r[0], p[0]), target.layout.index([row, p[0]])

    done = scatter_node(b, target, body, [width], [mask.sizes[0]], "store")
    return Lazy((count, width), dtype, done.load, (done,), 0)


@lowering("aten.nonzero_static")
def nonzero_static(b: Build, x: Value, *, size: Index, fill_value: int = -1) -> Value:
    """The first places that are not zero, in so many rows."""
    if not x.sizes or product(x.sizes) == 0:
        raise CannotLower("no dimension or no element")
    mask = _flat(cast(x, torch.bool))

    def place(i: Index, k: Index) -> Scalar:
        at = ops.constant(0, torch.int64)
        for d, j in enumerate(unflatten(i, x.sizes)):
            at = ops.where(ops.eq(ops.index(k), d), ops.index(j), at)
        return at

    return _compacted(b, mask, size, torch.int64, fill_value, place, len(x.sizes))


@lowering("aten.masked_scatter_backward")
def masked_scatter_backward(b: Build, g: Value, mask: Value, sizes: Sequence[Index]) -> Value:
    """The gradients where the mask holds, one after the other, then zeros."""
    flat, held = _flat(g), _flat(broadcast_to(mask, g.sizes))
    count = product(sizes)
    if count == 0 or product(g.sizes) == 0:
        raise CannotLower("an empty tensor")
    one = _compacted(b, held, count, g.dtype, 0, lambda i, k: flat.load([i]), 1)
    return reshape(one, sizes)


@lowering("aten.masked_scatter")
def masked_scatter(b: Build, x: Value, mask: Value, source: Value) -> Value:
    """x with the elements of a source, in order, where the mask holds."""
    sizes = b.out.sizes
    if product(sizes) == 0 or product(source.sizes) == 0:
        raise CannotLower("an empty tensor")
    values, held = _flat(source), _flat(broadcast_to(mask, sizes))
    old = _flat(broadcast_to(x, sizes))
    number_of = ranks(b, held)

    def body(p: Position) -> Scalar:
        here = held.load(p)

        def new() -> Scalar:
            at = ops.sub(number_of.load(p), 1)
            return values.load([ops.indirect(at, values.numel(), "gather")])

        return ops.where(here, ops.masked(here, new, 0), old.load(p))

    flat = Lazy((product(sizes),), x.dtype, body, (held, old, values, number_of), 4)
    return reshape(flat, sizes)
