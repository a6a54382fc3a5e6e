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

from torch_tenon.ir.scalar_ops import OPS

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
_CHOSEN = (1, 2)  # the operands that `where` chooses from
_SMALL_INTEGERS = (torch.bool, torch.uint8, torch.int8)  # of 8 bits at most, as a bfloat16 has


def exact_dtypes(op: str, args: tuple[Any, ...]) -> frozenset[torch.dtype]:
    """Of which 16-bit dtypes the result of a scalar operation is certainly a number."""
    # Whole parts are such numbers: one so large that its whole part might need more digits has no
    # fraction.
    operands = _CHOSEN if op == "where" else OPS[op].exact if op in OPS else ()
    if operands:
        first, *rest = operands
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


def has_plain_nan(op: str, args: tuple[Any, ...]) -> bool:
    """Whether a NaN that an operation gives certainly has zeros in the lower half of its float32
    bits, as those of arithmetic and of memory of bfloat16 have. One of float16 has three more."""
    if op == "where" and args[0].op == "isnan" and args[0].args[0] is args[2]:
        return bool(args[1].plain_nan)
    if op == "where" or (op in OPS and OPS[op].own_nan):
        return all(a.plain_nan for a in args if a.dtype.is_floating_point)
    if op == "load":
        buffer, _, mask, other = args
        return buffer.dtype is torch.bfloat16 and (mask is None or other.plain_nan)
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
