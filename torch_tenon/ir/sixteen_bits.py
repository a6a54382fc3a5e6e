"""16-bit floats in registers, which are 32 bits wide: which scalars are such numbers as they are.

An element of a 16-bit tensor is a 16-bit number wherever it is read: a comparison, a conversion to
a whole number or a rounding decides on it as it would op by op. So each value of such a dtype ends
with `ops.rounded`, which records nothing for a scalar that is such a number already.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

import torch

ROUNDING = {torch.bfloat16: "round_bf16", torch.float16: "round_f16"}
# Faster where no NaN has digits that rounding would carry up, which could make an infinity of it.
OF_PLAIN_NAN = {torch.bfloat16: "round_plain_bf16"}
ROUNDINGS = {
    **{name: dtype for dtype, name in ROUNDING.items()},
    **{name: dtype for dtype, name in OF_PLAIN_NAN.items()},
}

_BOTH = frozenset(ROUNDING)
_NEITHER: frozenset[torch.dtype] = frozenset()
_ROUNDED = {name: frozenset((dtype,)) for name, dtype in ROUNDINGS.items()}
# What gives a 16-bit number where these operands are such numbers. Whole parts are: a number so
# large that its whole part might need more digits has no fraction.
_EXACT = {
    "neg": (0,),
    "abs": (0,),
    "copysign": (0,),
    "minimum": (0, 1),
    "maximum": (0, 1),
    "fmin": (0, 1),
    "fmax": (0, 1),
    "where": (1, 2),
    "floor": (0,),
    "ceil": (0,),
    "trunc": (0,),
    "round": (0,),
}
_SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8)  # of 8 bits at most, as a bfloat16 has


def exact_dtypes(op: str, args: tuple[Any, ...]) -> frozenset[torch.dtype]:
    """Of which 16-bit dtypes the result of a scalar operation is certainly a number."""
    if op in _EXACT:
        first, *rest = _EXACT[op]
        found: frozenset[torch.dtype] = args[first].exact
        for k in rest:
            found &= args[k].exact
        return found
    if op == "load":
        buffer, _, mask, other = args
        held = frozenset((buffer.dtype,)) & _BOTH
        return held if mask is None else held & other.exact
    if op == "constant":
        value = args[1].value
        return frozenset(d for d in _BOTH if math.isnan(value) or rounded_number(value, d) == value)
    if op == "sign" or (op == "to" and args[0].dtype in _SMALL_INTEGERS):
        return _BOTH
    return _ROUNDED.get(op, _NEITHER)


# What gives a NaN of its own or one of its operands'.
_ARITHMETIC = {"add", "sub", "mul", "div", "fma", "sqrt", "reciprocal", *_EXACT, *ROUNDINGS}


def has_plain_nan(op: str, args: tuple[Any, ...]) -> bool:
    """Whether a NaN that an operation gives certainly has zeros in the lower half of its float32
    bits, as those of arithmetic and of 16-bit memory have."""
    if op == "where" and args[0].op == "isnan" and args[0].args[0] is args[2]:
        return bool(args[1].plain_nan)
    if op in _ARITHMETIC:
        return all(a.plain_nan for a in args if a.dtype.is_floating_point)
    if op == "load":
        buffer, _, mask, other = args
        return buffer.dtype in _BOTH and (mask is None or other.plain_nan)
    if op == "to":
        return args[0].plain_nan or not args[0].dtype.is_floating_point
    return op == "constant"


def rounding_of(dtype: torch.dtype, plain_nan: bool) -> str:
    """The scalar operation that rounds to a 16-bit dtype."""
    return (OF_PLAIN_NAN.get(dtype) if plain_nan else None) or ROUNDING[dtype]


def rounded_number(value: float, dtype: torch.dtype) -> float:
    """A Python number as one of a 16-bit dtype, by way of float32 as PyTorch converts it."""
    value = ctypes.c_float(value).value
    if not math.isfinite(value):
        return value
    if dtype is torch.float16:
        try:
            half: float = struct.unpack("e", struct.pack("e", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
        return half
    (bits,) = struct.unpack("I", struct.pack("f", value))
    bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
    found: float = struct.unpack("f", struct.pack("I", bits))[0]
    return found
