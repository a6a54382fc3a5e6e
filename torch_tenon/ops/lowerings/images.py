"""Convolution of images whose channels are dense in memory, for exported programs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch_tenon.ir.index import Index, product
from torch_tenon.ir.program import Places
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Lazy, Position, Stored, Value, reshape
from torch_tenon.ops.lowerings.pooling import with_border
from torch_tenon.ops.lowerings.table import Build, elementwise, lowering

Ints = Sequence[int]
FEWEST_CHANNELS = 16  # of which a run is long enough to be multiplied on its own


@lowering("tenon.convolve_by_channel")
def convolve_by_channel(
    b: Build,
    images: Value,
    weights: Value,
    bias: Value | None,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    depthwise: bool,
) -> Value:
    """The places (N, A, H, W) that images (N, B, H, W) convolve to.

    Weights are in panels (see `Matmul`), or (H, W, B) of the kernel where each channel is convolved
    on its own (`depthwise`).
    """
    few = images.sizes[1]
    short = isinstance(few, int) and few < FEWEST_CHANNELS
    if any(padding) and (depthwise or short):
        # Loops and short runs gain more from zeros in memory than they cost.
        images, padding = with_border(b, images, padding, 0), (0, 0)
    image = _by_channel(b, images)
    n, channels, *places = b.out.sizes
    if depthwise:
        y = _each(image, weights, b.out.sizes, (kernel, stride, dilation))
    else:
        right = b.program.realise(weights)
        one = all(k == 1 for k in (*kernel, *stride)) and not any(padding)
        left, shape = image, tuple(places)
        rows = reshape(image, (n, image.sizes[1], 1, product(places))) if one else None
        if isinstance(rows, Stored):  # all places are one row
            left, shape = rows, (1, product(places))
        where = Places(shape, *(tuple(v) for v in (kernel, stride, padding, dilation)))
        found = b.program.matmul(left, right, (n, product(places), channels), places=where)
        h, w = places
        steps = (channels * h * w, 1, w * channels, channels)
        b.program.by_channel.add(found.buffer.storage)
        y = Stored(found.buffer, Layout(b.out.sizes, steps))
    if bias is None:
        return y
    return elementwise(ops.add, (y, reshape(bias, (channels, 1, 1))), y.dtype, y.dtype)


def _by_channel(b: Build, x: Value) -> Stored:
    """The images in memory, where channels are dense."""
    if isinstance(x, Lazy) and x.realised is None:
        x.realised = b.program.copy_by_channel(x)
        x.cost, x.depth, x.reads = 0, 0, x.realised.reads
        return x.realised
    stored = b.program.realise(x)
    if stored.layout.strides[1] == 1:
        return stored
    return b.program.copy_by_channel(stored)


def _each(x: Stored, weights: Value, sizes: Sequence[Index], how: tuple[Ints, ...]) -> Value:
    """Every channel convolved with weights of its own."""
    kernel, stride, dilation = how
    numbers = list(itertools.product(*map(range, kernel)))

    def factors(p: Position, k: Ints) -> tuple[Scalar, Scalar]:
        at = [o * s + i * d for o, s, i, d in zip(p[2:], stride, k, dilation, strict=True)]
        return x.load([*p[:2], *at]), weights.load([*k, p[1]])

    def body(p: Position) -> Scalar:
        total: Scalar = ops.mul(*factors(p, numbers[0]))
        for k in numbers[1:]:
            total = ops.multiply_add(*factors(p, k), total)
        return total

    return Lazy(sizes, x.dtype, body, (x, weights), 4 * len(numbers))
