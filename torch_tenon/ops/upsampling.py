"""Images made larger or smaller, by the nearest of their elements or between two.

PyTorch's decompositions do not keep the places of these within the image, which they leave where a
scale does not fit the size of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import (
    upsample_bicubic2d_default,
    upsample_compute_output_size,
)
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.standalone import kernels_are_faster, standalone
from torch_tenon.ops.traced import above_gradients

aten = torch.ops.aten

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_MOST_BY_PIXEL = 128  # rows and columns of an image that the CPU's kernels compute pixel by pixel


def _nearest(exact: bool) -> Callable[..., Tensor]:
    """The nearest element by its beginning, or, if `exact`, by its middle."""

    def upsample(x: Tensor, output_size: Sequence[int], *scales: float | None) -> Tensor:
        if not x.dtype.is_floating_point and x.dtype is not torch.uint8:
            return NotImplemented  # the CPU refuses them
        if _is_nothing(x, output_size):
            return NotImplemented
        scales = (*scales, *[None] * (len(output_size) - len(scales)))
        places: list[Any] = [None, None]
        for d, (count, scale) in enumerate(zip(output_size, scales, strict=True)):
            size = x.shape[2 + d]
            step: Any = size / count
            if scale is not None and scale > 0:
                own = False if exact else _has_its_own_way(x, output_size, d, scale)
                if own is True:
                    return NotImplemented
                step = 1 / scale if own is False else torch.where(own, step, 1 / scale).float()
            numbers = torch.arange(count, dtype=torch.float32, device=x.device)
            place = ((numbers + 0.5 if exact else numbers) * step).to(torch.int64)
            place = place.clamp(max=size - 1)
            places.append(place.view(-1, *[1] * (len(output_size) - 1 - d)))
        found: Tensor = aten._unsafe_index(x, places)
        return found.contiguous(memory_format=suggest_memory_format(x))

    return upsample


def _is_nothing(x: Tensor, output_size: Sequence[int]) -> bool:
    """Whether images have no element, or come to have none: the CPU refuses both, but not a batch
    without any image."""
    return 0 in (*x.shape[1:], *output_size)


def _has_its_own_way(x: Tensor, output_size: Sequence[int], d: int, scale: float) -> bool | Tensor:
    """Whether some of the CPU's kernels take no notice of a scale, since there are as many elements
    as there were, or twice as many; a truth value that is computed where sizes do not tell."""
    size, count = x.shape[2 + d], output_size[d]
    same = False if scale == 1 else _are_equal(x, count, size)
    twice = False if scale == 2 else _are_equal(x, count, 2 * size)
    if same is True or twice is True:
        return True
    found = twice if same is False else same if twice is False else same | twice
    # Those kernels compute pixel by pixel.
    if found is False or _is_last(x):
        return found
    if x.dim() != 4:
        return False
    return found & (x.new_full((), sum(output_size), dtype=torch.int64) <= _MOST_BY_PIXEL)


def _is_last(x: Tensor) -> bool:
    """Whether there are more than three channels, in memory the last dimension."""
    form = _CHANNELS_LAST.get(x.dim())
    return form is not None and x.shape[1] > 3 and x.is_contiguous(memory_format=form)


def _are_equal(x: Tensor, a: int, b: int) -> bool | Tensor:
    """Whether two sizes are equal, as a tensor beside `x` where nobody knows yet."""
    if statically_known_true(a == b):
        return True
    if statically_known_true(a != b):
        return False
    return x.new_full((), a - b, dtype=torch.int64) == 0


def _linear(
    x: Tensor, output_size: Sequence[int], align_corners: bool, *scales: float | None
) -> Tensor:
    """Between the two elements on either side, along each dimension. Of 16-bit images all but some
    weights is float32. Whole numbers have an algorithm of their own."""
    if not x.dtype.is_floating_point or _is_nothing(x, output_size):
        return NotImplemented
    wide = torch.float64 if x.dtype is torch.float64 else torch.float32
    of_weights = x.dtype if _rounds_weights(x, output_size) else wide
    scales = (*scales, *[None] * (len(output_size) - len(scales)))
    sides: list[list[tuple[Tensor, Tensor | None]]] = []
    for d, (count, scale) in enumerate(zip(output_size, scales, strict=True)):
        place, size = torch.arange(count, device=x.device), x.shape[2 + d]
        by = scale if not align_corners and scale is not None and scale > 0 else None
        known = isinstance(size, int) and isinstance(count, int)
        # Of sizes of any value nobody asks where the step says it anyhow.
        same = _are_equal(x, size, count) if known or by not in (None, 1) else False
        if same is True:
            sides.append([(place, None)])
            continue
        # Of as many elements as there were, each is on both sides of itself.
        step_up: Any = 1
        if not known:
            step_up = (x.new_full((), count - size, dtype=torch.int64) != 0).to(torch.int64)
        if align_corners:
            at = place.to(wide) * ((size - 1) / (count - 1) if count > 1 else 0.0)
        else:
            step = size / count if by is None else 1 / by
            at = ((place.to(wide) + 0.5) * step - 0.5).clamp(min=0)
            at = at if same is False else torch.where(same, place.to(wide), at)
        low = at.to(torch.int64).clamp(max=size - 1)
        weight = (at - low).clamp(0, 1).to(of_weights)
        sides.append(
            [(low, (1 - weight).to(wide)), ((low + step_up).clamp(max=size - 1), weight.to(wide))]
        )

    def between(*places: Tensor) -> Tensor:
        d = len(places)
        if d == len(sides):
            return aten._unsafe_index(x, [None, None, *places]).to(wide)
        shape = (-1, *[1] * (len(sides) - 1 - d))
        parts = []
        for place, weight in sides[d]:
            part = between(*places, place.view(shape))
            # With a weight of 0 it counts a second time: infinities become NaN.
            parts += [part, part * 0] if weight is None else [part * weight.view(shape)]
        return sum(parts[1:], parts[0])

    found = between().to(x.dtype)
    return found.contiguous(memory_format=suggest_memory_format(x))


def _cubic(x: Tensor, output_size: Sequence[int], *arguments: Any) -> Tensor:
    """Between sixteen elements, by PyTorch's decomposition. Whole numbers have an algorithm of
    their own."""
    if not x.dtype.is_floating_point or _is_nothing(x, output_size):
        return NotImplemented
    found: Tensor = upsample_bicubic2d_default(x, output_size, *arguments)
    return found


def _rounds_weights(x: Tensor, output_size: Sequence[int]) -> bool:
    """Whether the CPU's kernel has weights in the image's dtype: the one that takes element by
    element, for images that are not channels last and larger ones of two dimensions."""
    if not all(isinstance(n, int) for n in (*x.shape, *output_size)):
        return False
    return not _is_last(x) and (x.dim() != 4 or sum(output_size) > _MOST_BY_PIXEL)


def _sized(op: Any) -> Callable[..., Tensor]:
    """The op where sizes or scales are a list, of which one may be None."""

    def upsample(x: Tensor, output_size: Sequence[int] | None, *arguments: Any) -> Tensor:
        *how, scales = arguments
        sizes = upsample_compute_output_size(x.size(), output_size, scales)
        found: Tensor = op(x, sizes, *how, *(scales or [None] * len(sizes)))
        return found

    return upsample


def _enter_lists(op: Any) -> None:
    """Enters the form of an op that takes lists, with sizes that PyTorch's trace computes."""
    above_gradients(op.vec, _sized(op.default))
    standalone(op.vec)(_sized(op.default))


def _gradient_of_any_size(op: Any, keeps_format: bool) -> None:
    """What the gradient's kernel makes of sizes of any value. PyTorch has that for some of these
    ops alone; for the others it wants sizes that are numbers."""

    def gradient(
        g: Tensor, output_size: Sequence[int], input_size: Sequence[int], *how: Any, **more: Any
    ) -> Tensor:
        if all(isinstance(n, int) for n in (*g.shape, *output_size, *input_size)):
            known: Tensor = op._op_dk(DispatchKey.Meta, g, output_size, input_size, *how, **more)
            return known
        found = g.new_empty(input_size)
        if keeps_format:
            found = found.contiguous(memory_format=suggest_memory_format(g))
        return found

    if DispatchKey.Meta not in op.py_kernels:
        op.py_impl(DispatchKey.Meta)(gradient)


def _where_kernels_are_slower(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """The function, in traces of devices whose memory PyTorch's kernels do not reach."""

    def run(*args: Any, **keywords: Any) -> Any:
        return NotImplemented if kernels_are_faster() else function(*args, **keywords)

    return run


for _exact, _name in ((False, "upsample_nearest"), (True, "_upsample_nearest_exact")):
    for _rank in (1, 2, 3):
        _op = getattr(aten, f"{_name}{_rank}d")
        composition(_op.default)(_nearest(_exact))
        above_gradients(_op.default, _where_kernels_are_slower(_nearest(_exact)))
        _enter_lists(_op)
        _gradient_of_any_size(getattr(aten, f"{_name}{_rank}d_backward").default, False)
for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    _op = getattr(aten, _name)
    composition(_op.default)(_linear)
    above_gradients(_op.default, _where_kernels_are_slower(_linear))
    _enter_lists(_op)
    _gradient_of_any_size(getattr(aten, f"{_name}_backward").default, "1d" not in _name)
_gradient_of_any_size(aten.upsample_bicubic2d_backward.default, False)
_gradient_of_any_size(aten._upsample_bicubic2d_aa_backward.default, False)
composition(aten.upsample_bicubic2d.default)(_cubic)
above_gradients(aten.upsample_bicubic2d.default, _where_kernels_are_slower(_cubic))
_enter_lists(aten.upsample_bicubic2d)
