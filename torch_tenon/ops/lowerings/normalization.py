"""Layer, group and batch normalization, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_tenon.ir.index import Index, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Value, reshape
from torch_tenon.ops.lowerings.reductions import moments, number_value, shared, widest
from torch_tenon.ops.lowerings.table import Build, CannotLower, cast, elementwise, lowering


def _normalize(b: Build, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """The mean and 1 / sqrt(variance + eps) over `dims` (kept), in the statistics' dtype."""
    wide = widest(x.dtype)
    average, squares = moments(b, x, dims, wide)
    count = product(x.sizes[d] for d in dims)
    scale = b.program.realise(
        elementwise(
            lambda s, n: ops.rsqrt(ops.add(ops.div(s, n), float(eps))),
            (squares, number_value(count)),
            wide,
            wide,
            4,
        )
    )
    if count != 1:  # nothing has a deviation from an infinite mean
        average = elementwise(
            lambda m: ops.where(ops.isinf(m), math.nan, m), (average,), wide, wide
        )
    return average, scale


def _scaled(x: Scalar, average: Scalar, scale: Scalar, weight: Any, bias: Any) -> Scalar:
    y = ops.mul(ops.sub(x, average), scale)
    y = y if weight is None else ops.mul(y, weight)
    return y if bias is None else ops.add(y, bias)


@lowering("aten.native_layer_norm")
def native_layer_norm(
    b: Build, x: Value, shape: Sequence[Index], weight: Any, bias: Any, eps: float
) -> list[Value]:
    """Normalized over the last dimensions; also the mean and 1 / deviation."""
    if product(x.sizes) == 0:
        raise CannotLower("an empty tensor")
    x = shared(b, x)
    wide = widest(x.dtype)
    dims = list(range(len(x.sizes) - len(shape), len(x.sizes)))
    average, scale = _normalize(b, x, dims, eps)
    y = elementwise(_scaled, (x, average, scale, weight, bias), wide, wide, 4)
    statistics = [m.dtype if m is not None else wide for m in b.results[1:]]
    return [cast(y, x.dtype), cast(average, statistics[0]), cast(scale, statistics[1])]


@lowering("aten.native_group_norm")
def native_group_norm(
    b: Build,
    x: Value,
    weight: Any,
    bias: Any,
    n: Index,
    channels: Index,
    space: Index,
    groups: int,
    eps: float,
) -> list[Value]:
    """Normalized over each group of channels; also the means and 1 / deviations."""
    if product(x.sizes) == 0:
        raise CannotLower("an empty tensor")
    wide = widest(x.dtype)
    x = shared(b, x)
    per = channels // groups
    split = reshape(x, (n, groups, per, space))
    average, scale = _normalize(b, split, [2, 3], eps)
    shape = (1, groups, per, 1)
    w = None if weight is None else reshape(weight, shape)
    c = None if bias is None else reshape(bias, shape)
    y = elementwise(_scaled, (split, average, scale, w, c), wide, wide, 4)
    metas = [m for m in b.results if m is not None]
    return [
        cast(reshape(y, x.sizes), x.dtype),
        cast(reshape(average, (n, groups)), metas[1].dtype),
        cast(reshape(scale, (n, groups)), metas[2].dtype),
    ]
