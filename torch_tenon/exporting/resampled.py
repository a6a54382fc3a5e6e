"""Antialiased resizing for programs without PyTorch: a kernel takes the means along one dimension,
by weights that are computed once for all rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import upsample_compute_output_size

from torch_tenon.ops.antialiased import FILTERS, Window, resized_by, taken_mean, whole_weights
from torch_tenon.ops.kernel_file import load_kernels

aten = torch.ops.aten
# As an exported graph has them, which are composed of those of `FILTERS`.
_BY_FACTORS = {
    aten._upsample_bilinear2d_aa.vec: aten._upsample_bilinear2d_aa.default,
    aten._upsample_bicubic2d_aa.vec: aten._upsample_bicubic2d_aa.default,
}
RESAMPLED = (*FILTERS, *_BY_FACTORS)


def shape(x: Tensor, weights: Tensor, *rest: Tensor) -> Tensor:
    """What the ops make."""
    return x.new_empty(x.shape[0], weights.shape[0], x.shape[2])


@functools.cache
def _ops() -> dict[str, Callable[..., Tensor]]:
    found: dict[str, Any] = load_kernels(Path(__file__).with_name("resampled.yaml"))
    return found


def compositions() -> dict[Any, Callable[..., Tensor]]:
    """How images are resized, for a trace."""
    _ops()
    by_factors = {k: functools.partial(_by_factors, op) for k, op in _BY_FACTORS.items()}
    return resized_by(_mean) | by_factors


def _by_factors(
    op: Callable[..., Tensor],
    x: Tensor,
    output_size: Sequence[int] | None,
    align_corners: bool,
    factors: Sequence[float] | None,
) -> Tensor:
    sizes = upsample_compute_output_size(x.shape, output_size, factors)
    return op(x, sizes, align_corners, *(factors or (None, None)))


def _mean(x: Tensor, d: int, window: Window) -> Tensor:
    if x.dtype is torch.float64:
        return taken_mean(x, d, window)
    before, after = x.shape[:d], x.shape[d + 1 :]
    rows = x.contiguous().view(math.prod(before), x.shape[d], math.prod(after))
    first, end = window.first.view(-1), window.end.view(-1)
    if x.dtype is torch.uint8:
        weights, bits = whole_weights(window.weights)
        weights = weights.to(torch.int16)
        made = _ops()["tenon::resampled_bytes"](rows, weights, first, end, bits)
    else:
        made = _ops()["tenon::resampled"](rows, window.weights, first, end)
    return made.view(*before, made.shape[1], *after)
