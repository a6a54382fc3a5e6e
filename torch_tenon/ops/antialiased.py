"""Images resized with a filter against aliasing, for stand-alone programs: elsewhere PyTorch's
kernels are faster.

Each element is a weighted mean of the elements below a filter, as wide as the step between two
results where images become smaller. The method is that of Pillow's `resize`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from torch_tenon.ops.standalone import standalone

aten = torch.ops.aten
MOST_BITS = 22  # of a weight of bytes
Size = Any  # a number, or one that each run chooses


class Window(NamedTuple):
    """Which elements count for each result, from `first` to before `end` (count, 1), and how much:
    `weights` (count, taps)."""

    first: Tensor
    end: Tensor
    weights: Tensor


class _Filter(NamedTuple):
    """`weight` is by the distance from the middle, and 0 from `reach` on."""

    weight: Callable[[Tensor], Tensor]
    reach: int

    def over(
        self, step: Tensor, taps: Tensor, size: Size, count: Size, is_same: Tensor | None
    ) -> Window:
        """The windows of `count` results in the dtype of `step`, rounded as the CPU's kernel does;
        where `is_same`, each is its element."""
        dtype, wide = step.dtype, step.clamp(min=1)
        numbers = torch.arange(count, device=step.device)
        middle = (step.double() * (numbers.double().unsqueeze(1) + 0.5)).to(dtype)
        first = ((middle - self.reach * wide).double() + 0.5).to(torch.int64).clamp(min=0)
        end = ((middle + self.reach * wide).double() + 0.5).to(torch.int64).clamp(max=size)
        places = first + taps
        distance = ((places.to(dtype) - middle).double() + 0.5) * (1.0 / wide).double()
        weights = torch.where(places < end, self.weight(distance.to(dtype).abs()), 0)
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total == 0, 1, total)
        if is_same is not None:
            first = torch.where(is_same, numbers.unsqueeze(1), first)
            end = torch.where(is_same, first + 1, end)
            weights = torch.where(is_same, (taps == 0).to(dtype), weights)
        return Window(*(_stored(t) for t in (first, end, weights)))


def _stored(x: Tensor) -> Tensor:
    """x in memory: by its strides a tensor is read from there. Each pixel would compute it anew."""
    return x.as_strided(x.shape, x.stride())


def _triangle(x: Tensor) -> Tensor:
    return torch.where(x < 1, 1 - x, 0)


def _cubic(x: Tensor) -> Tensor:
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _resized(
    filter: _Filter,
    mean: Callable[[Tensor, int, Window], Tensor],
    x: Tensor,
    output_size: Sequence[Size],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """x (N, channels, H, W) in other sizes, rounded where the CPU's kernel rounds it. `mean` is
    taken along the columns, and then along the rows."""
    is_whole = x.dtype is torch.uint8
    if not (is_whole or x.dtype in (torch.float32, torch.float64)) or 0 in (*x.shape, *output_size):
        return NotImplemented
    if output_size[1] == 1:
        return NotImplemented  # of one column the CPU's kernel repeats the first row, or does not
    scales = (*scales, *[None] * (2 - len(scales)))
    found = x
    for d in (3, 2):
        size, count = x.shape[d], output_size[d - 2]
        scale = None if align_corners else scales[d - 2]
        is_same = None
        if not isinstance(size, int) or not isinstance(count, int):
            is_same = x.new_full((), size, dtype=torch.int64) == count
        elif size == count:  # the kernel leaves them as they are, whatever the scale
            continue
        like = x.new_zeros((), dtype=torch.float64 if is_whole else x.dtype)
        step = _step(like, size, count, align_corners, scale)
        if is_same is not None:
            step = torch.where(is_same, 1, step)
        taps = torch.arange(_most(size, count, align_corners, scale, filter), device=x.device)
        found = mean(found, d, filter.over(step, taps, size, count, is_same))
    kind = suggest_memory_format(x)
    return x.clone(memory_format=kind) if found is x else found.contiguous(memory_format=kind)


def taken_mean(x: Tensor, d: int, window: Window) -> Tensor:
    """The weighted means of x along a dimension."""
    places = window.first + torch.arange(window.weights.shape[1], device=x.device)
    is_below, weights = places < window.end, window.weights
    parts = aten._unsafe_index(x, [None] * d + [places.clamp(max=x.shape[d] - 1)])
    rank = x.dim() - 1 - d
    is_below, weights = (t.reshape(*t.shape, *[1] * rank) for t in (is_below, weights))
    if x.dtype is torch.uint8:
        rounded, bits = whole_weights(weights)
        total = (parts.to(torch.int32) * rounded).sum(d + 1)
        total = total + torch.bitwise_left_shift(torch.ones_like(bits), bits - 1)
        return torch.bitwise_right_shift(total, bits).clamp(0, 255).to(torch.uint8)
    # What lies beyond the filter counts as nothing, whatever it is.
    return torch.where(is_below, parts * weights, 0).sum(d + 1)


def whole_weights(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of bytes as whole numbers of int32, and how many bits are behind the point: as many
    as 16 have room for."""
    powers = torch.arange(1, MOST_BITS + 1, device=weights.device).double().exp2()
    bits = ((0.5 + weights.max() * powers).to(torch.int64) < 1 << 15).sum()
    scaled = weights * bits.double().exp2()
    return torch.where(scaled < 0, scaled - 0.5, scaled + 0.5).to(torch.int32), bits


def _step(x: Tensor, size: Size, count: Size, align_corners: bool, scale: float | None) -> Tensor:
    """How far results lie apart, in the dtype of the image, as the CPU's kernel rounds it."""
    if align_corners:
        if isinstance(count, int) and count < 2:
            return x.new_zeros(())
        return x.new_full((), size - 1) / x.new_full((), count - 1)
    if scale is not None and scale > 0:
        return x.new_full((), 1.0 / scale)
    return x.new_full((), size) / x.new_full((), count)


def _most(
    size: Size, count: Size, align_corners: bool, scale: float | None, filter: _Filter
) -> Size:
    """As many elements as a filter is over, or more."""
    if scale is not None and scale > 0:
        step: Size = math.ceil(1.0 / scale)
    elif align_corners:
        step = 1 if isinstance(count, int) and count < 2 else (size + count - 3) // (count - 1)
    else:
        step = (size + count - 1) // count
    return 2 * filter.reach * (max(step, 1) if isinstance(step, int) else step) + 1


FILTERS = {
    aten._upsample_bilinear2d_aa.default: _Filter(_triangle, 1),
    aten._upsample_bicubic2d_aa.default: _Filter(_cubic, 2),
}


def resized_by(mean: Callable[[Tensor, int, Window], Tensor]) -> dict[Any, Callable[..., Tensor]]:
    """How the ops are computed with a function that takes means along one dimension."""
    return {op: functools.partial(_resized, filter, mean) for op, filter in FILTERS.items()}


for _op, _function in resized_by(taken_mean).items():
    standalone(_op)(_function)
