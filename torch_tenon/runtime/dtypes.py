"""What dtypes are called, without PyTorch."""

from __future__ import annotations

# By PyTorch's numbers (`c10::ScalarType`), as csrc/runtime/layout.cpp has them.
NAMES = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16"),
    *("quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16"),
    *("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"),
    *("uint16", "uint32", "uint64"),
    *(f"uint{k}" for k in range(1, 8)),
    *(f"int{k}" for k in range(1, 8)),
    *("float8_e8m0fnu", "float4_e2m1fn_x2"),
)
NUMBERS = {name: number for number, name in enumerate(NAMES)}


def dtype_name(number: int) -> str:
    """What PyTorch and NumPy call a dtype."""
    return NAMES[number] if 0 <= number < len(NAMES) else f"dtype {number}"
