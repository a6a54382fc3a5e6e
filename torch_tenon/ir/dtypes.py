"""The dtypes that loops compute with, and how each is held in memory and in registers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DType:
    """A dtype of PyTorch as generated code sees it.

    `memory` is the C type of an element in memory; `compute` is the dtype that arithmetic is done
    in, which differs for the 16-bit floating dtypes only.
    """

    dtype: torch.dtype
    short: str
    memory: str
    itemsize: int
    compute: torch.dtype
    kind: str  # "bool", "int", "uint" or "float"


def _entry(dtype: torch.dtype, short: str, memory: str, kind: str, compute: object = None) -> DType:
    wide = compute if isinstance(compute, torch.dtype) else dtype
    return DType(dtype, short, memory, dtype.itemsize, wide, kind)


TABLE: dict[torch.dtype, DType] = {
    d.dtype: d
    for d in (
        _entry(torch.bool, "bool", "uint8_t", "bool"),
        _entry(torch.uint8, "u8", "uint8_t", "uint"),
        _entry(torch.int8, "i8", "int8_t", "int"),
        _entry(torch.int16, "i16", "int16_t", "int"),
        _entry(torch.int32, "i32", "int32_t", "int"),
        _entry(torch.int64, "i64", "int64_t", "int"),
        _entry(torch.uint16, "u16", "uint16_t", "uint"),
        _entry(torch.uint32, "u32", "uint32_t", "uint"),
        _entry(torch.uint64, "u64", "uint64_t", "uint"),
        _entry(torch.float32, "f32", "float", "float"),
        _entry(torch.float64, "f64", "double", "float"),
        _entry(torch.float16, "f16", "uint16_t", "float", torch.float32),
        _entry(torch.bfloat16, "bf16", "uint16_t", "float", torch.float32),
    )
}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` have in registers (float32 for the 16-bit floats)."""
    return TABLE[dtype].compute
