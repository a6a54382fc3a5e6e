"""Tensors made from nothing: constants, ranges, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, flat_index, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.sixteen_bits import ROUNDING
from torch_tenon.ir.values import Lazy, Position, Value
from torch_tenon.ops.lowerings.table import (
    UNSIGNED,
    Build,
    CannotLower,
    broadcast_to,
    cast,
    lowering,
    number,
    real_if_it_is,
)


def constant(sizes: Sequence[Index], value: Any, dtype: torch.dtype) -> Value:
    """One number everywhere."""
    if dtype not in TABLE:
        raise CannotLower(f"no loops over {dtype}")
    made = Lazy(sizes, dtype, lambda p: number(value, dtype), (), 0)
    made.constant = value
    return made


@lowering("aten.full", "aten.full_like", "aten.scalar_tensor", "aten.new_full")
@lowering("aten.fill.Scalar")
def full(b: Build, *args: Any, fill_value: Any = None, **keywords: Any) -> Value:
    """One number everywhere."""
    value = fill_value if fill_value is not None else args[-1]
    value = b.fitting(value, b.out.dtype)
    if isinstance(value, Value):
        return broadcast_to(cast(value, b.out.dtype), b.out.sizes)
    return constant(b.out.sizes, value, b.out.dtype)


@lowering("aten.fill.Tensor")
def fill_tensor(b: Build, x: Value, value: Value) -> Value:
    """One element everywhere."""
    fill = cast(value, x.dtype)
    return Lazy(x.sizes, x.dtype, lambda p: fill.load(()), (fill,))


@lowering("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.empty", "aten.empty_like")
@lowering("aten._efficientzerotensor", "aten.empty_strided", "aten.new_empty")
@lowering("aten.new_empty_strided", "aten.empty_permuted", "aten.zero")
def zeros(b: Build, *args: Any, **keywords: Any) -> Value:
    """Zeros; also where any contents would do."""
    return constant(b.out.sizes, 0, b.out.dtype)


lowering("aten.ones", "aten.ones_like", "aten.new_ones")(
    lambda b, *a, **k: constant(b.out.sizes, 1, b.out.dtype)
)


@lowering("aten.arange.start_step", "aten.arange.start", "aten.arange.default")
def arange(b: Build, *args: Any, step: Any = 1, **keywords: Any) -> Value:
    """start, start + step, ..."""
    start = args[0] if len(args) > 1 else 0
    step = args[2] if len(args) > 2 else step
    start, step = real_if_it_is(start), real_if_it_is(step)
    return _progression(b.out.sizes, start, step, b.out.dtype)


def _progression(sizes: Sequence[Index], start: Any, step: Any, dtype: torch.dtype) -> Value:
    """A progression in the order of the elements: `out=` of as many keeps its own sizes."""
    floating = dtype.is_floating_point
    if dtype in (torch.bool, *UNSIGNED):
        raise CannotLower(f"a progression of {dtype}, which the kernel refuses")
    if dtype in ROUNDING and not _is_exact(product(sizes), start, step, dtype):
        # PyTorch's vectors round their first element, then count on from it.
        raise CannotLower(f"a progression of {dtype} that is rounded")
    wide = torch.float64 if floating else torch.int64

    def body(p: Position) -> Scalar:
        i = ops.to(ops.index(flat_index(p, sizes)), wide)
        return ops.to(ops.add(ops.mul(i, number(step, wide)), number(start, wide)), dtype)

    return Lazy(sizes, dtype, body, (), 3)


def _is_exact(count: Index, start: Any, step: Any, dtype: torch.dtype) -> bool:
    """Whether the numbers of a progression, and those between its ends, need no rounding."""
    most = 2 / torch.finfo(dtype).eps  # up to which there are all whole numbers
    if not isinstance(count, int) or any(not isinstance(x, int | float) for x in (start, step)):
        return False
    ends = (start, start + step * count)
    return all(x == int(x) and abs(x) <= most for x in (*ends, step))


@lowering("prims.iota")
def iota(b: Build, length: Any, *, start: Any, step: Any, dtype: torch.dtype, **k: Any) -> Value:
    """Whole numbers in progression."""
    return _progression(b.out.sizes, start, step, dtype)


@lowering("aten.eye")
def eye(b: Build, *args: Any, **keywords: Any) -> Value:
    """Ones on the diagonal."""
    if b.out.dtype in UNSIGNED:
        raise CannotLower(f"a matrix of {b.out.dtype}, which the kernel refuses")
    same = Lazy(b.out.sizes, torch.bool, lambda p: ops.eq(ops.index(p[0]), ops.index(p[1])))
    return cast(same, b.out.dtype)


def _triangle(upper: bool) -> Any:
    def lower(b: Build, x: Value, diagonal: Any = 0) -> Value:
        def body(p: Position) -> Scalar:
            # Not a row and a diagonal together, which may be more than 64 bits hold.
            across, least = ops.index(p[-1] - p[-2]), ops.index(diagonal)
            keep = ops.ge(across, least) if upper else ops.le(across, least)
            return ops.masked(keep, lambda: x.load(p), 0)

        return Lazy(x.sizes, x.dtype, body, (x,))

    return lower


lowering("aten.triu")(_triangle(True))
lowering("aten.tril")(_triangle(False))
