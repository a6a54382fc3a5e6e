"""Pointwise ops: most are one row of a table, with the rule for their compute dtype."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE, compute_dtype
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.scalar_ops import SPECIAL
from torch_tenon.ir.values import Value
from torch_tenon.ops import manifest
from torch_tenon.ops.lowerings.table import (
    LOWERINGS,
    Build,
    CannotLower,
    elementwise,
    float_type,
    is_run_time_number,
    lowering,
    of_fractions,
    promote,
)

# Rules: "same" computes in the promoted dtype, "float" in the floating one, "bool" compares in the
# promoted dtype and gives bool, "truth" takes bools and gives bool.
_UNARY = {
    "float": "sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh sigmoid erf erfc erfinv lgamma",
    "same": "neg abs sign bitwise_not",
    "truth": "logical_not",
}
_BINARY = {
    "same": "mul maximum minimum fmax fmin bitwise_and bitwise_or bitwise_xor gcd lcm",
    "bool": "eq ne lt le gt ge",
    "float": "hypot nextafter copysign atan2",
    "truth": "logical_and logical_or",
}
_WIDE = {"mul": (1,)}  # as `elementwise` has it
_CHEAP = {"neg", "abs", "sign", "bitwise_not", "logical_not"}
_ROUNDING = {
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "fix": "trunc", "round.default": "round",
}  # fmt: skip
_NOT_PREFIXED = {"i0", "igamma", "igammac"}
_ALIASES = {"i0": "special_modified_bessel_i0", "i1": "special_modified_bessel_i1"}


def _enter(name: str, rule: str, cost: int, aten: str = "") -> None:
    takes = manifest.of(f"aten::{aten or name}").takes

    def lower(b: Build, *args: Any, **keywords: Any) -> Value:
        if keywords:
            raise CannotLower(f"{name} with {sorted(keywords)}")
        compute = promote(*args)
        scalar = getattr(ops, name)
        if name == "nextafter" and compute.itemsize < 4:
            raise CannotLower("the neighbour of a 16-bit number: they are computed as float32")
        whole = name.startswith("bitwise") or name in ("gcd", "lcm")
        if whole and (compute.is_floating_point or compute.is_complex):
            raise CannotLower(f"{name} of {compute}")
        if takes == "fractions" and not compute.is_floating_point:
            raise CannotLower(f"{name} of {compute}")
        if takes == "numbers" and compute is torch.bool:
            raise CannotLower(f"{name} of truth values")
        if name in ("fmin", "fmax") and not compute.is_floating_point:
            scalar = ops.minimum if name == "fmin" else ops.maximum
        if rule == "truth":
            return elementwise(scalar, args, torch.bool, torch.bool, cost)
        if rule == "bool":
            return elementwise(scalar, args, compute, torch.bool, cost)
        if rule == "float":
            compute = float_type(compute)
        if compute is torch.bool and name in ("bitwise_not", "sign"):
            scalar = ops.logical_not if name == "bitwise_not" else lambda a: a
        return elementwise(scalar, args, compute, compute, cost, _WIDE.get(name, ()))

    LOWERINGS[f"aten.{aten or name}"] = lower


for _name, _aten in _ALIASES.items():
    _enter(f"special_{_name}", "float", 60, _aten)
for _name in SPECIAL:
    if _name != "polygamma":
        _enter(
            f"special_{_name}", "float", 60, _name if _name in _NOT_PREFIXED else f"special_{_name}"
        )
_enter("digamma", "float", 30)
for _rule, _names in _UNARY.items():
    for _name in _names.split():
        _enter(_name, _rule, 1 if _name in _CHEAP else 4)
for _rule, _names in _BINARY.items():
    for _name in _names.split():
        _enter(_name, _rule, 4 if _rule == "float" else 1)


def _enter_rounding(aten: str, name: str) -> None:
    def lower(b: Build, x: Value) -> Value:
        if x.dtype is torch.bool:
            raise CannotLower(f"{name} of truth values")
        if not x.dtype.is_floating_point:
            return x
        return elementwise(getattr(ops, name), (x,), x.dtype, x.dtype)

    LOWERINGS[f"aten.{aten}"] = lower


for _aten, _name in _ROUNDING.items():
    _enter_rounding(_aten, _name)


@lowering("aten.round.decimals")
def round_decimals(b: Build, x: Value, *, decimals: int = 0) -> Value:
    """To so many decimals, as ATen does: by scaling, rounding and scaling back."""
    scale = 10.0 ** abs(decimals) if abs(decimals) < 309 else math.inf
    if not x.dtype.is_floating_point and decimals != 0:
        raise CannotLower("rounds an integer to decimals")
    if decimals == 0:
        return LOWERINGS["aten.round.default"](b, x)

    def f(a: Scalar) -> Scalar:
        if decimals < 0:
            return ops.mul(ops.round(ops.div(a, scale)), scale)
        return ops.div(ops.round(ops.mul(a, scale)), scale)

    return elementwise(f, (x,), x.dtype, x.dtype, 3)


def _check_factor(b: Build, by: Any, dtype: torch.dtype) -> None:
    """Raises CannotLower for a factor that PyTorch's kernel refuses beside numbers of a dtype."""
    truth, fraction = isinstance(by, bool), isinstance(by, float | complex)
    if isinstance(by, complex) and not dtype.is_complex:
        raise CannotLower("a complex factor of real numbers")
    if truth and dtype is not torch.bool:
        raise CannotLower("a truth value as a factor")
    if fraction and not (dtype.is_floating_point or dtype.is_complex):
        raise CannotLower("a fraction as a factor of whole numbers")
    b.fitting(by, dtype)


def _is_true_or_false(x: Any) -> bool:
    return x.dtype is torch.bool if isinstance(x, Value) else isinstance(x, bool)


def _scaled(scalar: Callable[..., Scalar], turned: bool = False) -> Callable[..., Value]:
    """x + alpha * y, and its kin."""

    def lower(b: Build, x: Any, y: Any, *args: Any, alpha: Any = 1) -> Value:
        x, y, by = (y, x, *args, alpha)[:3] if turned else (x, y, *args, alpha)[:3]
        dtype = promote(x, y)
        _check_factor(b, by, dtype)
        if scalar == ops.sub and any(_is_true_or_false(v) for v in (x, y)):
            raise CannotLower("a truth value less another")
        if by == 1 and not dtype.is_complex:  # whose infinities tell that PyTorch multiplies by it
            return elementwise(scalar, (x, y), dtype, dtype)

        less = scalar == ops.sub and (dtype.is_floating_point or dtype.is_complex)
        if less and isinstance(by, Value):
            # Negated in its own dtype, as PyTorch does: a whole 0 stays without a sign.
            by = elementwise(ops.neg, (by,), by.dtype, by.dtype)
        elif less:
            by = by if isinstance(by, int) and by == -(2**63) else -by

        def f(a: Scalar, c: Scalar, k: Scalar) -> Scalar:
            if dtype.is_floating_point:  # rounded once, as by PyTorch's vectors
                return ops.fma(c, k, a)
            return ops.add(a, ops.mul(c, k)) if less else scalar(a, ops.mul(c, k))

        return elementwise(f, (x, y, by), dtype, dtype, 2)

    return lower


lowering("aten.add")(_scaled(ops.add))
lowering("aten.sub")(_scaled(ops.sub))
lowering("aten.rsub")(_scaled(ops.sub, turned=True))


@lowering("aten.addcmul")
def addcmul(b: Build, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    """x + value * y * z."""
    compute = promote(x, y, z)
    if compute is torch.bool:
        raise CannotLower("products of truth values")

    def add(a: Scalar, c: Scalar, d: Scalar) -> Scalar:
        if compute.is_floating_point:  # rounded once: a product beyond the range may come back
            return ops.fma(c, d, a)
        return ops.add(a, ops.mul(c, d))

    if isinstance(value, Value) or value != 1:
        f = lambda a, c, d, k: add(a, ops.mul(k, c), d)  # noqa: E731
        return elementwise(f, (x, y, z, value), compute, compute, 3, (3,))
    return elementwise(add, (x, y, z), compute, compute, 2)


@lowering("aten.addcdiv")
def addcdiv(b: Build, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    """x + value * y / z."""
    compute = promote(x, y, z)
    if not compute.is_floating_point:
        raise CannotLower("integers")
    f = lambda a, c, d, k: ops.add(a, ops.div(ops.mul(k, c), d))  # noqa: E731
    return elementwise(f, (x, y, z, value), compute, compute, 3, (3,))


@lowering("aten.lerp")
def lerp(b: Build, x: Value, y: Value, weight: Any) -> Value:
    """x + weight * (y - x), from the end that is nearer."""

    def f(a: Any, c: Any, w: Any) -> Any:
        near = ops.lt(ops.abs(w), ops.constant(0.5, w.dtype))
        share = ops.where(near, w, ops.sub(w, ops.constant(1, w.dtype)))
        # Rounded once, as PyTorch's is: twice the largest number may come back.
        return ops.fma(share, ops.sub(c, a), ops.where(near, a, c))

    compute = promote(x, y, weight)
    of_fractions(x)
    return elementwise(f, (x, y, weight), compute, compute, 5, (2,))


def _whole(name: str) -> Callable[[Scalar, Scalar], Scalar]:
    """A division of integers, which reports a divisor of zero as PyTorch does."""

    def divide(a: Scalar, c: Scalar) -> Scalar:
        if not a.dtype.is_floating_point and not (c.op == "constant" and c.args[1].value):
            # The check's own value is 0: adding it makes the quotient wait for the check.
            bad = ops.where(ops.eq(c, 0), ops.constant(-1, torch.int64), 0)
            c = ops.add(c, ops.to(ops.index(ops.indirect(bad, 1, "division")), c.dtype))
        found: Scalar = getattr(ops, name)(a, c)
        return found

    return divide


def floor_divide_scalar(a: Scalar, c: Scalar, dtype: torch.dtype) -> Scalar:
    """PyTorch's floating floor division: exact where the quotient is close to an integer. Each step
    gives a number of `dtype`."""
    if not a.dtype.is_floating_point:
        return _whole("floor_div")(a, c)

    def step(name: str, *operands: Any) -> Scalar:
        found: Scalar = ops.rounded(getattr(ops, name)(*operands), dtype)
        return found

    m = step("fmod", a, c)
    q = step("div", step("sub", a, m), c)
    wrong_side = (ops.ne(m, 0.0)) & ops.ne(ops.lt(c, 0.0), ops.lt(m, 0.0))
    q = ops.where(wrong_side, step("sub", q, 1.0), q)
    f = ops.floor(q)
    f = ops.where(ops.gt(step("sub", q, f), 0.5), step("add", f, 1.0), f)
    quotient = step("div", a, c)
    f = ops.where(ops.ne(q, 0.0), f, ops.copysign(ops.constant(0.0, a.dtype), quotient))
    return ops.where(ops.eq(c, 0.0), quotient, f)


def _is_one_number(x: Any) -> bool:
    return not isinstance(x, Value) or x.numel() == 1


@lowering("aten.div", "aten.true_divide")
def div(b: Build, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    """x / y: true, toward zero or down."""
    compute = promote(x, y)
    if rounding_mode is None:
        compute = float_type(compute)
        return elementwise(ops.div, (x, y), compute, compute, 2, (1,))
    # Of 16-bit numbers by one number PyTorch computes in float32, by others in steps of 16 bits.
    step = compute_dtype(compute) if _is_one_number(y) else compute
    if rounding_mode == "floor":
        floor = lambda a, c: floor_divide_scalar(a, c, step)  # noqa: E731
        return elementwise(floor, (x, y), compute, compute, 8, (1,))
    if compute.is_floating_point:
        trunc = lambda a, c: ops.trunc(ops.rounded(ops.div(a, c), step))  # noqa: E731
        return elementwise(trunc, (x, y), compute, compute, 3, (1,))
    return elementwise(_whole("trunc_div"), (x, y), compute, compute, 4)


lowering("aten.floor_divide")(lambda b, x, y: div(b, x, y, rounding_mode="floor"))


def _rest(name: str) -> Callable[[Build, Any, Any], Value]:
    def lower(b: Build, x: Any, y: Any) -> Value:
        compute = promote(x, y)
        if compute is torch.bool:
            raise CannotLower(f"{name} of truth values")
        return elementwise(_whole(name), (x, y), compute, compute, 4)

    return lower


lowering("aten.remainder")(_rest("remainder"))  # with the sign of y
lowering("aten.fmod")(_rest("fmod"))  # with the sign of x


@lowering("aten.pow")
def pow_(b: Build, x: Any, y: Any) -> Value:
    """x to the y; small whole exponents become multiplications."""
    compute = promote(x, y)
    if compute is torch.bool:
        if not isinstance(y, bool):
            raise CannotLower("a power of truth values")
        return elementwise(lambda a, n: a | ~n, (x, y), compute, compute)
    if isinstance(x, Value) and isinstance(y, int | float) and not isinstance(y, bool):
        # Of float16 PyTorch has no such shortcut: -inf ** 0.5 is no NaN.
        if compute.is_floating_point and y in (0.5, -0.5) and compute is not torch.float16:
            return elementwise(ops.sqrt if y > 0 else ops.rsqrt, (x,), compute, compute, 2)
        # The reciprocal of a higher power is nothing where that overflows, and the power is not.
        if -2 <= y <= 4 and y == int(y) and (y >= 0 or compute.is_floating_point):
            return elementwise(lambda a: _power(a, int(y), compute), (x,), compute, compute, 2)
    if not compute.is_floating_point and isinstance(y, int) and y < 0:
        raise CannotLower("integer power with a negative exponent")
    return elementwise(ops.pow, (x, y), compute, compute, 12)


def _power(a: Scalar, n: int, dtype: torch.dtype) -> Scalar:
    """Of bfloat16 PyTorch multiplies for these, in steps of 16 bits; others it computes at once."""
    if n in (3, -2) and dtype is torch.bfloat16:
        square = ops.rounded(ops.mul(a, a), dtype)
        return ops.mul(square, a) if n == 3 else ops.reciprocal(square)
    return _wide_power(a, n)


def _wide_power(a: Scalar, n: int) -> Scalar:
    if n < 0:
        return ops.reciprocal(_wide_power(a, -n))
    if n == 0:
        return ops.constant(1, a.dtype)
    if n == 1:
        return a
    half = _wide_power(a, n // 2)
    square: Scalar = ops.mul(half, half)
    return ops.mul(square, a) if n % 2 else square


@lowering("aten.xlogy")
def xlogy(b: Build, x: Any, y: Any) -> Value:
    """x * log(y), 0 where x is 0 and y a number; of 16-bit numbers the logarithm is rounded too."""
    compute = float_type(promote(x, y))

    def f(a: Scalar, c: Scalar) -> Scalar:
        found = ops.mul(a, ops.rounded(ops.log(c), compute))
        return ops.where(ops.eq(a, 0.0) & ~ops.isnan(c), 0.0, found)

    return elementwise(f, (x, y), compute, compute, 6)


lowering("aten.logical_xor")(lambda b, x, y: elementwise(ops.ne, (x, y), torch.bool, torch.bool))


def _shift(name: str) -> Callable[[Build, Any, Any], Value]:
    def lower(b: Build, x: Any, y: Any) -> Value:
        compute = promote(x, y)
        if TABLE[compute].kind not in ("int", "uint"):
            raise CannotLower(f"shift of {compute}")
        return elementwise(getattr(ops, name), (x, y), compute, compute)

    return lower


lowering("aten.bitwise_left_shift", "aten.__lshift__")(_shift("lshift"))
lowering("aten.bitwise_right_shift", "aten.__rshift__")(_shift("rshift"))


def _classify(name: str) -> Callable[[Build, Value], Value]:
    def lower(b: Build, x: Value) -> Value:
        if not x.dtype.is_floating_point:
            if name == "signbit" and x.dtype is not torch.bool:
                return elementwise(lambda a: ops.lt(a, 0), (x,), x.dtype, torch.bool)
            return elementwise(lambda a: ops.constant(False, torch.bool), (x,), x.dtype, torch.bool)
        return elementwise(getattr(ops, name), (x,), x.dtype, torch.bool)

    return lower


for _name in ("isnan", "isinf", "signbit"):
    LOWERINGS[f"aten.{_name}"] = _classify(_name)


@lowering("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(b: Build, condition: Value, x: Any, y: Any) -> Value:
    """x where the condition holds, else y."""
    dtype = b.out.dtype
    promote(x, y)  # which PyTorch's kernel does, and a trace does not

    def f(c: Scalar, u: Scalar, v: Scalar) -> Scalar:
        return ops.where(ops.to(c, torch.bool), ops.to(u, dtype), ops.to(v, dtype))

    return elementwise(f, (condition, x, y), None, dtype)


@lowering("aten.clamp", "aten.clip")
def clamp(b: Build, x: Value, low: Any = None, high: Any = None) -> Value:
    """x kept between low and high; NaN stays."""
    compute = promote(x, low, high)
    low, high = b.fitting(low, compute), b.fitting(high, compute)
    # Of two zeros these give the second, and beside a number that the compiler knows the first. By
    # a number PyTorch's kernel leaves a zero as it is.
    changes = [is_run_time_number(bound) for bound in (low, high)]
    # A least number within a greatest one compiles to twice as many comparisons as this choice.
    apart = isinstance(low, int | float) and isinstance(high, int | float) and low <= high

    def f(a: Scalar, lo: Scalar | None, hi: Scalar | None) -> Scalar:
        if apart and compute.is_floating_point:
            return ops.where(ops.gt(a, hi), hi, ops.maximum(a, lo))
        if lo is not None:
            a = ops.maximum(lo, a) if changes[0] else ops.maximum(a, lo)
        if hi is not None:
            a = ops.minimum(hi, a) if changes[1] else ops.minimum(a, hi)
        return a

    return elementwise(f, (x, low, high), compute, compute, 2)


lowering("aten.clamp_min")(clamp)
lowering("aten.clamp_max")(lambda b, x, high: clamp(b, x, None, high))


lowering("aten.square")(
    lambda b, x: elementwise(lambda a: ops.mul(a, a), (x,), b.out.dtype, b.out.dtype)
)


@lowering("prims.fma")
def fma(b: Build, x: Value, y: Any, z: Any) -> Value:
    """x * y + z rounded once."""
    compute = promote(x, y, z)
    return elementwise(ops.fma, (x, y, z), compute, compute, 2)


@lowering("aten.angle")
def angle(b: Build, x: Value) -> Value:
    """0 for what is not negative, pi for what is; NaN stays."""
    dtype = float_type(x.dtype)  # whatever the dtype of `out=`

    def f(a: Scalar) -> Scalar:
        side = ops.where(ops.lt(a, 0), ops.constant(math.pi, dtype), ops.constant(0.0, dtype))
        return ops.where(ops.isnan(a), a, side) if a.dtype.is_floating_point else side

    return elementwise(f, (x,), x.dtype, dtype, 2)


@lowering("aten.frexp")
def frexp(b: Build, x: Value) -> list[Value]:
    """Mantissa and exponent."""
    return [
        elementwise(ops.mantissa, (x,), x.dtype, x.dtype, 4),
        elementwise(lambda a: ops.to(ops.exponent(a), torch.int32), (x,), x.dtype, torch.int32, 4),
    ]


@lowering("aten.polygamma")
def polygamma(b: Build, n: int, x: Value) -> Value:
    """The derivative of order n of digamma."""
    dtype = float_type(x.dtype)
    return elementwise(lambda a: ops.special_polygamma(float(n), a), (x,), dtype, dtype, 60)
