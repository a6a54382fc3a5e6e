"""Convolution and its backward as products of matrices, for targets without a kernel of their own.

A convolution relates images (N, B, *S) to places (N, A, *P): place o and number k of the kernel
meet at element o * stride - padding + k * dilation of the image. Its weights are (A, B / groups,
*K). Convolving goes from images to places, a transposed one from places to images, and the
backward of each goes the other way. The elements that each place meets are laid out as the columns
of a matrix, which the weights are multiplied with; where groups have one channel of an image each,
the sum over the kernel is written out instead.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Lazy, Position, Stored, Value, reshape, size_hint
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.pooling import LARGEST_WINDOW
from torch_tenon.ops.lowerings.reductions import reduce, shared
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    cast,
    elementwise,
    lowering,
)

Ints = Sequence[int]
MOST_COLUMNS = 1 << 28  # bytes of a matrix of columns


@dataclass
class _Convolution:
    """The sizes of a convolution; see above. A and B are its channels of places and of images."""

    build: Build
    dtype: torch.dtype
    images: tuple[Index, ...]
    places: tuple[Index, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def rank(self) -> int:
        """Dimensions of an image beside its channels."""
        return len(self.kernel)

    @property
    def wide(self) -> torch.dtype:
        """What sums are computed in."""
        return TABLE[self.dtype].compute

    @property
    def is_product(self) -> bool:
        """Whether the target multiplies matrices of such numbers."""
        backend = self.build.backend
        return backend is not None and self.dtype in backend.product_dtypes

    @property
    def takes_windows(self) -> bool:
        """Whether padded images, in memory, are multiplied as they are. Then loops read them too,
        which have no borders to look for."""
        backend = self.build.backend
        return backend is not None and backend.multiplies_windows

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one channel of an image."""
        return self.images[1] == self.groups and math.prod(self.kernel) <= LARGEST_WINDOW

    def met(
        self, places: Position, offset: Ints, padded: bool = False
    ) -> tuple[list[Index], Scalar]:
        """The element of an image that a place meets with a number of the kernel, and whether it
        is in the image: always, where that is `padded`."""
        inside = ops.constant(True, torch.bool)
        at: list[Index] = []
        for d, (o, k) in enumerate(zip(places, offset, strict=True)):
            i = o * self.stride[d] + k * self.dilation[d]
            if self.padding[d] and not padded:
                i = i - self.padding[d]
                n = self.images[2 + d]
                inside = inside & ops.ge(ops.index(i), 0) & ops.lt(ops.index(i), ops.index(n))
            at.append(i)
        return at, inside

    def meeting(self, image: Position, offset: Ints) -> tuple[list[Index], Scalar]:
        """The place that meets an element of an image with a number of the kernel, and whether
        there is one."""
        inside = ops.constant(True, torch.bool)
        at: list[Index] = []
        for d, (i, k) in enumerate(zip(image, offset, strict=True)):
            stride, before = self.stride[d], k * self.dilation[d]
            whole = -(-before // stride)  # so that what is divided is not negative
            distance = i + self.padding[d] - before + whole * stride
            o = distance // stride - whole
            if stride > 1:
                inside = inside & ops.eq(ops.index(distance % stride), 0)
            n = self.places[2 + d]
            inside = inside & ops.ge(ops.index(o), 0) & ops.lt(ops.index(o), ops.index(n))
            at.append(o)
        return at, inside

    def sum_over_kernel(
        self, sizes: Sequence[Index], reads: Value, element: Callable[[Any, Any], Scalar]
    ) -> Value:
        """`element` at each position for each number of the kernel, added up."""
        if math.prod(self.kernel) > LARGEST_WINDOW:
            return self.build.program.reduce(sizes, self.kernel, element, "sum", self.wide)
        numbers = list(itertools.product(*map(range, self.kernel)))

        def body(p: Position) -> Scalar:
            return functools.reduce(ops.add, [element(p, k) for k in numbers])

        return Lazy(sizes, self.wide, body, (reads,), 4 * len(numbers))

    # From images to places, from places to images, and what the weights are

    def to_places(self, images: Value, weights: Value) -> Value:
        """The places (N, A, *P) that images (N, B, *S) convolve to."""
        if self.is_depthwise:
            return self._depthwise_to_places(images, weights)
        if not self.is_product:
            return self._to_places_by_loops(images, weights)
        left = self._weights(weights)
        if self.takes_windows and math.prod(self.kernel) > 1:
            windows = self._windows(self._padded(images))
            sizes = (*left.sizes[:2], product(self.places[2:]))
            found = self.build.program.matmul(left, windows, sizes, rows=1 + self.rank)
            return _dense(found, self.places)
        return _dense(self._multiply(left, self._columns(images)), self.places)

    def to_images(self, places: Value, weights: Value) -> Value:
        """The images (N, B, *S) that get, for each place, the weights times what is there."""
        if self.is_depthwise and self.places[1] == self.groups:
            places, weights = shared(self.build, places), shared(self.build, weights)

            def element(p: Position, k: Ints) -> Scalar:
                at, inside = self.meeting(p[2:], k)
                return self._term(places, [*p[:2], *at], inside, weights, [p[1], 0, *k])

            return self.sum_over_kernel(self.images, _both(places, weights), element)
        if not self.is_product:
            return self._to_images_by_loops(places, weights)
        left = self._weights(weights)
        (n, a, k), steps = left.sizes, left.layout.strides
        turned = Layout((n, k, a), (steps[0], steps[2], steps[1]), left.layout.offset)
        right = self._in_groups(places, self.places[1], product(self.places[2:]))
        found = self._multiply(Stored(left.buffer, turned), right)
        if self._is_plain:
            return _dense(found, self.images)
        columns = _dense(found, (*self.images[:2], *self.kernel, *self.places[2:]))

        def gathered(p: Position, k: Ints) -> Scalar:
            at, inside = self.meeting(p[2:], k)
            where = [*p[:2], *k, *at]
            return ops.masked(inside, lambda: ops.to(columns.load(where), self.wide), 0)

        return self.sum_over_kernel(self.images, columns, gathered)

    def of_weights(self, images: Value, places: Value, sizes: Sequence[Index]) -> Value:
        """For weights (A, B / groups, *K) what images and places have in common, as a sum over
        all places."""
        program, n = self.build.program, self.images[0]
        if self.is_depthwise:
            each = self.places[1] // self.groups
            images, places = shared(self.build, images), shared(self.build, places)

            def element(p: Position, r: Position) -> Scalar:
                at, inside = self.met(r[1:], p[2:])  # type: ignore[arg-type]
                here = [r[0], p[0], *r[1:]]
                return self._term(images, [r[0], p[0] // each, *at], inside, places, here)

            return program.reduce(sizes, [n, *self.places[2:]], element, "sum", self.wide)
        count = product(self.places[2:])
        left, columns = self._in_groups(places, self.places[1], count), self._columns(images)
        _, k, _ = columns.sizes
        steps = columns.layout.strides
        turned = Layout(
            (columns.sizes[0], count, k), (steps[0], steps[2], steps[1]), columns.layout.offset
        )
        parts = self._multiply(left, Stored(columns.buffer, turned))
        by_image = _dense(parts, (n, *sizes))
        return reduce(
            self.build, by_image, [0], "sum", False, lambda p: ops.to(by_image.load(p), self.wide)
        )

    # Loops

    def _depthwise_to_places(self, images: Value, weights: Value) -> Value:
        each, padded = self.places[1] // self.groups, self.takes_windows
        images = self._padded(images) if padded else shared(self.build, images)
        weights = shared(self.build, weights)

        def element(p: Position, k: Ints) -> Scalar:
            at, inside = self.met(p[2:], k, padded)
            return self._term(images, [p[0], p[1] // each, *at], inside, weights, [p[1], 0, *k])

        return self.sum_over_kernel(self.places, _both(images, weights), element)

    def _to_places_by_loops(self, images: Value, weights: Value) -> Value:
        outs, ins = self.places[1] // self.groups, self.images[1] // self.groups
        images, weights = shared(self.build, images), shared(self.build, weights)

        def element(p: Position, r: Position) -> Scalar:
            at, inside = self.met(p[2:], r[1:])  # type: ignore[arg-type]
            image = [p[0], p[1] // outs * ins + r[0], *at]
            return self._term(images, image, inside, weights, [p[1], *r])

        inner = (ins, *self.kernel)
        return self.build.program.reduce(self.places, inner, element, "sum", self.wide)

    def _to_images_by_loops(self, places: Value, weights: Value) -> Value:
        outs, ins = self.places[1] // self.groups, self.images[1] // self.groups
        places, weights = shared(self.build, places), shared(self.build, weights)

        def element(p: Position, r: Position) -> Scalar:
            at, inside = self.meeting(p[2:], r[1:])  # type: ignore[arg-type]
            a = p[1] // ins * outs + r[0]
            return self._term(places, [p[0], a, *at], inside, weights, [a, p[1] % ins, *r[1:]])

        inner = (outs, *self.kernel)
        return self.build.program.reduce(self.images, inner, element, "sum", self.wide)

    # Matrices

    @property
    def _is_plain(self) -> bool:
        """Whether each place meets the element of its own number, and no other."""
        ones = all(k == 1 for k in (*self.kernel, *self.stride))
        return ones and not any(self.padding)

    def _term(self, x: Value, at: Position, inside: Scalar, y: Value, there: Position) -> Scalar:
        def term() -> Scalar:
            factor: Scalar = ops.to(y.load(there), self.wide)
            return ops.mul(ops.to(x.load(at), self.wide), factor)

        found: Scalar = ops.masked(inside, term, 0)
        return found

    def _padded(self, images: Value) -> Stored:
        """The images with zeros around them, in memory of their own if there are any."""
        if not any(self.padding):
            stored = self.build.program.realise(images)
            return stored if stored.layout.strides[-1] == 1 else self.build.program.copy(stored)
        images = shared(self.build, images)
        around = [n + 2 * p for n, p in zip(self.images[2:], self.padding, strict=True)]

        def body(p: Position) -> Scalar:
            at = [i - before for i, before in zip(p[2:], self.padding, strict=True)]
            inside = ops.constant(True, torch.bool)
            for i, before, n in zip(at, self.padding, self.images[2:], strict=True):
                if before:
                    inside = inside & ops.ge(ops.index(i), 0) & ops.lt(ops.index(i), ops.index(n))
            return ops.masked(inside, lambda: images.load([*p[:2], *at]), 0)

        sizes = (*self.images[:2], *around)
        return self.build.program.copy(Lazy(sizes, self.dtype, body, (images,), 4))

    def _windows(self, images: Stored) -> Stored:
        """What each place meets, as a view of padded images: (N * groups, B / groups, *K, *P)."""
        layout = images.layout
        if self.groups > 1 and layout.strides[0] != layout.strides[1] * self.images[1]:
            images = self.build.program.copy(images)
            layout = images.layout
        each = self.images[1] // self.groups
        sizes = (self.images[0] * self.groups, each, *self.kernel, *self.places[2:])
        batch = layout.strides[0] if self.groups == 1 else layout.strides[1] * each
        along = layout.strides[2:]
        strides = (
            *(batch, layout.strides[1]),
            *(k * s for k, s in zip(self.dilation, along, strict=True)),
            *(k * s for k, s in zip(self.stride, along, strict=True)),
        )
        return Stored(images.buffer, Layout(sizes, strides, layout.offset))

    def _columns(self, images: Value) -> Stored:
        """What each place meets: (N * groups, B / groups * K, P)."""
        count = product(self.places[2:])
        length = product([self.images[1] // self.groups, *self.kernel])
        if self._is_plain:
            return self._in_groups(images, self.images[1], count)
        nbytes = size_hint(product([self.images[0], self.groups, length, count]))
        if nbytes * self.dtype.itemsize > MOST_COLUMNS:
            raise CannotLower("a convolution whose columns take too much memory")
        images, rank = shared(self.build, images), self.rank

        def body(p: Position) -> Scalar:
            at, inside = self.met(p[2 + rank :], p[2 : 2 + rank])  # type: ignore[arg-type]
            return ops.masked(inside, lambda: images.load([*p[:2], *at]), 0)

        sizes = (*self.images[:2], *self.kernel, *self.places[2:])
        columns = self.build.program.copy(Lazy(sizes, self.dtype, body, (images,), 8))
        return _dense(columns, (self.images[0] * self.groups, length, count))

    def _in_groups(self, x: Value, channels: Index, count: Index) -> Stored:
        """Images or places as matrices, (N * groups, channels / groups, count)."""
        sizes = (self.images[0] * self.groups, channels // self.groups, count)
        found = reshape(self.build.program.realise(x), sizes)
        return found if isinstance(found, Stored) else self.build.program.copy(found)

    def _weights(self, weights: Value) -> Stored:
        """The weights as matrices, one for each of the columns: (N * groups, A / groups, B * K)."""
        program, n = self.build.program, self.images[0]
        rows, length = self.places[1] // self.groups, product(weights.sizes[1:])
        found = reshape(program.realise(weights), (self.groups, rows, length))
        if self.groups > 1:
            each = Lazy((n, *found.sizes), self.dtype, lambda p: found.load(p[1:]), (found,))
            return _dense(program.copy(each), (n * self.groups, rows, length))
        stored = found if isinstance(found, Stored) else program.copy(found)
        steps = (0, *stored.layout.strides[1:])
        return Stored(stored.buffer, Layout((n, rows, length), steps, stored.layout.offset))

    def _multiply(self, left: Stored, right: Stored) -> Stored:
        sizes = (*left.sizes[:2], right.sizes[2])
        return self.build.program.matmul(left, right, sizes)


def _both(x: Value, y: Value) -> Value:
    """Something that reads both."""
    return Lazy((), x.dtype, lambda p: x.load(p), (x, y), 0)


def _dense(x: Stored, sizes: Sequence[Index]) -> Stored:
    """Dense memory, seen with other sizes."""
    return Stored(x.buffer, Layout.contiguous(sizes))


def _convolution(
    b: Build,
    images: tuple[Index, ...],
    places: tuple[Index, ...],
    weights: Value,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
) -> _Convolution:
    rank = len(weights.sizes) - 2
    kernel = [n for n in weights.sizes[2:] if isinstance(n, int)]
    if len(kernel) < rank or not len(images) == len(places) == rank + 2:
        raise CannotLower("a convolution of unknown rank or kernel")
    if 0 in (product(images), product(places), product(weights.sizes)):
        raise CannotLower("an empty convolution")

    def full(v: Ints) -> tuple[int, ...]:
        return tuple(v) * rank if len(v) == 1 else tuple(v)

    steps = (full(stride), full(padding), full(dilation))
    found = _Convolution(b, weights.dtype, images, places, tuple(kernel), *steps, groups)
    if not (found.is_product or b.program.standalone):
        raise CannotLower("a convolution that is no product")
    return found


@lowering("aten.convolution", "aten._convolution")
def convolution(
    b: Build,
    x: Value,
    weights: Value,
    bias: Value | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    *how: bool,
) -> Value:
    """The result (N, channels, ...) of an input and weights; see `aten::convolution`."""
    sizes = (b.out.sizes, x.sizes) if transposed else (x.sizes, b.out.sizes)
    wide = TABLE[weights.dtype].compute
    if b.program.standalone and 0 in (product(x.sizes), product(weights.sizes)):
        y: Value = constant(b.out.sizes, 0, wide)
    else:
        c = _convolution(b, *sizes, weights, stride, padding, dilation, groups)
        y = (c.to_images if transposed else c.to_places)(x, weights)
    if bias is None:
        return cast(y, weights.dtype)
    along = reshape(bias, (b.out.sizes[1], *[1] * (len(weights.sizes) - 2)))
    return elementwise(ops.add, (y, along), wide, weights.dtype)


@lowering("aten.convolution_backward")
def convolution_backward(
    b: Build,
    grad: Value,
    x: Value,
    weights: Value,
    bias_sizes: Any,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    wanted: Sequence[bool],
) -> list[Value | None]:
    """The gradients of input, weights and bias that are wanted."""
    sizes = (grad.sizes, x.sizes) if transposed else (x.sizes, grad.sizes)
    c = _convolution(b, *sizes, weights, stride, padding, dilation, groups)
    found: list[Value | None] = [None, None, None]
    grad, x = b.program.realise(grad), b.program.realise(x)
    if wanted[0]:
        found[0] = cast((c.to_places if transposed else c.to_images)(grad, weights), x.dtype)
    if wanted[1]:
        images, places = (grad, x) if transposed else (x, grad)
        found[1] = cast(c.of_weights(images, places, weights.sizes), weights.dtype)
    if wanted[2]:
        others = [0, *range(2, len(grad.sizes))]
        total = reduce(b, grad, others, "sum", False, lambda p: ops.to(grad.load(p), c.wide))
        found[2] = cast(total, grad.dtype)
    return found
