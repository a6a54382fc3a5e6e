"""Tensors made from nothing: constants, ranges, triangles, random numbers.

Random numbers are Philox 4x32-10. The seed and the offset are run-time inputs; element i of an op
takes the block with counter (i, offset), so the stream does not depend on how loops are fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, flat_index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Value
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    cast,
    elementwise,
    held,
    lowering,
    number,
)


def constant(sizes: Sequence[Index], value: Any, dtype: torch.dtype) -> Value:
    """One number everywhere."""
    if dtype not in TABLE:
        raise CannotLower(f"no loops over {dtype}")
    if isinstance(value, float) and dtype.is_floating_point:
        value = torch.tensor(value, dtype=dtype).item()
    made = Lazy(sizes, dtype, lambda p: number(value, dtype), (), 0)
    made.constant = value
    return made


@lowering("aten.full", "aten.full_like", "aten.scalar_tensor", "aten.new_full")
@lowering("aten.fill.Scalar")
def full(b: Build, *args: Any, fill_value: Any = None, **keywords: Any) -> Value:
    """One number everywhere."""
    value = fill_value if fill_value is not None else args[-1]
    return constant(b.out.sizes, value, b.out.dtype)


@lowering("aten.fill.Tensor")
def fill_tensor(b: Build, x: Value, value: Value) -> Value:
    """One element everywhere."""
    return Lazy(x.sizes, x.dtype, lambda p: ops.to(value.load(()), x.dtype), (value,))


@lowering("aten.zeros", "aten.zeros_like", "aten.new_zeros", "aten.empty", "aten.empty_like")
@lowering("aten._efficientzerotensor", "aten.empty_strided", "aten.new_empty")
@lowering("aten.new_empty_strided", "aten.empty_permuted")
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
    return _progression(b.out.sizes, start, step, b.out.dtype)


def _progression(sizes: Sequence[Index], start: Any, step: Any, dtype: torch.dtype) -> Value:
    floating = dtype.is_floating_point
    wide = torch.float64 if floating else torch.int64

    def body(p: Position) -> Scalar:
        i = ops.to(ops.index(p[0]), wide)
        return ops.to(ops.add(ops.mul(i, number(step, wide)), number(start, wide)), dtype)

    return Lazy(sizes, dtype, body, (), 3)


@lowering("prims.iota")
def iota(b: Build, length: Any, *, start: Any, step: Any, dtype: torch.dtype, **k: Any) -> Value:
    """Whole numbers in progression."""
    return _progression(b.out.sizes, start, step, dtype)


@lowering("aten.eye")
def eye(b: Build, *args: Any, **keywords: Any) -> Value:
    """Ones on the diagonal."""
    same = Lazy(b.out.sizes, torch.bool, lambda p: ops.eq(ops.index(p[0]), ops.index(p[1])))
    return cast(same, b.out.dtype)


def _triangle(upper: bool) -> Any:
    def lower(b: Build, x: Value, diagonal: Any = 0) -> Value:
        def body(p: Position) -> Scalar:
            column, row = ops.index(p[-1]), ops.index(p[-2] + diagonal)
            keep = ops.ge(column, row) if upper else ops.le(column, row)
            return ops.masked(keep, lambda: x.load(p), 0)

        return Lazy(x.sizes, x.dtype, body, (x,))

    return lower


lowering("aten.triu")(_triangle(True))
lowering("aten.tril")(_triangle(False))


def uniform_bits(b: Build, sizes: Sequence[Index], seed: Value, offset: Value, lane: int) -> Lazy:
    """Random 32-bit numbers, as int64, one for each element."""

    def body(p: Position) -> Scalar:
        element = ops.index(flat_index(p, sizes))
        return ops.philox(seed.load(()), offset.load(()), element, ops.constant(lane, torch.int64))

    return Lazy(sizes, torch.int64, body, (seed, offset), 30)


def _seeded(b: Build) -> tuple[Value, Value]:
    if b.program.random is None:
        raise CannotLower("no random seed comes with this program")
    return b.program.next_random()


def unit(b: Build, sizes: Sequence[Index], dtype: torch.dtype, seed: Value, offset: Value) -> Lazy:
    """Numbers in [0, 1): 24 random bits as float32, for float64 53 bits."""
    if dtype not in TABLE or not dtype.is_floating_point:
        raise CannotLower(f"random numbers of {dtype}")
    low = uniform_bits(b, sizes, seed, offset, 0)
    high = uniform_bits(b, sizes, seed, offset, 1)
    double = dtype is torch.float64

    def body(p: Position) -> Scalar:
        bits = low.load(p)
        if double:
            whole = ops.add(ops.mul(high.load(p), 2**21), ops.rshift(bits, 11))
            return ops.mul(ops.to(whole, dtype), 2.0**-53)
        # By way of 32 bits: from 64-bit integers to floats many processors have no vectors.
        whole = ops.to(ops.rshift(bits, 8), torch.int32)
        return ops.mul(ops.to(whole, torch.float32), 2.0**-24)

    made = torch.float64 if double else torch.float32
    return Lazy(sizes, made, body, (low, high) if double else (low,), 4)


def between(u: Lazy, low: Any, high: Any, dtype: torch.dtype) -> Value:
    """Numbers in [low, high) of numbers in [0, 1): what rounds up to `high` is the one before."""
    if low == 0 and high == 1 and u.dtype is dtype:
        return u
    step = torch.finfo(dtype).eps / 2

    def round(x: Scalar) -> Scalar:
        return held(ops.to(x, dtype), dtype)

    def body(x: Scalar, a: Scalar, b: Scalar) -> Scalar:
        span = ops.sub(b, a)
        y = round(ops.add(ops.mul(x, span), a))
        inside = ops.logical_or(ops.lt(ops.to(y, torch.float64), b), ops.eq(a, b))
        return ops.where(inside, y, round(ops.sub(b, ops.mul(span, step))))

    return elementwise(body, (u, low, high), torch.float64, dtype, 8)


def below(u: Lazy, p: Any, dtype: torch.dtype) -> Value:
    """1 with probability p, else 0, of numbers in [0, 1)."""
    return elementwise(lambda x, y: ops.to(ops.lt(x, y), dtype), (u, p), torch.float32, dtype, 2)


def integers(
    b: Build, sizes: Sequence[Index], low: Any, count: Any, dtype: torch.dtype, *state: Value
) -> Value:
    """Whole numbers in [low, low + count), by the remainder of 63 bits."""
    bits, more = (uniform_bits(b, sizes, state[0], state[1], lane) for lane in (0, 1))

    def body(p: Position) -> Scalar:
        high = ops.mul(ops.bitwise_and(more.load(p), 2**31 - 1), 2**32)
        return ops.to(ops.add(ops.remainder(ops.add(high, bits.load(p)), count), low), dtype)

    return Lazy(sizes, dtype, body, (bits, more), 8)


@lowering("tenon.draw")
def draw(
    b: Build, x: Value, distribution: str, p: Any, q: Any, base: int, count: int, *state: Value
) -> Value:
    """The random numbers of recorded code (csrc/ops/random.cpp), bit for bit."""
    dtype = b.out.dtype
    if dtype not in TABLE:
        raise CannotLower(f"random numbers of {dtype}")
    if distribution == "uniform":
        made = between(unit(b, x.sizes, dtype, *state), p, q, dtype)
    elif distribution == "bernoulli":
        made = below(unit(b, x.sizes, torch.float32, *state), p, dtype)
    elif distribution == "integers" and count > 0:
        made = integers(b, x.sizes, base, count, dtype, *state)
    else:
        raise CannotLower(f"the last bit of {distribution} is the host library's")
    return b.program.realise(made)


def uniform(b: Build, sizes: Sequence[Index], dtype: torch.dtype) -> Lazy:
    """Numbers in [0, 1), as `unit` makes them, from the program's own seed."""
    return unit(b, sizes, dtype, *_seeded(b))


@lowering("aten.rand", "aten.rand_like")
def rand(b: Build, *args: Any, **keywords: Any) -> Value:
    """Uniform in [0, 1)."""
    dtype = b.out.dtype
    return b.program.realise(between(uniform(b, b.out.sizes, dtype), 0.0, 1.0, dtype))


@lowering("aten.uniform.default")
def uniform_between(b: Build, x: Value, low: Any = 0.0, high: Any = 1.0, **k: Any) -> Value:
    """Uniform in [low, high)."""
    return b.program.realise(between(uniform(b, x.sizes, x.dtype), low, high, x.dtype))


def standard_normal(b: Build, sizes: Sequence[Index], dtype: torch.dtype) -> Lazy:
    """Normal numbers by Box and Muller's method, in float32 or float64."""
    if dtype not in TABLE or not dtype.is_floating_point:
        raise CannotLower(f"random numbers of {dtype}")
    seed, offset = _seeded(b)
    first = uniform_bits(b, sizes, seed, offset, 0)
    second = uniform_bits(b, sizes, seed, offset, 1)
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def body(p: Position) -> Scalar:
        u = ops.mul(ops.add(ops.to(first.load(p), wide), 1.0), 2.0**-32)
        v = ops.mul(ops.to(second.load(p), wide), 2.0**-32)
        radius = ops.sqrt(ops.mul(ops.log(u), -2.0))
        return ops.mul(radius, ops.cos(ops.mul(v, 2 * math.pi)))

    return Lazy(sizes, wide, body, (first, second), 20)


def _normal(b: Build, mean: Any, deviation: Any, dtype: torch.dtype, f: Any = None) -> Value:
    z = standard_normal(b, b.out.sizes, dtype)

    def combine(a: Scalar, m: Scalar, s: Scalar) -> Scalar:
        x = ops.add(ops.mul(a, s), m)
        return x if f is None else f(x)

    made = elementwise(combine, (z, mean, deviation), z.dtype, z.dtype, 4)
    return b.program.realise(cast(made, dtype))


@lowering("aten.normal")
def normal(b: Build, mean: Any, std: Any = 1.0, *args: Any, **keywords: Any) -> Value:
    """Normal, with a mean and a deviation that are numbers or tensors."""
    return _normal(b, mean, std, b.out.dtype)


lowering("aten.randn", "aten.randn_like")(lambda b, *a, **k: normal(b, 0.0))
lowering("aten.normal_functional")(lambda b, x, mean=0.0, std=1.0, **k: normal(b, mean, std))
lowering("aten.log_normal")(
    lambda b, x, mean=1.0, std=2.0, **k: _normal(b, mean, std, b.out.dtype, ops.exp)
)


def _from_uniform(b: Build, f: Any) -> Value:
    dtype = b.out.dtype
    u = uniform(b, b.out.sizes, torch.float64 if dtype is torch.float64 else torch.float32)
    return b.program.realise(cast(elementwise(f, (u,), u.dtype, u.dtype, 8), dtype))


@lowering("aten.exponential")
def exponential(b: Build, x: Value, rate: float = 1.0, **keywords: Any) -> Value:
    """Exponential, of rate 1 never zero."""
    least = max(2.0**-25, torch.finfo(b.out.dtype).tiny)
    return _from_uniform(b, lambda u: ops.div(ops.maximum(-ops.log1p(-u), least), rate))


@lowering("aten.geometric")
def geometric(b: Build, x: Value, p: float, **keywords: Any) -> Value:
    """How many trials until one of probability p succeeds."""
    scale = 1 / math.log1p(-p) if p < 1 else 0.0
    return _from_uniform(b, lambda u: ops.maximum(ops.ceil(ops.mul(ops.log1p(-u), scale)), 1.0))


@lowering("aten.cauchy")
def cauchy(b: Build, x: Value, median: float = 0.0, sigma: float = 1.0, **keywords: Any) -> Value:
    """Cauchy's distribution, by the tangent."""

    def f(u: Scalar) -> Scalar:
        return ops.add(ops.mul(ops.tan(ops.mul(ops.sub(u, 0.5), math.pi)), sigma), median)

    return _from_uniform(b, f)


@lowering("aten.rrelu_with_noise_functional")
def rrelu(
    b: Build,
    x: Value,
    noise: Value,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    **keywords: Any,
) -> list[Value]:
    """x, times a random slope where it is not positive; and the slopes."""
    if not training:
        middle = (low + high) / 2
        y = elementwise(
            lambda a: ops.where(ops.gt(a, 0), a, ops.mul(a, middle)), (x,), x.dtype, x.dtype
        )
        return [y, noise]
    u = uniform(b, x.sizes, torch.float32 if x.dtype is not torch.float64 else x.dtype)

    def slope(p: Position) -> Scalar:
        one = ops.constant(1.0, x.dtype)
        drawn = ops.to(ops.add(ops.mul(u.load(p), high - low), low), x.dtype)
        return ops.where(ops.gt(x.load(p), 0), one, drawn)

    slopes = b.program.realise(Lazy(x.sizes, x.dtype, slope, (x, u)))
    return [elementwise(ops.mul, (x, slopes), x.dtype, x.dtype), slopes]


@lowering("aten.randint", "aten.randint_like")
def randint(b: Build, *args: Any, **keywords: Any) -> Value:
    """Whole numbers in [low, high)."""
    numbers = [a for a in args if isinstance(a, int)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    made = integers(b, b.out.sizes, low, high - low, b.out.dtype, *_seeded(b))
    return b.program.realise(made)


@lowering("aten.bernoulli.default", "aten.bernoulli.p")
def bernoulli(b: Build, x: Value, p: Any = None, **keywords: Any) -> Value:
    """1 with probability x (or p), else 0."""
    u = uniform(b, x.sizes, torch.float32)
    return b.program.realise(below(u, x if p is None else p, x.dtype))


@lowering("aten.native_dropout")
def native_dropout(b: Build, x: Value, p: float, train: bool | None = True) -> list[Value]:
    """x with some elements zeroed and the rest scaled, and the mask of those kept."""
    if not train:
        return [x, constant(x.sizes, True, torch.bool)]
    u = uniform(b, x.sizes, torch.float32)
    keep = b.program.realise(below(u, 1 - p, torch.bool))
    scale = 0.0 if p == 1 else 1 / (1 - p)

    def body(i: Position) -> Scalar:
        return ops.where(keep.load(i), ops.mul(x.load(i), scale), 0)

    return [Lazy(x.sizes, x.dtype, body, (x, keep)), keep]
