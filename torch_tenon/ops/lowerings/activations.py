"""Activations: what a layer does to each number, and gradients of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torch_tenon.ir.index import Index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Stored, Value
from torch_tenon.ops.lowerings.pointwise import clamp
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    elementwise,
    is_run_time_number,
    lowering,
    of_fractions,
    promote,
)


@lowering("aten.relu")
def relu(b: Build, x: Value) -> Value:
    """x where it is positive, else 0."""
    if x.dtype is torch.bool:
        raise CannotLower("the positive part of a truth value")
    return clamp(b, x, 0)


@lowering("aten.hardtanh")
def hardtanh(b: Build, x: Value, low: Any = -1, high: Any = 1) -> Value:
    """x kept between two numbers."""
    return clamp(b, x, *((low, high) if x.dtype.is_floating_point else (int(low), int(high))))


@lowering("aten.threshold_backward")
def threshold_backward(b: Build, g: Value, x: Value, limit: Any) -> Value:
    """g, but nothing where x does not exceed the limit; also the gradient of relu."""
    return elementwise(
        lambda g, a, k, none: ops.where(ops.le(a, k), none, g),
        (g, x, limit, 0),
        promote(g, x),
        b.out.dtype,
        wide=(2,),
    )


@lowering("aten.threshold")
def threshold(b: Build, x: Value, limit: Any, value: Any) -> Value:
    """The value where x is at most the limit; for whole numbers both are whole."""
    if x.dtype is torch.bool:
        raise CannotLower("a threshold of truth values")
    if not x.dtype.is_floating_point:
        limit, value = (k if isinstance(k, Value) else int(k) for k in (limit, value))
    f = lambda a, k, v: ops.where(ops.le(a, k), v, a)  # noqa: E731
    return elementwise(f, (x, limit, value), x.dtype, x.dtype, wide=(1,))


@lowering("aten.leaky_relu")
def leaky_relu(b: Build, x: Value, slope: Any = 0.01) -> Value:
    """x, times the slope where negative."""
    f = lambda a, k: ops.where(ops.gt(a, 0), a, ops.mul(a, k))  # noqa: E731
    return elementwise(f, (x, slope), x.dtype, x.dtype, 2, (1,))


@lowering("aten.leaky_relu_backward")
def leaky_relu_backward(b: Build, g: Value, x: Value, slope: Any, is_result: bool) -> Value:
    """The gradient of leaky_relu by its input, or by its result, which a slope below 0 hides."""
    dtype = promote(g, x)
    if not dtype.is_floating_point:
        raise CannotLower(f"a gradient of {dtype}")
    if is_result and (is_run_time_number(slope) or not slope >= 0):
        raise CannotLower("a result of a slope that may be negative")
    f = lambda d, a, k: ops.where(ops.gt(a, 0), d, ops.mul(d, k))  # noqa: E731
    return elementwise(f, (g, x, slope), dtype, dtype, 2, (2,))


@lowering("aten.elu")
def elu(b: Build, x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    """x, and alpha * (exp(x) - 1) where negative; scaled. A zero keeps its sign."""

    def f(a: Scalar, k: Scalar, s: Scalar, i: Scalar) -> Scalar:
        negative = ops.mul(ops.expm1(ops.mul(a, i)), ops.mul(k, s))
        return ops.where(ops.lt(a, 0), negative, ops.mul(a, s))

    return elementwise(f, (x, alpha, scale, input_scale), x.dtype, x.dtype, 6, (1, 2, 3))


@functools.cache
def _gelu_of_infinity(dtype: torch.dtype) -> float:
    """What the host's kernel makes of it."""
    with _disable_current_modes():
        many = torch.full((64,), math.inf, dtype=dtype, device="cpu")
        return torch.nn.functional.gelu(many)[0].item()


def _is_in_order(sizes: Sequence[Index], strides: Sequence[Index]) -> bool:
    usual = Layout.contiguous(sizes).strides
    return all(n == 1 or a == b for n, a, b in zip(sizes, strides, usual, strict=True))


@lowering("aten.gelu")
def gelu(b: Build, x: Value, *, approximate: str = "none") -> Value:
    """x times the normal distribution's cumulative function, or its tanh approximation.

    Of infinity the host's kernel makes NaN where it is a library's, which is for numbers in order.
    """
    of_fractions(x)
    in_order = _is_in_order(x.sizes, b.out.strides)
    if isinstance(x, Stored):
        in_order = in_order and _is_in_order(x.sizes, x.layout.strides)
    loses_infinity = in_order and x.numel() != 1 and math.isnan(_gelu_of_infinity(x.dtype))

    def exact(a: Scalar) -> Scalar:
        y = ops.mul(ops.mul(a, 0.5), ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0))
        return ops.where(ops.isinf(a), math.nan, y) if loses_infinity else y

    def tanh(a: Scalar) -> Scalar:
        cube = ops.mul(ops.mul(a, a), a)
        inner = ops.mul(ops.add(a, ops.mul(cube, 0.044715)), math.sqrt(2 / math.pi))
        return ops.mul(ops.mul(a, 0.5), ops.add(ops.tanh(inner), 1.0))

    return elementwise(exact if approximate == "none" else tanh, (x,), x.dtype, x.dtype, 6)


@lowering("aten.gelu_backward")
def gelu_backward(b: Build, g: Value, x: Value, *, approximate: str = "none") -> Value:
    """The gradient of gelu."""
    if approximate not in ("none", "tanh"):
        raise CannotLower("a form that PyTorch's kernel refuses")
    of_fractions(x)

    def exact(d: Scalar, a: Scalar) -> Scalar:
        cdf = ops.mul(ops.add(ops.erf(ops.mul(a, math.sqrt(0.5))), 1.0), 0.5)
        pdf = ops.mul(ops.exp(ops.mul(ops.mul(a, a), -0.5)), 1 / math.sqrt(2 * math.pi))
        return ops.mul(d, ops.add(cdf, ops.mul(a, pdf)))

    def tanh(d: Scalar, a: Scalar) -> Scalar:
        k = math.sqrt(2 / math.pi)
        square = ops.mul(a, a)
        t = ops.tanh(ops.mul(ops.add(a, ops.mul(ops.mul(square, a), 0.044715)), k))
        left = ops.mul(ops.add(t, 1.0), 0.5)
        slope = ops.mul(ops.add(ops.mul(square, 3 * 0.044715), 1.0), k)
        right = ops.mul(ops.mul(ops.mul(a, 0.5), ops.sub(1.0, ops.mul(t, t))), slope)
        return ops.mul(d, ops.add(left, right))

    dtype = promote(g, x)
    return elementwise(exact if approximate == "none" else tanh, (g, x), dtype, dtype, 14)


@lowering("aten.silu")
def silu(b: Build, x: Value) -> Value:
    """x times its sigmoid."""
    of_fractions(x, torch.complex64, torch.complex128)
    return elementwise(lambda a: ops.mul(a, ops.sigmoid(a)), (x,), x.dtype, x.dtype, 5)
