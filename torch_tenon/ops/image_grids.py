"""The places of an image's elements by an affine map, and the gradient of that.

PyTorch's own have a constant where a dimension has one element, which a trace does not take.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.traced import above_gradients

aten = torch.ops.aten
Ints = Sequence[int]


def _axes(x: Tensor, size: Ints, align_corners: bool) -> list[Tensor]:
    """The places of an image's elements along its dimensions, the last one first, as the CPU's
    kernel rounds them; with dimensions of 1 for those that come after."""
    found = []
    for k, count in enumerate(size[:1:-1]):
        if count <= 1:
            at = x.new_zeros(count)
        else:
            at = torch.linspace(-1, 1, count, dtype=x.dtype, device=x.device)
            at = at if align_corners else at * (count - 1) / count
        found.append(at.view(-1, *[1] * k))
    return found


@composition(aten.affine_grid_generator.default)
def affine_grid(theta: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """The places of an image's elements (N, ..., rank) by an affine map (N, rank, rank + 1)."""
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        return NotImplemented  # the CPU refuses it
    if not theta.is_floating_point():
        return NotImplemented  # the CPU's whole numbers round between its steps
    wide = torch.promote_types(theta.dtype, torch.float32)
    *columns, shift = (c.view(-1, *[1] * rank, rank) for c in theta.to(wide).unbind(-1))
    axes = _axes(theta, size, align_corners)
    products = [c * at.to(wide).unsqueeze(-1) for c, at in zip(columns, axes, strict=True)]
    return (sum(products[1:], products[0]) + shift).to(theta.dtype)


def affine_grid_backward(grad: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """The gradient of an affine map (N, rank, rank + 1) by that of the places (N, ..., rank)."""
    rank = len(size) - 2
    if rank not in (2, 3) or grad.shape != (size[0], *size[2:], rank):
        return NotImplemented
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    axes = [at.to(wide.dtype).unsqueeze(-1) for at in _axes(grad, size, align_corners)]
    places = list(range(1, rank + 1))
    columns = [(wide * at).sum(places) for at in axes]
    return torch.stack([*columns, wide.sum(places)], -1).to(grad.dtype)


above_gradients(aten.affine_grid_generator_backward.default, affine_grid_backward)


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
