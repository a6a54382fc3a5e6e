"""Random numbers: of recorded draws (csrc/pytorch/ops/random.cpp), and of the ops of compiled
graphs.

The numbers of an op are a stream, known by a seed and an offset, which are run-time inputs. Element
i, counted in row-major order of the sizes, is a function of the stream and of i (`ir.scalar`'s
random numbers), so it is the same however loops are fused. The formulas are
csrc/pytorch/ops/random.cpp's, operation by operation: whoever draws with a seed gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Expr, Index, flat_index, nonnegative
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Value
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.reductions import check_all, shared
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_to,
    elementwise,
    lowering,
)

MANY_VALUES = 1 << 20  # from which 64 bits choose among them, and not 32


@dataclass(frozen=True)
class Drawn:
    """A distribution with its parameters as its formula needs them: numbers, or tensors that are
    broadcast. Whole numbers are in [base, base + count), count 0 for all 64 bits; a count that is
    known at run time is positive."""

    distribution: str
    a: Any = 0.0
    b: Any = 0.0
    c: Any = 0.0
    base: Index = 0
    count: Index = 0


def drawn(
    sizes: Sequence[Index], dtype: torch.dtype, what: Drawn, seed: Value, offset: Value
) -> Value:
    """The numbers of a stream as a tensor. Raises CannotLower where there are no loops."""
    if dtype not in TABLE:
        raise CannotLower(f"random numbers of {dtype}")

    def numbers(kind: str, kind_dtype: torch.dtype) -> Lazy:
        def body(p: Position) -> Scalar:
            element = ops.index(flat_index(p, sizes))
            return ops.random(kind, kind_dtype, seed.load(()), offset.load(()), element)

        return Lazy(sizes, kind_dtype, body, (seed, offset), 30)

    if what.distribution == "integers":
        return _integers(numbers, dtype, what)
    if what.distribution == "bernoulli":
        u = numbers("random_unit", torch.float32)
        return elementwise(
            lambda x, p: ops.to(ops.lt(x, p), dtype), (u, what.a), torch.float32, dtype, 2
        )
    if what.distribution == "geometric":
        return _trials(numbers("random_exponential", torch.float64), dtype, what)
    if not dtype.is_floating_point:
        raise CannotLower(f"{what.distribution} numbers of {dtype}")
    return _floats(numbers, dtype, what)


def _integers(numbers: Any, dtype: torch.dtype, what: Drawn) -> Value:
    count = what.count % (1 << 64) if isinstance(what.count, int) else what.count
    word, bits = (numbers(f"random_{kind}", torch.int64) for kind in ("word", "bits"))

    def few(x: Scalar, n: Scalar) -> Scalar:
        scaled: Scalar = ops.rshift(ops.mul(x, n), 32)
        return scaled

    def moved(x: Scalar, base: Scalar) -> Scalar:
        return ops.to(ops.add(x, base), dtype)

    if count == 0:
        return elementwise(moved, (bits, what.base), torch.int64, dtype, 4)
    if not isinstance(count, int):

        def either(x: Scalar, y: Scalar, n: Scalar, base: Scalar) -> Scalar:
            is_few = ops.le(n, MANY_VALUES)
            return moved(ops.where(is_few, few(x, n), ops.random_below(y, n)), base)

        given = (word, bits, count, what.base)
        return elementwise(either, given, torch.int64, dtype, 6)
    below, source = (few, word) if count <= MANY_VALUES else (ops.random_below, bits)

    def body(x: Scalar, n: Scalar, base: Scalar) -> Scalar:
        return moved(below(x, n), base)

    return elementwise(body, (source, count, what.base), torch.int64, dtype, 4)


def _trials(times: Lazy, dtype: torch.dtype, what: Drawn) -> Value:
    """How many trials until one succeeds."""

    def body(x: Scalar, scale: Scalar) -> Scalar:
        trials = ops.maximum(ops.ceil(ops.mul(x, scale)), 1.0)
        return ops.to(trials if dtype.is_floating_point else ops.to(trials, torch.int64), dtype)

    return elementwise(body, (times, what.a), torch.float64, dtype, 4)


def _floats(numbers: Any, dtype: torch.dtype, what: Drawn) -> Value:
    """In float32, or for float64 in float64."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    kind = {"log_normal": "normal", "uniform": "unit"}.get(what.distribution, what.distribution)
    if kind not in ("normal", "unit", "exponential", "cauchy"):
        raise CannotLower(f"the distribution {kind}")
    x = numbers(f"random_{kind}", wide)
    least = torch.finfo(dtype).tiny

    def body(x: Scalar, a: Scalar, b: Scalar, last: Scalar) -> Scalar:
        if kind == "exponential":
            return ops.mul(ops.maximum(x, least), a)
        y = ops.add(ops.mul(x, b), a)
        if what.distribution == "log_normal":
            return ops.random_exp(y)
        if kind == "unit":  # what rounds up to the end becomes the number before
            y = ops.rounded(y, dtype)
            return ops.where(ops.lt(y, last), y, last)
        return y

    return elementwise(body, (x, what.a, what.b, what.c), wide, dtype, 4)


@lowering("tenon.draw")
def draw(
    b: Build,
    x: Value,
    distribution: str,
    p: Any,
    q: Any,
    r: Any,
    base: Index,
    count: Index,
    seed: Value,
    offset: Value,
) -> Value:
    """The random numbers of recorded code."""
    if not isinstance(base, int) or not isinstance(count, int):
        raise CannotLower("whole numbers out of as many as a run-time size says")
    what = Drawn(distribution, p, q, r, base, count)
    return b.program.realise(drawn(x.sizes, b.out.dtype, what, seed, offset))


# The ops of compiled graphs, with streams of the program's own.


def own(b: Build, what: Drawn, dtype: torch.dtype | None = None) -> Value:
    """The numbers of the op at hand, with the sizes of its result."""
    if b.program.random is None:
        raise CannotLower("no random seed comes with this program")
    seed, offset = b.program.next_random()
    return b.program.realise(drawn(b.out.sizes, dtype or b.out.dtype, what, seed, offset))


def _plain(*numbers: Any) -> None:
    if not all(isinstance(x, int | float) for x in numbers):
        raise CannotLower("a parameter of random numbers that is known at run time")


def _refuse(refused: bool) -> None:
    """Leaves parameters that PyTorch's kernel refuses to that."""
    if refused:
        raise CannotLower("parameters that are refused")


def uniform_of(low: Any, high: Any, dtype: torch.dtype) -> Drawn:
    """Uniform in [low, high)."""
    _plain(low, high)
    if not dtype.is_floating_point:
        raise CannotLower(f"uniform numbers of {dtype}")
    most = torch.finfo(dtype).max
    _refuse(not (-most <= low <= high <= most and high - low <= most))
    last: Any = high
    if low != high:
        nearest = torch.tensor(high, dtype=dtype)
        before = torch.nextafter(nearest, torch.tensor(-math.inf, dtype=dtype))
        last = nearest.item() if nearest.item() < high else before.item()
    return Drawn("uniform", low, high - low, last)


@lowering("aten.rand", "aten.rand_like")
def rand(b: Build, *args: Any, **keywords: Any) -> Value:
    """Uniform in [0, 1)."""
    return own(b, uniform_of(0.0, 1.0, b.out.dtype))


@lowering("aten.uniform.default")
def uniform(b: Build, x: Value, low: Any = 0.0, high: Any = 1.0, **keywords: Any) -> Value:
    """Uniform in [low, high)."""
    return own(b, uniform_of(low, high, x.dtype))


@lowering("aten.normal")
def normal(b: Build, mean: Any, std: Any = 1.0, *args: Any, **keywords: Any) -> Value:
    """Normal, with a mean and a deviation that are numbers or tensors."""
    _refuse(isinstance(std, int | float) and not std >= 0)
    if isinstance(std, Value):
        std = shared(b, std)
        is_deviation = lambda s: ops.ge(s, 0)  # noqa: E731
        check_all(b, std, is_deviation, "normal expects all elements of std >= 0.0")
    return own(b, Drawn("normal", mean, std))


lowering("aten.randn", "aten.randn_like")(lambda b, *a, **k: normal(b, 0.0))
lowering("aten.normal_functional")(lambda b, x, mean=0.0, std=1.0, **k: normal(b, mean, std))


def _positive(distribution: str, middle: float, width: float) -> Callable[..., Value]:
    """A distribution whose width, by default such, is positive."""

    def lower(b: Build, x: Value, a: Any = middle, c: Any = width, **keywords: Any) -> Value:
        _refuse(isinstance(c, int | float) and not c > 0)
        return own(b, Drawn(distribution, a, c))

    return lower


lowering("aten.log_normal")(_positive("log_normal", 1.0, 2.0))
lowering("aten.cauchy")(_positive("cauchy", 0.0, 1.0))


@lowering("aten.exponential")
def exponential(b: Build, x: Value, rate: float = 1.0, **keywords: Any) -> Value:
    """Exponential, of rate 1 never zero."""
    _plain(rate)
    _refuse(not rate > 0)
    return own(b, Drawn("exponential", 1 / rate))


@lowering("aten.geometric")
def geometric(b: Build, x: Value, p: float, **keywords: Any) -> Value:
    """How many trials until one of probability p succeeds."""
    _plain(p)
    _refuse(not 0 < p < 1)
    return own(b, Drawn("geometric", -1 / math.log1p(-p) if p < 1 else 0.0))


@lowering("aten.randint", "aten.randint_like")
def randint(b: Build, *args: Any, **keywords: Any) -> Value:
    """Whole numbers in [low, high)."""
    numbers = [a for a in args if isinstance(a, int | Expr)]
    low, high = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    count = high - low
    if not isinstance(count, int) and not nonnegative(count - 1):
        raise CannotLower("bounds that may leave no number between them")
    _refuse(isinstance(count, int) and count <= 0)
    if isinstance(low, int) and isinstance(high, int):
        _refuse(not _is_of(b.out.dtype, low) or not _is_of(b.out.dtype, high - 1))
    return own(b, Drawn("integers", base=low, count=count))


def _is_of(dtype: torch.dtype, number: int) -> bool:
    """Whether PyTorch takes a whole number for one that a dtype has."""
    if dtype is torch.bool:
        return 0 <= number <= 1
    if dtype.is_floating_point:
        return abs(number) <= torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    return info.min <= number <= info.max


@lowering("aten.bernoulli.default", "aten.bernoulli.p")
def bernoulli(b: Build, x: Value, p: Any = None, **keywords: Any) -> Value:
    """1 with probability x (or p), else 0."""
    _refuse(isinstance(p, int | float) and not 0 <= p <= 1)
    if p is not None:
        return own(b, Drawn("bernoulli", p), x.dtype)
    _refuse(not x.dtype.is_floating_point)
    return own(b, Drawn("bernoulli", chances(b, x)), x.dtype)


@lowering("aten.bernoulli.Tensor")
def bernoulli_of(b: Build, x: Value, p: Value, **keywords: Any) -> Value:
    """1 with probability p, else 0, as numbers of x's dtype."""
    _refuse(not p.dtype.is_floating_point or x.dtype.is_complex)
    checked = p if x.numel() == 0 else chances(b, p)
    return own(b, Drawn("bernoulli", broadcast_to(checked, x.sizes)), x.dtype)


def chances(b: Build, x: Value) -> Value:
    """What has to be probabilities."""
    x = shared(b, x)
    is_chance = lambda c: ops.ge(c, 0) & ops.le(c, 1)  # noqa: E731
    check_all(b, x, is_chance, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return x


@lowering("aten.native_dropout")
def native_dropout(b: Build, x: Value, p: float, train: bool | None = True) -> list[Value]:
    """x with some elements zeroed and the rest scaled, and the mask of those kept."""
    if train is False:  # None is as good as True
        return [x, constant(x.sizes, True, torch.bool)]
    _refuse(not 0 <= p <= 1)
    keep = own(b, Drawn("bernoulli", 1 - p), torch.bool)
    scale = 0.0 if p == 1 else 1 / (1 - p)

    def body(i: Position) -> Scalar:
        # A product, so that NaN and infinities are what eager code makes of them.
        factor = ops.where(keep.load(i), ops.constant(scale, x.dtype), 0)
        return ops.mul(x.load(i), factor)

    return [Lazy(x.sizes, x.dtype, body, (x, keep)), keep]


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
    if noise.sizes != x.sizes or (training and noise.dtype is not x.dtype):
        raise CannotLower("slopes of another shape or dtype, which PyTorch's kernel refuses")
    if not training:
        middle = (low + high) / 2
        y = elementwise(
            lambda a: ops.where(ops.gt(a, 0), a, ops.mul(a, middle)), (x,), x.dtype, x.dtype
        )
        return [y, noise]
    u = own(b, uniform_of(low, high, x.dtype), x.dtype)

    def slope(p: Position) -> Scalar:
        return ops.where(ops.le(x.load(p), 0), u.load(p), ops.constant(1.0, x.dtype))

    slopes = b.program.realise(Lazy(x.sizes, x.dtype, slope, (x, u)))
    return [elementwise(ops.mul, (x, slopes), x.dtype, x.dtype), slopes]
