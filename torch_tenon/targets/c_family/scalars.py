"""How the languages of C's family spell scalar operations and index expressions."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Atom, Div, Division, Index, Symbol, nonnegative
from torch_tenon.ir.scalar_ops import OPS, RANDOM_NUMBERS, REDUCTIONS
from torch_tenon.ir.values import neutral

# What C has no operator for is a function `name_dtype` of scalar.h.

# The C type of an element in memory; a number in a register has that of its compute dtype.
MEMORY = {
    torch.bool: "uint8_t",
    torch.uint8: "uint8_t",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "uint16_t",
    torch.bfloat16: "uint16_t",
    torch.complex64: "complex64_t",
    torch.complex128: "complex128_t",
}


def register_type(dtype: torch.dtype) -> str:
    """The C type of a scalar of `dtype` in a register."""
    return "bool_t" if dtype is torch.bool else MEMORY[dtype]


def rounded_to_memory(x: str, source: str, dtype: torch.dtype) -> str:
    """The element to store of `x`, which is `source` rounded to a 16-bit dtype."""
    return f"cut_bf16({x})" if dtype is torch.bfloat16 else to_memory(source, dtype)


def accumulator_type(dtype: torch.dtype) -> str:
    """The C type of what a reduction in `dtype` keeps: gcc has no vectors for one to a _Bool."""
    return "uint8_t" if dtype is torch.bool else MEMORY[dtype]


def literal(value: Any, dtype: torch.dtype) -> str:
    """A constant of `dtype`."""
    if dtype is torch.bool:
        return "1" if value else "0"
    if dtype.is_floating_point:
        if math.isnan(value):
            return f"({register_type(dtype)})NAN"
        if math.isinf(value):
            return f"({register_type(dtype)}){'-' if value < 0 else ''}INFINITY"
        if dtype is torch.float32:
            if abs(value) >= 3.4028235677973366e38:  # rounds to infinity
                return literal(math.copysign(math.inf, value), dtype)
            rounded = struct.unpack("f", struct.pack("f", value))[0]
            return f"{rounded!r}f" if rounded >= 0 and str(rounded)[0] != "-" else f"({rounded!r}f)"
        return repr(value) if str(value)[0] != "-" else f"({value!r})"
    if dtype is torch.int64:
        return f"INT64_C({value})" if value > -(2**63) else "INT64_MIN"
    if dtype is torch.uint64:
        return f"UINT64_C({value})"
    return f"({register_type(dtype)}){value}"


def operation(name: str, args: list[str], dtype: torch.dtype, source: torch.dtype) -> str:
    """An expression for an entry of `ir.scalar_ops.OPS` or `RANDOM_NUMBERS`; `source` is the
    operands' dtype."""
    if name in RANDOM_NUMBERS:
        return f"{name}_{TABLE[dtype].short}({', '.join(args)})"
    op = OPS.get(name)  # none of what is recorded by functions of its own: a pair, and its parts
    sign = op and ((source is torch.bool and op.bool_sign) or op.sign)
    if op and sign:
        text = f"{args[0]} {sign} {args[1]}" if op.arity == 2 else f"{sign}{args[0]}"
    elif name == "abs" and not source.is_floating_point:
        if TABLE[source].kind in ("uint", "bool"):
            return args[0]
        text = f"{args[0]} < 0 ? -{args[0]} : {args[0]}"
    else:
        return f"{name}_{TABLE[source].short}({', '.join(args)})"
    narrow = dtype.itemsize < 4 and dtype is not torch.bool
    return f"({register_type(dtype)})({text})" if narrow else text


def filling(name: str, dtype: torch.dtype) -> str:
    """The function that fills an array with an entry of `RANDOM_NUMBERS`."""
    return f"{name}_fill_{TABLE[dtype].short}"


def convert(x: str, dtype: torch.dtype, source: torch.dtype) -> str:
    """A conversion between register dtypes."""
    if dtype is torch.bool:
        return f"{x} != 0"
    if source.is_floating_point and not dtype.is_floating_point:
        # What PyTorch's casts do: through a wide signed integer, then cut.
        via = "i32" if dtype in (torch.int8, torch.int16, torch.int32) else "i64"
        whole = f"({register_type(dtype)})whole_{via}_{TABLE[source].short}({x})"
        return f"{x} >= 0x1p63 ? (uint64_t){x} : {whole}" if dtype is torch.uint64 else whole
    if source is torch.bool and dtype.is_floating_point:
        # gcc has no vectors for the cast of a comparison.
        return f"{x} ? {literal(1.0, dtype)} : {literal(0.0, dtype)}"
    if source is torch.int64 and dtype.is_floating_point:
        return f"{TABLE[dtype].short}_of_i64({x})"
    return f"({register_type(dtype)}){x}"


def bitcast(x: str, dtype: torch.dtype, source: torch.dtype) -> str:
    """The bits of a register value as another dtype of the same width."""
    if source.is_floating_point:
        x = f"bits_i{8 * source.itemsize}({x})"
    if dtype.is_floating_point:
        return f"bits_{TABLE[dtype].short}({x})"
    return f"({register_type(dtype)}){x}"


def from_memory(x: str, dtype: torch.dtype) -> str:
    """A loaded element as a register value."""
    if dtype is torch.bool:
        return f"{x} != 0"
    return f"from_{TABLE[dtype].short}({x})" if TABLE[dtype].compute is not dtype else x


def to_memory(x: str, dtype: torch.dtype) -> str:
    """A register value as an element to store."""
    return f"to_{TABLE[dtype].short}({x})" if TABLE[dtype].compute is not dtype else x


def identity(combine: str, dtype: torch.dtype) -> str:
    """What a reduction starts from."""
    return literal(neutral(combine, dtype), dtype)


def combination(combine: str, acc: str, x: str, dtype: torch.dtype) -> str:
    """`acc` combined with `x`."""
    sign = infix(combine, dtype)
    if sign:
        text = f"{acc} {sign} {x}"
        narrow = dtype.itemsize < 4 and dtype is not torch.bool
        return f"({register_type(dtype)})({text})" if narrow else text
    name = REDUCTIONS[combine].op or combine
    return f"{name}_{TABLE[dtype].short}({x}, {acc})"


def infix(combine: str, dtype: torch.dtype) -> str:
    """The operator of a reduction that C has one for."""
    reduction = REDUCTIONS[combine]
    return (dtype is torch.bool and reduction.bool_sign) or reduction.sign


def spell(e: Index, name: Callable[[Symbol], str]) -> str:
    """`e` in C, with `name` giving the spelling of a symbol; 64-bit arithmetic is assumed."""
    if isinstance(e, int):
        return str(e)
    parts: list[str] = []
    for monomial, k in sorted(e.terms.items(), key=lambda t: not t[0]):
        factors = [_spell_atom(a, name) for a in monomial]
        if not factors or abs(k) != 1:
            factors.append(str(abs(k)))
        sign = "-" if k < 0 else "+"
        parts.append(f"{sign} {'*'.join(factors)}" if parts or k < 0 else "*".join(factors))
    return " ".join(parts)


def _spell_atom(atom: Atom, name: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name(atom)
    assert isinstance(atom, Division)
    top, bottom = spell(atom.numerator, name), spell(atom.divisor, name)
    if nonnegative(atom.numerator):
        return f"(({top}) {'/' if isinstance(atom, Div) else '%'} ({bottom}))"
    return f"{'floor_div' if isinstance(atom, Div) else 'floor_mod'}_i64({top}, {bottom})"
