"""Functions of complex numbers for stand-alone programs: elsewhere PyTorch's kernels compute them.

They are computed in float64, from their real and imaginary parts, with the infinities and zeros of
the math library's functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Value
from torch_tenon.ops.lowerings.complex_numbers import log_of_size, own
from torch_tenon.ops.lowerings.table import Build, CannotLower, elementwise, lowering

Parts = tuple[Scalar, Scalar]
FAR = 22.0  # from where on a hyperbolic tangent is 1 to the last bit


def _enter(*names: str) -> Callable[[Callable[[Scalar, Scalar], Parts]], Any]:
    """Enters a function of the parts in float64."""

    def enter(function: Callable[[Scalar, Scalar], Parts]) -> Any:
        def element(z: Scalar) -> Scalar:
            x, y = ops.real(z), ops.imag(z)
            found = function(ops.to(x, torch.float64), ops.to(y, torch.float64))
            made: Scalar = ops.pair(*(ops.to(part, x.dtype) for part in found))
            return made

        def lower(b: Build, x: Value) -> Value:
            if not b.program.standalone or not x.dtype.is_complex:
                raise CannotLower("complex numbers")
            return elementwise(element, (x,), None, b.out.dtype, 60)

        own(*names)(lower)
        return function

    return enter


@_enter("sqrt")
def sqrt(x: Scalar, y: Scalar) -> Parts:
    """The root in the right half of the plane."""
    a, b = ops.abs(x), ops.abs(y)
    largest = ops.maximum(a, b)
    # By powers of 4, so that neither the absolute value nor half of it is out of range.
    large, small = ops.gt(largest, 1e300), ops.lt(largest, 1e-290)
    scale = ops.where(large, 0.0625, ops.where(small, 2.0**108, _wide(1.0)))
    back = ops.where(large, 4.0, ops.where(small, 2.0**-54, _wide(1.0)))
    size = ops.mul(ops.hypot(a * scale, b * scale) + a * scale, 0.5)
    greater = ops.sqrt(size)
    less = ops.where(ops.eq(greater, 0.0), 0.0, ops.mul(b * scale, 0.5) / greater)
    is_right = ops.ge(x, 0.0)
    greater, less = greater * back, less * back
    real = ops.where(is_right, greater, less)
    imag = ops.copysign(ops.where(is_right, less, greater), y)
    # Of an endless part, whatever the other one is.
    endless, nothing = ops.eq(a, math.inf), b * 0.0
    real = ops.where(endless, ops.where(is_right, a, nothing), real)
    imag = ops.where(endless, ops.copysign(ops.where(is_right, nothing, a), y), imag)
    either = ops.eq(b, math.inf)
    nan = ops.isnan(x) & ~either
    real = ops.where(either, b, ops.where(nan, x, real))
    imag = ops.where(either, y, ops.where(nan, x, imag))
    return real, imag


def _wide(number: float) -> Scalar:
    found: Scalar = ops.constant(number, torch.float64)
    return found


def _times(a: Scalar, b: Scalar) -> Scalar:
    """A product in which 0 times what is endless is 0."""
    found: Scalar = ops.where(ops.eq(a, 0.0) & ops.isinf(b), a, a * b)
    return found


@_enter("sinh")
def sinh(x: Scalar, y: Scalar) -> Parts:
    cos = ops.cos(y)
    kept = ops.isnan(cos) & (ops.eq(x, 0.0) | ops.isinf(x))
    # The sign of what is endless is not defined: the math library has it so.
    real = ops.where(kept, ops.where(ops.eq(x, 0.0), x, ops.abs(x)), _times(cos, ops.sinh(x)))
    return real, ops.where(ops.eq(y, 0.0), y, _times(ops.sin(y), ops.cosh(x)))


@_enter("cosh")
def cosh(x: Scalar, y: Scalar) -> Parts:
    cos, sin = ops.cos(y), ops.sin(y)
    real = ops.where(ops.isnan(cos) & ops.isinf(x), ops.abs(x), _times(cos, ops.cosh(x)))
    nothing = (ops.eq(x, 0.0) & ops.isnan(sin)) | (ops.eq(y, 0.0) & ops.isnan(x))
    return real, ops.where(nothing, 0.0, _times(sin, ops.sinh(x)))


@_enter("tanh")
def tanh(x: Scalar, y: Scalar) -> Parts:
    """Kahan's formula; far from 0 the imaginary part is small."""
    t, s = ops.tan(y), ops.sinh(x)
    share = t * t + 1.0
    below = share * s * s + 1.0
    near = share * ops.sqrt(s * s + 1.0) * s / below, t / below
    far, endless = ops.gt(ops.abs(x), FAR), ops.isinf(x)
    rest = ops.sin(y) * ops.cos(y) * 4.0 * ops.exp(ops.mul(ops.abs(x), -2.0))
    rest = ops.where(endless, ops.copysign(_wide(0.0), ops.sin(y + y)), rest)
    real = ops.where(far, ops.copysign(_wide(1.0), x), near[0])
    # Of an angle that is endless or no number.
    real = ops.where(ops.isnan(t) & ~endless, ops.where(ops.eq(x, 0.0), x, t), real)
    return real, ops.where(ops.eq(y, 0.0), y, ops.where(far, rest, near[1]))


@_enter("sin")
def sin(x: Scalar, y: Scalar) -> Parts:
    real, imag = sinh(-y, x)  # of i times the number
    return imag, -real


@_enter("cos")
def cos(x: Scalar, y: Scalar) -> Parts:
    found: Parts = cosh(-y, x)
    return found


@_enter("tan")
def tan(x: Scalar, y: Scalar) -> Parts:
    real, imag = tanh(-y, x)
    return imag, -real


def _of_logarithm(factor: float) -> Callable[[Scalar, Scalar], Parts]:
    def function(x: Scalar, y: Scalar) -> Parts:
        return log_of_size(x, y) * factor, ops.atan2(y, x) * factor

    return function


_enter("log2")(_of_logarithm(1 / math.log(2)))
_enter("log10")(_of_logarithm(1 / math.log(10)))


@_enter("rsqrt")
def rsqrt(x: Scalar, y: Scalar) -> Parts:
    """By the larger part of the root, so that no square is out of range."""
    u, v = sqrt(x, y)
    is_real = ops.ge(ops.abs(u), ops.abs(v))
    large, small = ops.where(is_real, u, v), ops.where(is_real, v, u)
    share = small / large
    size = large + small * share
    first, second = ops.reciprocal(size), share / size
    real = ops.where(ops.eq(large, 0.0), math.inf, ops.where(is_real, first, second))
    return real, ops.sub(0.0, ops.where(is_real, second, first))


@lowering("aten._neg_view")
def neg_view(b: Build, x: Value) -> Value:
    """What a view says that is negative, as the imaginary part of a conjugate is."""
    if not b.program.standalone:
        raise CannotLower("a view that is negative")
    return elementwise(ops.neg, (x,), x.dtype, x.dtype)
