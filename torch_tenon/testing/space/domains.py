"""What numbers there are: the whole domain of arguments that are no tensors, and tensors' data.

The first of each list is the simplest, which is what a failing call is made to have.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from hypothesis import strategies as st

from torch_tenon import device

FLOATS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
COMPLEX_OF = {"float32": "complex64", "float64": "complex128", "float16": "complex32"}
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64")
DTYPES = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "int16", "int8", "uint8",
          "bool", "complex64", "complex128", "uint16", "uint32", "uint64")  # fmt: skip

# Dtypes that few ops take: most move their numbers or convert them.
RARE = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
        "complex32")  # fmt: skip

# Ops of whole numbers alone.
OF_WHOLE = frozenset(
    (
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "gcd", "lcm"),
        *("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__"),
        *("__and__", "__or__", "__xor__"),
    )
)
# Ops whose `out` has to be of truth values, or of int64.
TO_TRUTH = frozenset(
    ("all", "any", "isin", "isinf", "isnan", "isfinite", "isneginf", "isposinf", "signbit")
)
TO_PLACES = frozenset(
    (
        *("argmax", "argmin", "argsort", "multinomial", "nonzero_static"),
        *("bucketize", "searchsorted", "count_nonzero"),
    )
)

inf, nan = float("inf"), float("nan")

# Sizes, by how often they are met.
SIZES = (2, 3, 1, 4, 5, 7, 8, 0, 13, 16, 17, 32, 33, 64)

# Longer than any piece that a loop takes at once.
LONG = (129, 257, 1025)

_FLOATS = (0.0, 1.0, 2.0, -1.0, 0.5, 3.0, -0.0, 0.1, -2.5, 1.5, 2.5, 10.0, inf, -inf, nan, 100.7,
           1e-30, -1e30, 1e30)  # fmt: skip
_SPECIAL = (-0.0, inf, -inf, nan)
_INTS = (0, 1, 2, -1, 3, 5, 7, -2, 8, 100, 255, 256, -128, 127, 2**31 - 1, -(2**31), 2**31,
         2**53 + 1, 2**63 - 1, -(2**63))  # fmt: skip


@functools.cache
def palette_of(dtype: str) -> tuple[Any, ...]:
    """Numbers that a tensor of a dtype may hold."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind is torch.bool:
        return (True, False)
    if kind.is_complex:
        parts = (0.0, 1.0, -1.5, 2.0, -0.0, inf, nan)
        return tuple({"complex": [a, b]} for a in parts for b in parts)
    if kind.is_floating_point and kind.itemsize == 1:
        return (1.0, 2.0, 0.0, -1.0, 0.5, -0.0, 1.5, -2.5, nan, inf, 300.0, 1e-3)
    if kind.is_floating_point:
        limits = torch.finfo(kind)
        return (
            *(1.0, 2.0, 0.0, -1.0, 0.5, 3.0, -0.0, -2.5, 1.5, 2.5, -3.25, 10.0, 7.7, 0.1, 127.0),
            *(-129.0, 300.0, nan, inf, -inf, 1e-3, 88.0, 1000.5),
            limits.smallest_normal,
            *([limits.smallest_normal / 4] if _are_denormals_numbers() else []),
            *(limits.max, limits.min, limits.eps),
        )
    low, high = torch.iinfo(kind).min, torch.iinfo(kind).max
    wanted = (1, 2, 0, 3, -1, 5, 7, -2, 10, 100, high, low, high - 1, 255, 65)
    return tuple(x for x in wanted if low <= x <= high)


def is_number(x: Any) -> bool:
    """Whether an element is no NaN."""
    return not isinstance(x, float) or not math.isnan(x)


def is_moderate(x: Any) -> bool:
    """Whether an element's square is within float32's range, or it has none."""
    return not isinstance(x, float) or not math.isfinite(x) or abs(x) < 1e18


def _are_denormals_numbers() -> bool:
    """Whether the device tells them from 0, as its backend declares."""
    backend = device.backend()
    return backend is None or backend.capabilities.denormals


@functools.cache
def ordinary_of(dtype: str) -> tuple[Any, ...]:
    """Numbers beside which others are seen."""
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_complex:
        return tuple({"complex": [a, b]} for a in (0.5, 1.25, -1.5) for b in (0.75, -2.0, 3.0))
    if kind.is_floating_point:
        return (0.5, 1.25, -1.5, 2.0, 0.75, -0.3, 1.1, 2.6)
    return palette_of(dtype)[:2] if dtype == "bool" else (1, 2, 0, 3, 5, 4, 7)


@functools.cache
def numbers() -> st.SearchStrategy[Any]:
    """A number of any kind, for an argument that takes one (`Scalar`)."""
    return st.one_of(
        st.sampled_from((1, 2, 0, -1, 3)),
        st.sampled_from(_FLOATS),
        st.sampled_from(_SPECIAL),
        st.sampled_from(_INTS),
        st.booleans(),
        st.builds(
            lambda a, b: {"complex": [a, b]},
            st.sampled_from(_FLOATS[:8]),
            st.sampled_from((0.0, 1.0, -2.0, inf, nan)),
        ),
    )


@functools.cache
def floats() -> st.SearchStrategy[Any]:
    """A number for an argument of floats, which takes whole numbers and bools as well."""
    return st.one_of(
        st.sampled_from(_FLOATS[:8]),
        st.sampled_from(_FLOATS),
        st.sampled_from(_SPECIAL),
        st.sampled_from((0, 1, -1, True)),
    )


@functools.cache
def integers() -> st.SearchStrategy[int]:
    """A whole number that is no size."""
    return st.one_of(st.integers(-2, 5), st.sampled_from(_INTS), st.booleans())


# Strings that an argument of a name knows; one that none does comes beside them.
STRINGS = {
    "reduce": ("sum", "prod", "mean", "amax", "amin", "add", "multiply"),
    "rounding_mode": ("trunc", "floor"),
    "approximate": ("none", "tanh"),
    "side": ("left", "right"),
    "indexing": ("ij", "xy"),
    "padding": ("same", "valid"),
    "mode": ("reduced", "complete", "r"),
    "UPLO": ("L", "U"),
    "driver": ("gels", "gelsy", "gelsd", "gelss"),
}


@functools.cache
def strings(name: str) -> st.SearchStrategy[str]:
    """A string that an argument of this name knows, and now and then one that it does not."""
    known = STRINGS.get(name, ())
    unknown = st.sampled_from(("", "nearest", "Sum"))
    return st.one_of(st.sampled_from(known), unknown) if known else unknown
