"""Ops that only stand-alone programs compose of others: elsewhere PyTorch's kernels are faster.

Each entry takes the op's arguments, as those of `compositions.py` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

STANDALONE: dict[Any, Callable[..., Any]] = {}
"""Overload -> the function that computes it."""

aten = torch.ops.aten


def standalone(*ops: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters a function for each of some overloads."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for op in ops:
            STANDALONE[op] = function
        return function

    return enter


def quantised(op: Any) -> Callable[..., Any] | None:
    """How an op of quantised graphs (`quantized_decomposed`, which PyTorch loads when asked) is
    computed with others: PyTorch has written it so, and keeps it whole in a trace."""
    key = DispatchKey.CompositeExplicitAutograd
    if op.namespace != "quantized_decomposed" or not op.has_kernel_for_dispatch_key(key):
        return None
    if str(op).startswith("quantized_decomposed.quantize_per_tensor.tensor"):
        return quantize_per_tensor
    if str(op).startswith("quantized_decomposed.dequantize_per_tensor.tensor"):
        return dequantize_per_tensor
    return lambda *args, **keywords: op._op_dk(key, *args, **keywords)


def quantize_per_tensor(
    x: Tensor, scale: Tensor, zero_point: Tensor, low: Any, high: Any, dtype: torch.dtype
) -> Tensor:
    """x (any shape) as multiples of a scale: PyTorch's own asks the host for the scale."""
    inverse = (1.0 / scale.double()).float()
    places = torch.round(x.float() * inverse) + zero_point
    return places.clamp(low, high).to(dtype)


def dequantize_per_tensor(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    low: Any,
    high: Any,
    *how: Any,
    out_dtype: Any = None,
) -> Tensor:
    """The numbers that multiples of a scale stand for."""
    dtype = torch.float32 if out_dtype is None else out_dtype
    return ((x.to(dtype) - zero_point) * scale).to(dtype)


# Products of weights of few bits


@standalone(aten._int_mm.default)
def int_mm(x: Tensor, y: Tensor) -> Tensor:
    """The product of matrices of bytes (M, K) and (K, N), in 32 bits."""
    return x.to(torch.int32) @ y.to(torch.int32)


@standalone(aten._weight_int8pack_mm.default)
def weight_int8pack_mm(x: Tensor, weights: Tensor, scales: Tensor) -> Tensor:
    """x (M, K) times the transpose of bytes (N, K), of which each row has a scale."""
    wide = x.float() @ weights.float().t()
    return (wide * scales.float()).to(x.dtype)


# Quantisation that is only pretended, as in training for it


def _pretended(x: Tensor, scale: Any, zero_point: Any, low: int, high: int) -> Any:
    places = torch.round(x.float() * (1.0 / scale)) + zero_point
    mask = (places >= low) & (places <= high)
    return ((places.clamp(low, high) - zero_point) * scale).to(x.dtype), mask


@standalone(aten.fake_quantize_per_tensor_affine_cachemask.default)
def fake_quantize_per_tensor(
    x: Tensor, scale: float, zero_point: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """x rounded to a multiple of the scale, of which there are `low` to `high`, and where it was
    among them (any shape)."""
    return _pretended(x, torch.full((), scale, device=x.device), zero_point, low, high)


@standalone(aten.fake_quantize_per_channel_affine_cachemask.default)
def fake_quantize_per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """The same with a scale and a zero for each slice along an axis."""
    sizes = [-1 if d == axis else 1 for d in range(x.dim())]
    return _pretended(x, scale.view(sizes), zero_point.view(sizes), low, high)
