"""Stores at indices along a dimension: scatter, `index_add` and its kin, `put`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.sixteen_bits import rounded_number
from torch_tenon.ir.values import Lazy, Position, Value, neutral, reshape
from torch_tenon.ops.lowerings.indexing import one_d, scatter_node
from torch_tenon.ops.lowerings.reductions import fitting_tensor
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_to,
    cast,
    elementwise,
    lowering,
    number,
    of_one_dtype,
)
from torch_tenon.ops.lowerings.views import wrap_dim


@dataclass(frozen=True)
class _Places:
    """How a scatter takes its indices: the error of one that is beyond the end, and whether
    negative ones count from there."""

    check: str = "gather"
    wrap: bool = False


def _scatter_along(
    b: Build,
    x: Value,
    dim: int,
    at: Value,
    source: Any,
    mode: str,
    include: bool = True,
    places: _Places = _Places(),
    in_steps: bool = False,
) -> Value:
    """Copies x and stores (or combines) a source at indices along one dimension. 16-bit numbers are
    rounded once, as the CPU's kernels of scatters do, or `in_steps`: after each of them."""
    if 0 in at.sizes:  # it may have any other sizes
        return x
    if len(one_d(at).sizes) != len(one_d(x).sizes):
        raise CannotLower("an index of another rank, which has to be empty")
    if not x.sizes:
        row = _scatter_along(b, one_d(x), dim, at, source, mode, include, places, in_steps)
        return reshape(row, ())
    if x.dtype not in TABLE:
        raise CannotLower(f"no loops over {x.dtype}")
    wide = TABLE[x.dtype].compute
    if mode in ("sum", "prod") and wide is not x.dtype and not in_steps:
        is_tensor = isinstance(source, Value)
        source = cast(source, wide) if is_tensor else rounded_number(source, x.dtype)
        done = _scatter_along(b, cast(x, wide), dim, at, source, mode, include, places)
        return cast(done, x.dtype)
    at, source = one_d(at), one_d(source) if isinstance(source, Value) else source
    d = wrap_dim(dim, len(x.sizes))
    others = [k for k in range(len(x.sizes)) if k != d]
    target = b.program.owned(x, (at, source))
    read = source.load if isinstance(source, Value) else lambda p: number(source, x.dtype)

    def place(p: list[Index], r: list[Index]) -> tuple[list[Index], Index]:
        position: list[Index] = [0] * len(x.sizes)
        position[d] = r[0]
        for k, i in zip(others, p, strict=True):
            position[k] = i
        row = ops.indirect(at.load(position), x.sizes[d], places.check, places.wrap)
        where = [row if k == d else i for k, i in enumerate(position)]
        return position, target.layout.index(where)

    outer, inner = [at.sizes[k] for k in others], [at.sizes[d]]
    if not include:
        start = neutral(mode, x.dtype)
        target = scatter_node(
            b, target, lambda p, r: (number(start, x.dtype), place(p, r)[1]), outer, inner, "store"
        )

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        position, where = place(p, r)
        return ops.to(read(position), x.dtype), where

    return scatter_node(b, target, body, outer, inner, mode)


@lowering("aten.scatter.src", "aten.scatter.value")
def scatter(b: Build, x: Value, dim: int, at: Value, source: Any) -> Value:
    """x with a source stored at indices along a dimension."""
    source = b.fitting(source, x.dtype)
    is_constant = isinstance(x, Lazy) and x.constant is not None
    if is_constant and len(x.sizes) == len(at.sizes) > 0 and not isinstance(source, Value):
        assert isinstance(x, Lazy)
        d, at = wrap_dim(dim, len(x.sizes)), one_d(at)
        rest = [k for k in range(len(x.sizes)) if k != d]
        if at.sizes[d] == 1 and all(at.sizes[k] == x.sizes[k] for k in rest):
            return _one_hot(x, d, at, source)
    return _scatter_along(b, x, dim, at, source, "store")


def _one_hot(x: Lazy, d: int, at: Value, value: Any) -> Value:
    """One element of each row of a constant replaced: a comparison, and no memory."""

    def body(p: Position) -> Scalar:
        index = at.load([0 if k == d else i for k, i in enumerate(p)])
        checked = ops.indirect(index, x.sizes[d], "gather")
        here = ops.eq(ops.index(checked), ops.index(p[d]))
        return ops.where(here, number(value, x.dtype), number(x.constant, x.dtype))

    return Lazy(x.sizes, x.dtype, body, (at,), 2)


@lowering("aten.scatter_add")
def scatter_add(b: Build, x: Value, dim: int, at: Value, source: Value) -> Value:
    """x with a source added at indices along a dimension."""
    return _scatter_along(b, x, dim, at, source, "sum")


_MODES = {
    "sum": "sum",
    "add": "sum",
    "prod": "prod",
    "multiply": "prod",
    "amax": "max",
    "amin": "min",
}


@lowering("aten.scatter_reduce.two", "aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_reduce(
    b: Build, x: Value, dim: int, at: Value, source: Any, reduce: str, *, include_self: bool = True
) -> Value:
    """x with a source combined at indices along a dimension."""
    return _reduced(b, x, dim, at, b.fitting(source, x.dtype), reduce, include_self, _Places())


def _reduced(
    b: Build,
    x: Value,
    dim: int,
    at: Value,
    source: Any,
    reduce: str,
    include: bool,
    places: _Places,
    in_steps: bool = False,
    counts_in_steps: bool = False,
) -> Value:
    if reduce != "mean":
        return _scatter_along(b, x, dim, at, source, _MODES[reduce], include, places, in_steps)
    if x.dtype is torch.bool:
        raise CannotLower("a mean of truth values")
    total = _scatter_along(b, x, dim, at, source, "sum", include, places, in_steps)
    # The CPU counts in the dtype of x, where many are rounded, or wrap.
    start = Lazy(x.sizes, x.dtype, lambda p: number(int(include), x.dtype))
    count = _scatter_along(b, start, dim, at, 1, "sum", True, places, counts_in_steps)

    def divide(a: Scalar, n: Scalar) -> Scalar:
        n = ops.where(ops.eq(n, 0), 1, n)
        return ops.div(a, n) if a.dtype.is_floating_point else ops.floor_div(a, n)

    return elementwise(divide, (total, count), None, x.dtype, 2)


@lowering("aten.index_reduce")
def index_reduce(
    b: Build,
    x: Value,
    dim: int,
    at: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    """x with slices of a source combined at positions of a dimension."""
    if x.dtype is torch.bool and (len(x.sizes) < 2 or not include_self):
        raise CannotLower("truth values of one dimension, or without those that are there")
    in_steps = not adds_by_scatter(x, dim, at)
    rows, source = _rows(x, dim, at, _of_rank(x, source))
    embedding = _Places("embedding")
    return _reduced(b, x, dim, rows, source, reduce, include_self, embedding, True, in_steps)


def _of_rank(x: Value, source: Value) -> Value:
    """A source that may be added or combined: one without dimensions only to a tensor without."""
    if x.sizes and not source.sizes:
        raise CannotLower("a source without dimensions")
    return source


def _rows(x: Value, dim: int, at: Value, source: Any) -> tuple[Value, Value]:
    """Indices of whole slices as one for each element, and the source (a tensor or a number) with
    the sizes of these."""
    if len(at.sizes) > 1:
        raise CannotLower("an index of several dimensions")
    if at.dtype not in (torch.int32, torch.int64):
        raise CannotLower(f"indices of {at.dtype}")
    if isinstance(source, Value):
        of_one_dtype(x, source)
    sizes = list(one_d(x).sizes)
    d = wrap_dim(dim, len(sizes))
    flat = reshape(at, (at.numel(),))
    sizes[d] = flat.sizes[0]
    if not isinstance(source, Value):
        made: Value = Lazy(sizes, x.dtype, lambda p: number(source, x.dtype), (), 0)
    else:
        made = one_d(source)
    if made.sizes != tuple(sizes):
        raise CannotLower("a source of other sizes")
    return Lazy(sizes, at.dtype, lambda p: flat.load([p[d]]), (flat,), 0), made


def adds_by_scatter(x: Value, dim: int, at: Value, alpha: Any = 1) -> bool:
    """Whether the CPU's kernel of `index_add` scatters: slices that are all of what is outside or
    inside, and that no factor scales. A truth value is one."""
    rank = len(x.sizes)
    if isinstance(alpha, Value | bool) or alpha != 1:
        return False
    return rank > 1 and wrap_dim(dim, rank) in (0, rank - 1) and at.dtype is torch.int64


@lowering("aten.index_add")
def index_add(b: Build, x: Value, dim: int, at: Value, source: Value, *, alpha: Any = 1) -> Value:
    """x with `alpha` times the slices of a source added at positions of a dimension."""
    rows, source = _rows(x, dim, at, _of_rank(x, source))
    rank, is_scaled = len(x.sizes), isinstance(alpha, Value) or alpha != 1
    if is_scaled:
        if x.dtype not in TABLE:
            raise CannotLower(f"no loops over {x.dtype}")
        wide = TABLE[x.dtype].compute
        scaled = lambda s, k: ops.mul(s, ops.rounded(k, x.dtype))  # noqa: E731
        # Slices are added times alpha, numbers once they are.
        dtype = wide if rank > 1 else x.dtype
        source = elementwise(scaled, (source, b.fitting(alpha, x.dtype)), wide, dtype)
    in_steps = not adds_by_scatter(x, dim, at, alpha)
    return _scatter_along(b, x, dim, rows, source, "sum", True, _Places("embedding"), in_steps)


def _of_64_bits(at: Value) -> Value:
    """Indices that are int64, as some kernels ask."""
    if at.dtype is not torch.int64:
        raise CannotLower(f"indices of {at.dtype}")
    return at


@lowering("aten.index_copy")
def index_copy(b: Build, x: Value, dim: int, at: Value, source: Value) -> Value:
    """x with slices of a source at positions of a dimension."""
    rows, source = _rows(x, dim, _of_64_bits(at), source)
    return _scatter_along(b, x, dim, rows, source, "store", places=_Places("index_copy"))


@lowering("aten.index_fill")
def index_fill(b: Build, x: Value, dim: int, at: Value, value: Any) -> Value:
    """x with a number (or a tensor without dimensions) at positions of a dimension."""
    rows, _ = _rows(x, dim, _of_64_bits(at), 0)
    value = fitting_tensor(b, value, x.dtype)
    source = broadcast_to(value, rows.sizes) if isinstance(value, Value) else value
    return _scatter_along(b, x, dim, rows, source, "store", places=_Places("index", wrap=True))


@lowering("aten.put")
def put(b: Build, x: Value, at: Value, source: Value, accumulate: bool = False) -> Value:
    """x with values stored or added at numbers of its elements."""
    count = _of_64_bits(at).numel()
    of_one_dtype(x, source)
    if source.numel() != count:
        raise CannotLower("more or fewer values than places")
    flat_at, values = reshape(at, (count,)), reshape(source, (count,))
    target = b.program.owned(reshape(x, (x.numel(),)), (at, source))

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        where = ops.indirect(flat_at.load(r), x.numel(), "index", wrap=True)
        return ops.to(values.load(r), x.dtype), target.layout.index([where])

    mode = "sum" if accumulate else "store"
    return reshape(scatter_node(b, target, body, [], [count], mode), x.sizes)
