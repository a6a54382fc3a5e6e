"""Images made larger or smaller by the nearest of their elements.

PyTorch's decompositions do not keep the places of these within the image, which they leave where a
scale does not fit the size of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from torch_tenon.ops.composition_table import composition

aten = torch.ops.aten


def _nearest(exact: bool) -> Callable[..., Tensor]:
    """The nearest element by its beginning, or, if `exact`, by its middle."""

    def upsample(x: Tensor, output_size: Sequence[int], *scales: float | None) -> Tensor:
        scales = (*scales, *[None] * (len(output_size) - len(scales)))
        places: list[Any] = [None, None]
        for d, (count, scale) in enumerate(zip(output_size, scales, strict=True)):
            size = x.shape[2 + d]
            step = size / count
            if scale is not None and scale > 0:
                if not exact and _has_its_own_way(size, count, scale):
                    return NotImplemented
                step = 1 / scale
            numbers = torch.arange(count, dtype=torch.float32, device=x.device)
            place = ((numbers + 0.5 if exact else numbers) * step).to(torch.int64)
            place = place.clamp(max=size - 1)
            places.append(place.view(-1, *[1] * (len(output_size) - 1 - d)))
        found: Tensor = aten._unsafe_index(x, places)
        if x.dim() > 3:
            found = found.contiguous(memory_format=suggest_memory_format(x))
        return found

    return upsample


def _has_its_own_way(size: int, count: int, scale: float) -> bool:
    """Whether some of the CPU's kernels take no notice of a scale, since there are as many elements
    as there were, or twice as many."""
    return (scale != 1 and count == size) or (scale != 2 and count == 2 * size)


composition(
    aten.upsample_nearest1d.default,
    aten.upsample_nearest2d.default,
    aten.upsample_nearest3d.default,
)(_nearest(exact=False))
composition(
    aten._upsample_nearest_exact1d.default,
    aten._upsample_nearest_exact2d.default,
    aten._upsample_nearest_exact3d.default,
)(_nearest(exact=True))
