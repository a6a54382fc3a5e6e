"""Softmax, its logarithm, and their gradients."""

from __future__ import annotations

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Position, Value
from torch_tenon.ops.lowerings.reductions import dims_of, reduce, shared, typed
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_load,
    cast,
    elementwise,
    lowering,
)


@lowering("aten._softmax")
def softmax(b: Build, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """exp(x) over its sum along a dimension."""
    out = b.out.dtype
    x, wide = shared(b, x), _wide(out)
    d = dims_of(dim, len(x.sizes))
    top = reduce(b, x, d, "max", True, typed(x, wide))
    exponentials = b.program.realise(
        elementwise(lambda a, m: ops.exp(ops.sub(a, m)), (x, top), wide, wide, 5)
    )
    total = reduce(b, exponentials, d, "sum", True, exponentials.load)
    scale = b.program.realise(elementwise(ops.reciprocal, (total,), wide, wide))
    return cast(elementwise(ops.mul, (exponentials, scale), wide, wide), out)


@lowering("aten._log_softmax")
def log_softmax(b: Build, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """log(softmax(x)) without the division."""
    out = b.out.dtype
    x, wide = shared(b, x), _wide(out)
    d = dims_of(dim, len(x.sizes))
    load = typed(x, wide)
    top = reduce(b, x, d, "max", True, load)

    def element(p: Position) -> Scalar:
        return ops.exp(ops.sub(load(p), broadcast_load(top, x.sizes, p)))

    total = reduce(b, x, d, "sum", True, element)
    shift = b.program.realise(elementwise(ops.log, (total,), total.dtype, total.dtype, 4))
    return cast(
        elementwise(lambda a, m, s: ops.sub(ops.sub(a, m), s), (x, top, shift), wide, wide, 2), out
    )


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype not in TABLE or not dtype.is_floating_point:
        raise CannotLower(f"softmax of {dtype}")
    return TABLE[dtype].compute


def _dtype_of_gradient(b: Build, g: Value) -> torch.dtype:
    if b.out.dtype is not g.dtype:
        raise CannotLower(f"a gradient of {b.out.dtype} by one of {g.dtype}")
    return g.dtype


@lowering("aten._softmax_backward_data")
def softmax_backward(b: Build, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    """y * (g - sum(g * y))."""
    out, wide = _dtype_of_gradient(b, g), _wide(g.dtype)
    g, y = shared(b, g), shared(b, y)
    d = dims_of(dim, len(y.sizes))
    left, right = typed(g, wide), typed(y, wide)
    total = reduce(b, y, d, "sum", True, lambda p: ops.mul(left(p), right(p)))
    return cast(
        elementwise(lambda a, v, t: ops.mul(v, ops.sub(a, t)), (g, y, total), wide, wide, 2), out
    )


@lowering("aten._log_softmax_backward_data")
def log_softmax_backward(b: Build, g: Value, y: Value, dim: int, dtype: torch.dtype) -> Value:
    """g - exp(y) * sum(g)."""
    out, wide = _dtype_of_gradient(b, g), _wide(g.dtype)
    g, y = shared(b, g), shared(b, y)
    total = reduce(b, g, dims_of(dim, len(y.sizes)), "sum", True, typed(g, wide))
    return cast(
        elementwise(
            lambda a, v, t: ops.sub(a, ops.mul(ops.exp(v), t)), (g, y, total), wide, wide, 6
        ),
        out,
    )
