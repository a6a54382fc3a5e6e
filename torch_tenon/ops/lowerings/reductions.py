"""Reductions and scans.

A reduction of which the target's backend says that it is worth it is done in two steps: pieces
first, then the pieces' results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE, compute_dtype
from torch_tenon.ir.index import Index, floordiv, nonnegative, product
from torch_tenon.ir.scalar import Scalar, Trace, ops, tracing
from torch_tenon.ir.sixteen_bits import ROUNDING
from torch_tenon.ir.values import (
    Layout,
    Lazy,
    Position,
    Stored,
    Value,
    memory_order,
    neutral,
    reshape,
    size_hint,
)
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_load,
    cast,
    elementwise,
    float_type,
    has_all_numbers,
    lowering,
    number,
)
from torch_tenon.ops.lowerings.views import wrap_dim


def dims_of(dim: Any, rank: int) -> list[int]:
    """The dimensions that an argument names: one, several, or (None, empty) all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return list(range(rank))
    many = dim if isinstance(dim, list | tuple) else [dim]
    found = sorted({wrap_dim(d, rank) for d in many})
    return found if rank else []


Element = Callable[[Position], Scalar]


def reduce(
    b: Build, x: Value, dims: Sequence[int], combine: str, keepdim: bool, element: Element
) -> Value:
    """`element` at every position of x combined over `dims`; the dtype is the element's own."""
    if x.dtype not in TABLE:
        raise CannotLower(f"no loops over {x.dtype}")
    rank = len(x.sizes)
    if isinstance(x, Stored):
        order = memory_order(x.layout)
    elif isinstance(x, Lazy) and x.realised is not None:
        order = memory_order(x.realised.layout)
    else:
        order = list(range(rank))
    outer = [d for d in range(rank) if d not in dims]
    inner = [d for d in order if d in dims]
    outer_sizes = [x.sizes[d] for d in outer]
    inner_sizes = [x.sizes[d] for d in inner]

    with tracing(Trace()):
        dtype = element([0] * rank).dtype

    def at(p: Position, r: Position) -> list[Index]:
        position: list[Index] = [0] * rank
        for d, i in zip(outer, p, strict=True):
            position[d] = i
        for d, i in zip(inner, r, strict=True):
            position[d] = i
        return position

    rows, length = size_hint(product(outer_sizes)), size_hint(product(inner_sizes))
    columns = inner != list(range(rank))[-len(inner) :]
    piece = b.backend.piece_length(rows, length, columns) if rows > 0 and b.backend else 0
    if piece:
        result = _in_pieces(b, piece, outer_sizes, inner_sizes, at, element, combine, dtype)
    else:
        result = b.program.reduce(
            outer_sizes, inner_sizes, lambda p, r: element(at(p, r)), combine, dtype
        )
    if keepdim:
        return reshape(result, [1 if d in dims else x.sizes[d] for d in range(rank)])
    return result


def _in_pieces(
    b: Build,
    elements: int,
    outer: list[Index],
    inner: list[Index],
    at: Callable[[Position, Position], list[Index]],
    element: Element,
    combine: str,
    dtype: torch.dtype,
) -> Value:
    """A reduction over pieces of the outermost reduced dimension, of about so many elements each,
    then over their results."""
    first, rest = inner[0], inner[1:]
    inside = size_hint(product(rest))
    length = max(1, elements // inside)
    if isinstance(first, int):
        length = next((n for n in range(length, max(length // 2, 1), -1) if first % n == 0), length)
        length = min(length, first)
    count = floordiv(first + length - 1, length)
    exact = isinstance(first, int) and first % length == 0

    def piece(p: list[Index], r: list[Index]) -> Scalar:
        position = p[0] * length + r[0]
        if exact:
            return element(at(p[1:], [position, *r[1:]]))
        inside = ops.lt(ops.index(position), ops.index(first))
        return ops.masked(
            inside, lambda: element(at(p[1:], [position, *r[1:]])), neutral(combine, dtype)
        )

    parts = b.program.reduce([count, *outer], [length, *rest], piece, combine, dtype)
    return b.program.reduce(outer, [count], lambda p, r: parts.load([r[0], *p]), combine, dtype)


def shared(b: Build, x: Value) -> Value:
    """`x` with memory if reading it more than once would compute it more than once."""
    if isinstance(x, Lazy) and (x.cost > 3 or len(x.reads) > 1):
        return b.program.realise(x)
    return x


def check_all(b: Build, x: Value, holds: Callable[[Scalar], Any], otherwise: str) -> None:
    """Has the program raise, as PyTorch's kernel does, where an element is none that may be."""
    count = x.numel()
    if isinstance(count, int) and count == 0:
        return
    found = reduce(b, x, range(len(x.sizes)), "all", False, lambda p: holds(x.load(p)))
    Build(b.program, []).call(torch.ops.aten._assert_async.msg, [found, otherwise], {}, "effect")


def fitting_tensor(b: Build, value: Any, dtype: torch.dtype) -> Any:
    """A number, or a tensor of one, that an op converts to a dtype, as `fitting` has it: what a
    tensor has is looked at in the run."""
    if not isinstance(value, Value) or value.is_number:
        return b.fitting(value, dtype)
    given, kinds = value.dtype, ("int", "uint", "float")
    if given not in TABLE or TABLE[given].kind not in kinds or _has_all_of(dtype, given):
        return value
    if isinstance(value, Lazy) and value.constant is not None:
        b.fitting(value.constant, dtype)
        return value
    wide = torch.float64 if given.is_floating_point else torch.int64
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    # A whole number below 0 wraps where there is none.
    least = info.min or (0 if given.is_floating_point else -info.max)

    def fits(x: Scalar) -> Any:
        x = ops.to(x, wide)
        inside = ops.logical_and(ops.ge(x, number(least, wide)), ops.le(x, number(info.max, wide)))
        if not dtype.is_floating_point:
            return inside
        return ops.logical_or(inside, ops.logical_or(ops.isinf(x), ops.isnan(x)))

    check_all(b, value, fits, f"value cannot be converted to type {dtype} without overflow")
    return value


def _has_all_of(dtype: torch.dtype, given: torch.dtype) -> bool:
    """Whether each real number of a dtype is one of another, but for rounding."""
    if dtype is given or has_all_numbers(dtype, not given.is_floating_point):
        return True
    if given.is_floating_point and not dtype.is_floating_point:
        return False
    most, mine = (torch.finfo(d) if d.is_floating_point else torch.iinfo(d) for d in (dtype, given))
    return most.max >= mine.max and (most.min <= mine.min or most.min == 0)


def typed(x: Value, dtype: torch.dtype) -> Element:
    """The elements of x as numbers of `dtype`."""
    return lambda p: ops.rounded(ops.to(x.load(p), dtype), dtype)


def _truth(combine: str) -> Callable[..., Value]:
    """`any` or `all`: of no dimension (an empty list, where one may be given), each element's."""

    def lower(b: Build, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
        if isinstance(dim, list | tuple) and not dim:
            return cast(cast(x, torch.bool), b.out.dtype)
        return _reduction(combine, True)(b, x, dim, keepdim)

    return lower


def _reduction(combine: str, truth: bool = False) -> Callable[..., Value]:
    def lower(
        b: Build, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Value:
        out = b.out.dtype  # integers add up in int64
        element = typed(x, torch.bool if truth else out)
        dims = dims_of(dim, len(x.sizes))
        if combine in ("max", "min") and product(x.sizes[d] for d in dims) == 0:
            raise CannotLower("the extreme of nothing")
        return cast(reduce(b, x, dims, combine, keepdim, element), out)

    return lower


lowering("aten.sum", "prims.sum")(_reduction("sum"))
lowering("aten.prod")(_reduction("prod"))
lowering("aten.any", "prims.any")(_truth("any"))
lowering("aten.all")(_truth("all"))
lowering("aten.amax", "prims.amax", "aten.max.default")(_reduction("max"))
lowering("aten.amin", "prims.amin", "aten.min.default")(_reduction("min"))


@lowering("aten.mean")
def mean(b: Build, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The arithmetic mean: of 16-bit numbers that of what is not rounded to them."""
    dims = dims_of(dim, len(x.sizes))
    out = b.out.dtype
    total = reduce(b, x, dims, "sum", keepdim, typed(x, compute_dtype(out)))
    count = product(x.sizes[d] for d in dims)
    wide = total.dtype
    return cast(elementwise(ops.div, (total, number_value(count)), wide, wide, 2), out)


def number_value(n: Index) -> Any:
    """A count as an operand of `elementwise`."""
    return float(n) if isinstance(n, int) else n


@lowering("aten.hash_tensor")
def hash_tensor(
    b: Build, x: Value, dim: Any = (), *, keepdim: bool = False, mode: int = 0
) -> Value:
    """The bits of all elements, as float64 or int64, joined by exclusive or."""
    if mode != 0:
        raise CannotLower("a mode that PyTorch's kernel refuses")
    wide = torch.float64 if x.dtype.is_floating_point else torch.int64

    def bits(p: Position) -> Scalar:
        return ops.bitcast(ops.to(x.load(p), wide), torch.int64)

    found = reduce(b, x, dims_of(dim, len(x.sizes)), "xor", keepdim, bits)
    return elementwise(lambda a: ops.bitcast(a, torch.uint64), (found,), None, torch.uint64)


def _extreme(b: Build, x: Value, dim: int, keepdim: bool, combine: str) -> list[Value]:
    """The extreme along a dimension and where it first stands (a NaN counts as the extreme)."""
    rank = len(x.sizes)
    x = shared(b, x)
    if rank == 0:
        return [x, Lazy((), torch.int64, lambda p: ops.constant(0, torch.int64))]
    d = wrap_dim(dim, rank)
    if x.sizes[d] == 0:
        raise CannotLower("the extreme of nothing")
    best = reduce(b, x, [d], combine, True, x.load)

    def element(p: Position) -> Scalar:
        value, top = x.load(p), broadcast_load(best, x.sizes, p)
        hit = ops.eq(value, top)
        if value.dtype.is_floating_point:
            hit = hit | (ops.isnan(value) & ops.isnan(top))
        return ops.where(hit, ops.index(p[d]), ops.constant(2**62, torch.int64))

    where = reduce(b, x, [d], "min", keepdim, element)
    if not keepdim:
        best = reshape(best, [n for k, n in enumerate(x.sizes) if k != d])
    return [cast(best, x.dtype), where]


def _along(combine: str) -> Callable[..., list[Value]]:
    return lambda b, x, dim, keepdim=False: _extreme(b, x, dim, keepdim, combine)


def _arg(combine: str) -> Callable[..., Value]:
    def lower(b: Build, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if x.dtype is torch.bool:
            raise CannotLower("the place of a truth value")
        if dim is not None:
            return _extreme(b, x, dim, keepdim, combine)[1]
        flat = reshape(x, (x.numel(),))
        return reshape(_extreme(b, flat, 0, False, combine)[1], b.out.sizes)

    return lower


for _name in ("max", "min"):
    lowering(f"aten.{_name}.dim")(_along(_name))
    lowering(f"aten.arg{_name}")(_arg(_name))


# What first means are scaled by: the sum of so many numbers stays in their range.
FAR = 2.0**-32


def moments(
    b: Build,
    x: Value,
    dims: Sequence[int],
    wide: torch.dtype,
    scale: float = FAR,
) -> tuple[Value, Value]:
    """The mean and the sum of squared deviations over `dims`, kept as dimensions of size 1.

    Two passes: the second over deviations from the mean, which loses no digits, and by their own
    mean mends what the first one rounded. So equal numbers are their mean, and deviate by nothing.
    The first sum is of numbers times `scale`, a power of two: a mean is in the range where a sum
    may not be.
    """
    count = product(x.sizes[d] for d in dims)
    load = typed(x, wide)
    total = reduce(b, x, dims, "sum", True, lambda p: _times(load(p), scale))
    dtype = total.dtype

    def divided(s: Scalar, n: Scalar) -> Scalar:
        return _times(ops.div(s, n), 1 / scale)

    first = b.program.realise(elementwise(divided, (total, number_value(count)), dtype, dtype, 2))

    def deviation(p: Position) -> Scalar:
        return ops.sub(load(p), broadcast_load(first, x.sizes, p))

    def square(p: Position) -> Scalar:
        d = deviation(p)
        return ops.mul(d, d)

    rest = reduce(b, x, dims, "sum", True, deviation)
    squares = reduce(b, x, dims, "sum", True, square)
    left = elementwise(ops.div, (rest, number_value(count)), dtype, dtype)

    def mended(f: Scalar, a: Scalar) -> Scalar:
        # The deviations from an infinite mean have none, and the sum of large ones may leave the
        # range. Numbers that large need no mending.
        return ops.where(ops.logical_or(ops.isinf(a), ops.isnan(a)), f, ops.add(f, a))

    average = b.program.realise(elementwise(mended, (first, left), dtype, dtype))

    def centred(s: Scalar, r: Scalar, a: Scalar) -> Scalar:
        # Where squares overflow, what mends them may as well.
        return ops.where(ops.isinf(s), s, ops.sub(s, ops.mul(r, a)))

    return average, elementwise(centred, (squares, rest, left), dtype, dtype, 2)


def _times(x: Scalar, factor: float) -> Scalar:
    """x times a power of two."""
    return x if factor == 1 else ops.mul(x, factor)


def moved(b: Build, average: Value, x: Value, dims: Sequence[int]) -> Value:
    """A mean over `dims` as the host has it, that moves from number to number: what follows an
    infinite one makes it no number. So it is infinite where the last one alone is."""
    if product(x.sizes[d] for d in dims) == 1:
        return average
    dtype = average.dtype
    infinite = reduce(b, x, dims, "sum", True, lambda p: ops.to(ops.isinf(x.load(p)), dtype))

    def element(p: Position) -> Scalar:
        mean = average.load(p)
        last = x.load([q if d not in dims else x.sizes[d] - 1 for d, q in enumerate(p)])
        ended = ops.logical_and(ops.isinf(last), ops.eq(infinite.load(p), 1))
        return ops.where(ops.logical_or(ended, ops.logical_not(ops.isinf(mean))), mean, math.nan)

    return Lazy(average.sizes, dtype, element, (average, x, infinite), 2)


def _less(count: Index, correction: Any) -> Any:
    """`count - correction` as an operand of `elementwise`: 0 where that is not positive, and for a
    correction that is no number."""
    if isinstance(count, int) and isinstance(correction, int | float):
        return float(count) - correction if count > correction else 0.0
    if not isinstance(correction, float):
        left = count - correction
        if nonnegative(left):
            return left

    def body(p: Position) -> Scalar:
        n, c = number(count, torch.float64), number(correction, torch.float64)
        return ops.where(ops.gt(n, c), ops.sub(n, c), 0.0)

    return Lazy((), torch.float64, body, (), 1)


def _variance(
    b: Build,
    x: Value,
    dim: Any,
    correction: Any = None,
    keepdim: bool = False,
    out: torch.dtype | None = None,
) -> list[Value]:
    """The variance and the mean, left in a dtype if one is given. They are computed in float64, as
    the host's: squares leave float32's range, and a mean may be the rest of large numbers."""
    dims = dims_of(dim, len(x.sizes))
    given, out = out, out or b.out.dtype
    if not b.out.dtype.is_floating_point:
        raise CannotLower(f"variance of {b.out.dtype}")
    x = shared(b, x)
    count = product(x.sizes[d] for d in dims)
    # PyTorch's decomposition of batch norms asks so, and their kernel divides a sum.
    batch = given is None and keepdim and correction == 0
    wide = out if batch and out not in ROUNDING else torch.float64
    scale = 1.0 if batch and out is torch.float64 else FAR
    average, squares = moments(b, x, dims, wide, scale)
    divisor = _less(count, 1 if correction is None else correction)
    variance: Value = elementwise(ops.div, (squares, divisor), wide, wide, 2)
    if not batch:
        average = moved(b, average, x, dims)
    if not keepdim:
        sizes = [n for d, n in enumerate(x.sizes) if d not in dims]
        variance, average = reshape(variance, sizes), reshape(average, sizes)
    return [cast(variance, out), cast(average, out)]


@lowering("aten.var.correction", "aten.var.dim", "prims.var")
def var(
    b: Build, x: Value, dim: Any = None, *args: Any, correction: Any = None, keepdim: bool = False
) -> Value:
    """The variance."""
    if args:
        correction, keepdim = (1 if args[0] else 0), bool(args[1:] and args[1])
    return _variance(b, x, dim, correction, keepdim)[0]


lowering("aten.var_mean.correction")(lambda b, x, dim=None, **how: _variance(b, x, dim, **how))


@lowering("aten.std_mean.correction")
def std_mean(b: Build, x: Value, dim: Any = None, **how: Any) -> list[Value]:
    """The standard deviation, representable where the variance may not be, and the mean."""
    variance, average = _variance(b, x, dim, out=torch.float64, **how)
    deviation = elementwise(ops.sqrt, (variance,), variance.dtype, variance.dtype, 2)
    return [cast(deviation, b.out.dtype), cast(average, b.out.dtype)]


lowering("aten.std.correction")(lambda b, x, dim=None, **how: std_mean(b, x, dim, **how)[0])


def scan(b: Build, x: Value, dim: int, combine: str, out: torch.dtype) -> Value:
    """Running combinations along a dimension; those of float32 that round in double precision, as
    the CPU has them: a product may leave float32's range and come back."""
    if out not in TABLE or out is torch.bool:
        raise CannotLower(f"no running {combine} of {out}")
    if not x.sizes:
        return cast(x, out)
    d = wrap_dim(dim, len(x.sizes))
    new = b.program.temporary(out, Layout.contiguous(x.sizes))
    if product(x.sizes) == 0:
        return new
    if x.sizes[d] == 1:
        one = cast(x, out)
        if not out.is_floating_point or combine not in ("sum", "logaddexp"):
            return one
        # As the sums do, it makes zero of a negative one.
        return Lazy(x.sizes, out, lambda p: ops.add(one.load(p), ops.constant(0.0, out)), (one,))
    others = [k for k in range(len(x.sizes)) if k != d]
    wide = out is torch.float32 and combine in ("sum", "prod", "logaddexp")
    load = typed(x, out)

    def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
        position: list[Index] = [0] * len(x.sizes)
        position[d] = r[0]
        for k, i in zip(others, p, strict=True):
            position[k] = i
        value = load(position)
        return ops.to(value, torch.float64) if wide else value, new.layout.index(position)

    b.program.loop("scan", body, [x.sizes[k] for k in others], [x.sizes[d]], new.buffer, combine)
    return new


def _cumulative(combine: str) -> Callable[..., Value]:
    return lambda b, x, dim, *, dtype=None: scan(b, x, dim, combine, b.out.dtype)


lowering("aten.cumsum")(_cumulative("sum"))
lowering("aten.cumprod")(_cumulative("prod"))


def widest(dtype: torch.dtype) -> torch.dtype:
    """The dtype that statistics of `dtype` are kept in."""
    return TABLE[float_type(dtype)].compute
