"""Numbers of 8 bits, decoded by arithmetic on their bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Stored, Value
from torch_tenon.ops.lowerings.table import CannotLower, cast


@dataclass(frozen=True)
class Format:
    """A sign, an exponent and `mantissa` bits of a number. With `is_ieee` the greatest exponent is
    that of infinity and NaN; with `is_unsigned_zero` NaN is what would be -0."""

    mantissa: int
    bias: int
    is_ieee: bool = False
    is_unsigned_zero: bool = False


FORMATS = {
    torch.float8_e4m3fn: Format(3, 7),
    torch.float8_e5m2: Format(2, 15, is_ieee=True),
    torch.float8_e4m3fnuz: Format(3, 8, is_unsigned_zero=True),
    torch.float8_e5m2fnuz: Format(2, 16, is_unsigned_zero=True),
}
POWERS = torch.float8_e8m0fnu  # of 2, without a sign


def is_float8(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of those decoded here."""
    return dtype in FORMATS or dtype is POWERS


def decode(x: Value, dtype: torch.dtype) -> Value:
    """Numbers of 8 bits (any shape) as those of a wider floating dtype.

    Raises CannotLower for another dtype, and for numbers that are not in memory.
    """
    if not isinstance(x, Stored) or not dtype.is_floating_point or dtype.itemsize == 1:
        raise CannotLower(f"no loops from {x.dtype} to {dtype}")
    stored = Stored(x.buffer.seen_as(torch.uint8), x.layout)

    def body(position: Position) -> Scalar:
        bits = ops.to(stored.load(position), torch.int32)
        return _power(bits) if x.dtype is POWERS else _number(bits, FORMATS[x.dtype])

    return cast(Lazy(x.sizes, torch.float32, body, (stored,), 8), dtype)


def _number(bits: Scalar, form: Format) -> Scalar:
    sign, size = ops.bitwise_and(bits, 128), ops.bitwise_and(bits, 127)
    shift = 23 - form.mantissa
    normal = _of_bits(ops.add(ops.lshift(size, shift), (127 - form.bias) << 23))
    unit = 2.0 ** (1 - form.bias - form.mantissa)
    small = ops.lt(size, 1 << form.mantissa)
    value = ops.where(small, ops.mul(ops.to(size, torch.float32), unit), normal)
    if form.is_ieee:
        infinity = 127 & -(1 << form.mantissa)
        value = ops.where(ops.ge(size, infinity), math.inf, value)
        value = ops.where(ops.gt(size, infinity), math.nan, value)
    elif form.is_unsigned_zero:
        value = ops.where(ops.eq(bits, 128), math.nan, value)
    else:
        value = ops.where(ops.eq(size, 127), math.nan, value)
    whole: Any = ops.bitwise_or(ops.bitcast(value, torch.int32), ops.lshift(sign, 24))
    return _of_bits(whole)


def _power(bits: Scalar) -> Scalar:
    value = ops.where(ops.eq(bits, 0), 2.0**-127, _of_bits(ops.lshift(bits, 23)))
    return ops.where(ops.eq(bits, 255), math.nan, value)


def _of_bits(bits: Scalar) -> Scalar:
    found: Scalar = ops.bitcast(bits, torch.float32)
    return found
