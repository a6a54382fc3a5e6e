"""Layer, group and batch normalization, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch_tenon.ir.index import Index, floordiv, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Position, Value, has_dense_channels, reshape
from torch_tenon.ops.lowerings.reductions import moments, number_value, reduce, shared, widest
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_to,
    cast,
    elementwise,
    lowering,
    number,
)
from torch_tenon.ops.lowerings.views import permute

CACHED = 1 << 15  # elements of images that a core's cache holds beside what else it needs
FEW_PLACES = 16  # of which moments cost more than reading them once more from memory


def _normalize(b: Build, x: Value, dims: Sequence[int], eps: float) -> tuple[Value, Value]:
    """The mean and 1 / sqrt(variance + eps) over `dims` (kept), in the statistics' dtype."""
    wide = widest(x.dtype)
    average, squares = moments(b, x, dims, wide)
    return _statistics(b, average, squares, product(x.sizes[d] for d in dims), eps)


def _statistics(
    b: Build, average: Value, squares: Value, count: Index, eps: float
) -> tuple[Value, Value]:
    """The mean and 1 / sqrt(variance + eps) of a mean and a sum of squared deviations."""
    wide = average.dtype

    def scaling(s: Scalar, n: Scalar) -> Scalar:
        # Squares beyond the range say nothing of the variance: 0 would look like a result.
        s = ops.where(ops.isinf(s), math.nan, s)
        return ops.rsqrt(ops.add(ops.div(s, n), float(eps)))

    scale = b.program.realise(elementwise(scaling, (squares, number_value(count)), wide, wide, 4))
    if count != 1:  # nothing has a deviation from an infinite mean
        average = elementwise(
            lambda m: ops.where(ops.isinf(m), math.nan, m), (average,), wide, wide
        )
    return average, scale


def _scaled(x: Scalar, average: Scalar, scale: Scalar, weight: Any, bias: Any) -> Scalar:
    y = ops.mul(ops.sub(x, average), scale)
    y = y if weight is None else ops.mul(y, weight)
    return y if bias is None else ops.add(y, bias)


def _terms(average: Scalar, scale: Scalar, weight: Any, bias: Any) -> list[Scalar]:
    """Of `(x - start) * factor + end` the last three, for what the CPU computes as
    `x * factor + shift`, where the shift is the bias less the average times the factor.

    Where the shift is finite they are the average, the factor and the bias: nothing cancels then.
    """
    factor = scale if weight is None else ops.mul(scale, weight)
    shift = ops.neg(ops.mul(average, factor))
    shift = shift if bias is None else ops.add(bias, shift)
    usual = ops.logical_not(ops.logical_or(ops.isinf(shift), ops.isnan(shift)))
    start = ops.where(usual, average, 0)
    return [start, factor, ops.where(usual, 0 if bias is None else bias, shift)]


def _applied(x: Scalar, start: Scalar, factor: Scalar, end: Scalar) -> Scalar:
    found: Scalar = ops.add(ops.mul(ops.sub(x, start), factor), end)
    return found


def _by_terms(x: Scalar, *statistics: Any) -> Scalar:
    return _applied(x, *_terms(*statistics))


def _check_parameters(x: Value, *parameters: Value | None) -> None:
    """Raises CannotLower for dtypes that PyTorch's kernel refuses: weights have the dtype of x, or
    that of its statistics."""
    for p in parameters:
        if p is not None and p.dtype not in (x.dtype, widest(x.dtype)):
            raise CannotLower(f"parameters of {p.dtype} beside {x.dtype}")


@lowering("aten.native_layer_norm")
def native_layer_norm(
    b: Build, x: Value, shape: Sequence[Index], weight: Any, bias: Any, eps: float
) -> list[Value]:
    """Normalized over the last dimensions; also the mean and 1 / deviation."""
    if product(x.sizes) == 0:
        raise CannotLower("an empty tensor")
    _check_parameters(x, weight, bias)
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
    _check_parameters(x, weight, bias)
    wide = widest(x.dtype)
    x = shared(b, x)
    per = channels // groups
    if has_dense_channels(x):
        return _by_channel(b, x, weight, bias, groups, eps)
    split = reshape(x, (n, groups, per, space))
    average, scale = _normalize(b, split, [2, 3], eps)
    shape = (1, groups, per, 1)
    w = None if weight is None else reshape(weight, shape)
    c = None if bias is None else reshape(bias, shape)
    function = _scaled if w is None and c is None else _by_terms
    y = elementwise(function, (split, average, scale, w, c), wide, wide, 8)
    metas = [m for m in b.results if m is not None]
    return [
        cast(reshape(y, x.sizes), x.dtype),
        cast(reshape(average, (n, groups)), metas[1].dtype),
        cast(reshape(scale, (n, groups)), metas[2].dtype),
    ]


def _by_channel(b: Build, x: Value, weight: Any, bias: Any, groups: int, eps: float) -> list[Value]:
    """The same for images with dense channels, where a group has runs of few elements: loops go
    over all channels, whose moments are joined to those of groups. They are of pieces that a cache
    holds, since moments read them twice."""
    wide = widest(x.dtype)
    n, channels = x.sizes[:2]
    per, space = channels // groups, product(x.sizes[2:])
    length = _cached_length(space, channels)
    pieces = floordiv(space, length)
    split = permute(b, reshape(x, (n, channels, pieces, length)), (0, 2, 1, 3))
    averages, squares = (
        reshape(b.program.realise(v), (n, pieces, groups, per))
        for v in moments(b, split, [3], wide)
    )
    # Their sum may leave the range; their mean does not.
    shares = elementwise(ops.div, (averages, number_value(pieces * per)), wide, wide)
    average = b.program.realise(reduce(b, shares, [1, 3], "sum", True, shares.load))

    def deviations(p: Position) -> Scalar:
        d = ops.sub(averages.load(p), average.load([p[0], 0, p[2], 0]))
        far = ops.mul(ops.mul(d, d), number(length, wide))
        found: Scalar = ops.add(squares.load(p), far)
        return found

    whole = reduce(b, squares, [1, 3], "sum", True, deviations)
    mean, scale = _statistics(b, average, whole, per * space, eps)

    w, c = (None if v is None else reshape(v, (groups, per)) for v in (weight, bias))
    shape = (n, channels, *(1 for _ in x.sizes[2:]))

    def of_channels(k: int) -> Value:
        given = (reshape(mean, (n, groups, 1)), reshape(scale, (n, groups, 1)), w, c)
        each = elementwise(lambda *args: _terms(*args)[k], given, wide, wide, 8)
        return reshape(b.program.copy(broadcast_to(each, (n, groups, per))), shape)

    y = elementwise(_applied, (x, *map(of_channels, range(3))), wide, wide, 3)
    metas = [m for m in b.results if m is not None]
    return [
        cast(y, x.dtype),
        cast(reshape(mean, (n, groups)), metas[1].dtype),
        cast(reshape(scale, (n, groups)), metas[2].dtype),
    ]


def _cached_length(space: Index, channels: Index) -> Index:
    """The most places, of which `space` is a multiple, that a cache holds all channels of; all of
    them where that is hardly any."""
    if not isinstance(space, int) or not isinstance(channels, int):
        return space
    most = CACHED // channels
    fits = (k for k in range(min(most, space), FEW_PLACES - 1, -1) if space % k == 0)
    return next(fits, space)
