"""The places of an image's elements by an affine map, and the gradient of that.

PyTorch's own have a constant where a dimension has one element, which a trace does not take.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.progressions import linspace
from torch_tenon.ops.traced import above_gradients

aten = torch.ops.aten
Ints = Sequence[int]


def _axes(x: Tensor, size: Ints, align_corners: bool) -> list[Tensor] | None:
    """The places of an image's elements along its dimensions, the last one first, as the CPU's
    kernel rounds them; with dimensions of 1 for those that come after. None where such steps are
    the kernel's alone."""
    found = []
    for k, count in enumerate(size[:1:-1]):
        if count <= 1:
            at = x.new_zeros(count)
        else:
            # Not PyTorch's, whose number of steps is no size of any value.
            at = linspace(-1, 1, count, dtype=x.dtype, device=x.device)
            if at is NotImplemented:
                return None
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
    if axes is None:
        return NotImplemented
    products = [c * at.to(wide).unsqueeze(-1) for c, at in zip(columns, axes, strict=True)]
    return (sum(products[1:], products[0]) + shift).to(theta.dtype)


def affine_grid_backward(grad: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """The gradient of an affine map (N, rank, rank + 1) by that of the places (N, ..., rank)."""
    rank = len(size) - 2
    if rank not in (2, 3) or grad.shape != (size[0], *size[2:], rank):
        return NotImplemented
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    found = _axes(grad, size, align_corners)
    if found is None:
        return NotImplemented
    axes = [at.to(wide.dtype).unsqueeze(-1) for at in found]
    places = list(range(1, rank + 1))
    columns = [(wide * at).sum(places) for at in axes]
    return torch.stack([*columns, wide.sum(places)], -1).to(grad.dtype)


above_gradients(aten.affine_grid_generator_backward.default, affine_grid_backward)
