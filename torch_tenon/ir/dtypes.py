"""The dtypes that loops compute with, and how each is held in memory and in registers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DType:
    """A dtype of PyTorch as loops see it.

    `compute` is the dtype that arithmetic is done in, which differs for the 16-bit floating dtypes
    only; that of complex numbers is done in their `part`.
    """

    dtype: torch.dtype
    short: str
    itemsize: int
    compute: torch.dtype
    kind: str  # "bool", "int", "uint", "float" or "complex"

    @property
    def part(self) -> torch.dtype:
        """The dtype of a complex number's real and imaginary part."""
        return self.dtype.to_real()


def _entry(dtype: torch.dtype, short: str, kind: str, compute: object = None) -> DType:
    wide = compute if isinstance(compute, torch.dtype) else dtype
    return DType(dtype, short, dtype.itemsize, wide, kind)


class NoLoops(Exception):
    """There are no loops: over a dtype, or into what has no elements."""


class _Table(dict[torch.dtype, DType]):
    """The dtypes that loops have. Raises NoLoops for another one."""

    def __missing__(self, dtype: torch.dtype) -> DType:
        raise NoLoops(f"no loops over {dtype}")


TABLE: dict[torch.dtype, DType] = _Table(
    (d.dtype, d)
    for d in (
        _entry(torch.bool, "bool", "bool"),
        _entry(torch.uint8, "u8", "uint"),
        _entry(torch.int8, "i8", "int"),
        _entry(torch.int16, "i16", "int"),
        _entry(torch.int32, "i32", "int"),
        _entry(torch.int64, "i64", "int"),
        _entry(torch.uint16, "u16", "uint"),
        _entry(torch.uint32, "u32", "uint"),
        _entry(torch.uint64, "u64", "uint"),
        _entry(torch.float32, "f32", "float"),
        _entry(torch.float64, "f64", "float"),
        _entry(torch.float16, "f16", "float", torch.float32),
        _entry(torch.bfloat16, "bf16", "float", torch.float32),
        _entry(torch.complex64, "c64", "complex"),
        _entry(torch.complex128, "c128", "complex"),
    )
)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` have in registers (float32 for the 16-bit floats)."""
    return TABLE[dtype].compute
