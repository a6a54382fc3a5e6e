"""Arithmetic with complex numbers, as arithmetic with their parts.

Everything takes `ops`, what records scalars (`ir/scalar.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def compute(ops: Any, name: str, operands: tuple[Any, ...]) -> Any:
    """An entry of `ir.scalar_ops.OPS` for complex operands. Raises TypeError for one that there is
    no formula for."""
    if name not in _FORMULAS:
        raise TypeError(f"{name}: not of complex numbers")
    return _FORMULAS[name](ops, *operands)


def by_parts(ops: Any, function: Callable[..., Any], *operands: Any) -> Any:
    """What treats both parts alike."""
    real, imag = ([part(x) for x in operands] for part in (ops.real, ops.imag))
    return ops.pair(function(*real), function(*imag))


def convert(ops: Any, x: Any, dtype: torch.dtype) -> Any:
    """`x` converted to `dtype`, of which one at least is complex. Raises TypeError for a complex
    number as a real one: who wants a part has to say which."""
    if dtype is torch.bool:
        return ops.ne(ops.real(x), 0.0) | ops.ne(ops.imag(x), 0.0)
    if not dtype.is_complex:
        raise TypeError(f"a complex number as {dtype}")
    part = dtype.to_real()
    if x.dtype.is_complex:
        return by_parts(ops, lambda a: ops.to(a, part), x)
    return ops.pair(ops.to(x, part), ops.constant(0.0, part))


def _mul(ops: Any, x: Any, y: Any) -> Any:
    a, b, c, d = ops.real(x), ops.imag(x), ops.real(y), ops.imag(y)
    return ops.pair(a * c - b * d, a * d + b * c)


def _div(ops: Any, x: Any, y: Any) -> Any:
    """By the divisor's smaller part as a share of the larger (Smith's way), so that no square
    overflows; what is divided by 0 has the parts of that."""
    a, b, c, d = ops.real(x), ops.imag(x), ops.real(y), ops.imag(y)
    real_leads = ops.ge(ops.abs(c), ops.abs(d))
    large, small = ops.where(real_leads, c, d), ops.where(real_leads, d, c)
    share = small / large
    by = ops.reciprocal(large + small * share)
    real = ops.where(real_leads, a + b * share, a * share + b)
    imag = ops.where(real_leads, b - a * share, b * share - a)
    zero = ops.eq(large, 0.0)
    return ops.pair(
        ops.where(zero, a / ops.abs(c), real * by), ops.where(zero, b / ops.abs(c), imag * by)
    )


def _eq(ops: Any, x: Any, y: Any) -> Any:
    return ops.eq(ops.real(x), ops.real(y)) & ops.eq(ops.imag(x), ops.imag(y))


_FORMULAS: dict[str, Callable[..., Any]] = {
    "add": lambda ops, x, y: by_parts(ops, ops.add, x, y),
    "sub": lambda ops, x, y: by_parts(ops, ops.sub, x, y),
    "neg": lambda ops, x: by_parts(ops, ops.neg, x),
    "mul": _mul,
    "div": _div,
    "reciprocal": lambda ops, x: _div(ops, ops.constant(1.0, x.dtype), x),
    "eq": _eq,
    "ne": lambda ops, x, y: ~_eq(ops, x, y),
    "isnan": lambda ops, x: ops.isnan(ops.real(x)) | ops.isnan(ops.imag(x)),
    "isinf": lambda ops, x: ops.isinf(ops.real(x)) | ops.isinf(ops.imag(x)),
}
