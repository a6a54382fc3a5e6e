"""The windows of an image as columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_tenon.ops.composition_table import composition

aten = torch.ops.aten
Ints = Sequence[int]


@composition(aten.im2col.default)
def im2col(x: Tensor, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Tensor:
    """The windows of an image (N, A, H, W) or (A, H, W) as columns: (N, A * kernel, windows).
    PyTorch's decomposition reads by indices that it computes, each of which would be checked."""
    given = (kernel, dilation, padding, stride)
    if x.dim() not in (3, 4) or any(len(n) != 2 for n in given) or 0 in x.shape:
        return NotImplemented
    if min(*kernel, *dilation, *stride) < 1 or min(padding) < 0:
        return NotImplemented
    if not (x.is_floating_point() or x.is_complex()):
        return NotImplemented  # the CPU's kernel has no whole numbers
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    if any(n + 2 * p < s for n, p, s in zip(x.shape[-2:], padding, spans, strict=True)):
        return NotImplemented
    padded = torch.constant_pad_nd(x, [padding[1], padding[1], padding[0], padding[0]])
    rows = padded.unfold(-2, spans[0], stride[0])[..., :: dilation[0]]
    windows = rows.unfold(-2, spans[1], stride[1])[..., :: dilation[1]]
    *lead, channels, down, across, _, _ = windows.shape
    inner = list(range(windows.dim() - 4))
    turned = windows.permute(*inner, -2, -1, -4, -3)
    # Where windows are views of the image, the result is one no more.
    own = turned.clone(memory_format=torch.contiguous_format)
    return own.view(*lead, channels * kernel[0] * kernel[1], down * across)
