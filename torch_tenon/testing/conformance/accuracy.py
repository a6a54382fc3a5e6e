"""Whether two results differ by rounding alone, judged by a third in double precision.

Two right algorithms for one op (a fused attention and its composition, sums in another order) may
differ by more than a tolerance that fits most ops. Then the CPU computes the result once more in
double precision, and the device has to be as near to that as the CPU is.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from .comparison import on_cpu

# How many times the CPU's own largest error the device's may be. Attention composed of matmul and
# softmax has up to 5.8 times the error of the CPU's fused kernel on the database's float32 inputs.
FACTOR = 8.0

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the judge computes what is of `dtype`."""
    return _WIDE.get(dtype, dtype)


def as_accurate(actual: Any, expected: Any, judge: Any) -> bool:
    """Whether every element of `actual` is as near to `judge` as `expected` is, leaf by leaf.

    Near means that the largest error is at most `FACTOR` times the largest of `expected`, plus the
    last rounding of the largest element. A judge from which `expected` is further than
    twice the square root of the dtype's precision has computed something else, and decides nothing.
    But where `judge` is 0 as `actual` is, `expected` may be what is left of numbers of size 1 that
    cancel.
    Where `judge` is not finite, `actual` has to be what `expected` is. Where `expected` alone is
    not, it overflowed on its way: `actual` is that, or within `FACTOR` roundings of `judge`.
    """
    leaves = [_leaves(value) for value in (actual, expected, judge)]
    if len({len(side) for side in leaves}) != 1:
        return False
    return all(map(_leaf_as_accurate, *leaves))


def _leaf_as_accurate(actual: Any, expected: Any, judge: Any) -> bool:
    if not isinstance(expected, torch.Tensor):
        return bool(actual == expected)
    if not isinstance(actual, torch.Tensor) or not isinstance(judge, torch.Tensor):
        return False
    dtype = expected.dtype
    actual, expected, judge = (_flat(tensor) for tensor in (actual, expected, judge))
    if not (actual.shape == expected.shape == judge.shape):
        return False
    finite = expected.isfinite() & judge.isfinite()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    if bool((same | finite).all()) and torch.equal(actual[finite], expected[finite]):
        return True
    if dtype not in _WIDE:
        return False
    eps = torch.finfo(dtype).eps
    near = judge.isfinite() & ((actual - judge).abs() <= FACTOR * eps * judge.abs())
    if not bool((same | near)[~finite].all()):
        return False
    if not bool(finite.any()):
        return True
    errors = [(side - judge)[finite].abs().max().item() for side in (actual, expected)]
    largest = judge[finite].abs().max().item()
    if max(errors[0], largest) <= eps * errors[1] and errors[1] <= 2 * math.sqrt(eps):
        return True
    if errors[1] > 2 * math.sqrt(eps) * largest:
        return False
    return errors[0] <= FACTOR * errors[1] + eps * largest


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    tensor = on_cpu(tensor)
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    return tensor.double().flatten()


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
