"""Sampling at points of a grid in two and three dimensions, forward and backward.

Grid coordinates run from -1 to 1 over each dimension, the last dimension first. In two dimensions
PyTorch's kernel has vectors that read from anywhere, which compilers hardly make: it takes an
eighth of the time of loops.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Value
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.indexing import filled, scatter_node
from torch_tenon.ops.lowerings.reductions import shared
from torch_tenon.ops.lowerings.table import (
    LOWERINGS,
    Build,
    CannotLower,
    cast,
    number,
    of_fractions,
    of_one_dtype,
)

BILINEAR, NEAREST = 0, 1
_product = functools.partial(functools.reduce, ops.mul)
_sum = functools.partial(functools.reduce, ops.add)
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass
class _Corner:
    """One of the elements around a point: its place, whether it exists, and for each dimension
    its weight and the weight's slope."""

    at: list[Scalar]
    inside: Scalar
    weights: list[Scalar]
    slopes: list[float]


class _Sampler:
    def __init__(
        self, x: Value, grid: Value, mode: int, padding: int, align: bool, backward: bool = False
    ) -> None:
        of_one_dtype(x, grid)
        of_fractions(x)
        if mode not in (BILINEAR, NEAREST):
            raise CannotLower("bicubic sampling")
        if TABLE[x.dtype].compute is not x.dtype:
            # PyTorch rounds the coordinates at every step, which decides where a point lies.
            raise CannotLower(f"coordinates computed in {x.dtype}")
        self.x, self.grid, self.mode, self.padding, self.align = x, grid, mode, padding, align
        self.backward = backward
        self.rank = len(x.sizes) - 2
        self.wide = TABLE[x.dtype].compute

    def coordinate(self, batch: Index, out: Position, d: int) -> tuple[Scalar, Scalar]:
        """Where a point lies along dimension d, in elements, and how fast it moves."""
        size = self.x.sizes[2 + d]
        n = number(size, self.wide)
        v = ops.to(self.grid.load([batch, *out, self.rank - 1 - d]), self.wide)
        length = n - 1.0 if self.align else n
        speed = ops.mul(length, 0.5)
        if self.rank == 2:
            start = ops.constant(0.0 if self.align else -0.5, self.wide)
            place = ops.fma(v + 1.0, speed, start)
        elif self.align:
            place = ops.mul(ops.mul(v + 1.0, 0.5), length)
        else:
            place = ops.mul(ops.mul(v + 1.0, n) - 1.0, 0.5)
        if self.padding == REFLECTION:
            place, turn = self._reflected(place, length)
            speed = ops.mul(speed, turn)
        if self.padding != ZEROS:
            within = ops.gt(place, 0.0) & ops.lt(place, n - 1.0)
            speed = ops.where(within, speed, 0.0)
            place = self._kept_within(place, n - 1.0)
        return place, speed

    def _reflected(self, place: Scalar, length: Scalar) -> tuple[Scalar, Scalar]:
        """A place turned back at both ends, as often as it is beyond one, and the direction that
        it then moves in. Far away the result is a matter of how it is rounded: PyTorch's vectors
        of two dimensions go back and forth at once, its loop of three takes one end at a time."""
        low = ops.constant(0.0 if self.align else -0.5, self.wide)
        from_low = place - low
        away = ops.abs(from_low)
        some = ops.gt(length, 0.0)
        safe = ops.where(some, length, 1.0)
        if self.rank == 2:
            both = ops.mul(safe, 2.0)
            rest = ops.fma(-ops.trunc(away / both), both, away)
            other = both - rest
            turned = ops.gt(rest, other)
        else:
            rest = ops.fmod(away, safe)
            other = safe - rest
            turns = ops.floor(away / safe)
            # PyTorch counts in 32 bits, and what does not fit is even.
            turned = ops.ne(ops.fmod(turns, 2.0), 0.0) & ops.lt(turns, 2.0**31)
        found = ops.where(turned, other, rest) + low
        back = ops.ne(turned, ops.lt(from_low, 0.0))
        direction = ops.where(back, ops.constant(-1.0, self.wide), 1.0)
        return ops.where(some, found, 0.0), ops.where(some, direction, 0.0)

    def _kept_within(self, place: Scalar, last: Scalar) -> Scalar:
        """A place between the first element and the last. PyTorch takes NaN for the first one in
        two dimensions. In three it samples the last one, and gives no gradient."""
        if self.rank == 2:
            return ops.fmin(ops.fmax(place, 0.0), last)
        if self.backward:
            return ops.minimum(ops.maximum(place, 0.0), last)
        return ops.where(ops.lt(place, last), ops.fmax(place, 0.0), last)

    def corners(self, batch: Index, out: Position) -> list[_Corner]:
        """The elements that a point's value is made of."""
        places = [self.coordinate(batch, out, d)[0] for d in range(self.rank)]
        if self.mode == NEAREST:
            at = [ops.to(ops.round(c), torch.int64) for c in places]
            ones = [ops.constant(1.0, self.wide)] * self.rank
            return [_Corner(at, self._inside(at), ones, [0.0] * self.rank)]
        floors = [ops.floor(c) for c in places]
        found = []
        for side in itertools.product((0, 1), repeat=self.rank):
            at = [ops.add(ops.to(f, torch.int64), k) for f, k in zip(floors, side, strict=True)]
            weights = [
                c - f if k else self._left(c, f)
                for c, f, k in zip(places, floors, side, strict=True)
            ]
            slopes = [1.0 if k else -1.0 for k in side]
            found.append(_Corner(at, self._inside(at), weights, slopes))
        return found

    def _left(self, place: Scalar, floor: Scalar) -> Scalar:
        """How far it is from a place to the next element, rounded as PyTorch rounds it."""
        return 1.0 - (place - floor) if self.rank == 2 else floor + 1.0 - place

    def weighted(self, corner: _Corner, found: Scalar) -> Scalar:
        """What is computed of a corner's weights. In three dimensions PyTorch skips corners that do
        not exist; in two the weights of such are multiplied by 0, so that NaN counts."""
        return ops.where(corner.inside, found, 0.0) if self.rank == 3 else found

    def _inside(self, at: Sequence[Scalar]) -> Scalar:
        inside = ops.constant(True, torch.bool)
        for i, n in zip(at, self.x.sizes[2:], strict=True):
            inside = inside & ops.ge(i, 0) & ops.lt(i, ops.index(n))
        return inside

    def place(self, corner: _Corner) -> list[Index]:
        """The corner as indices; the first element where it does not exist."""
        return [
            ops.place(ops.where(corner.inside, i, 0), n)
            for i, n in zip(corner.at, self.x.sizes[2:], strict=True)
        ]

    def value(self, batch: Index, channel: Index, corner: _Corner) -> Scalar:
        """The element at a corner, 0 outside."""

        def load() -> Scalar:
            return ops.to(self.x.load([batch, channel, *self.place(corner)]), self.wide)

        found: Scalar = ops.masked(corner.inside, load, 0)
        return found


def _refuse_where_the_kernel_is_faster(b: Build, x: Value) -> None:
    if b.reaches_kernels and len(x.sizes) == 4:
        raise CannotLower("the kernel takes less time")


def _forward(
    b: Build, x: Value, grid: Value, mode: int, padding: int, align: bool, *rest: Any
) -> Value:
    _refuse_where_the_kernel_is_faster(b, x)
    x, grid = shared(b, x), shared(b, grid)
    sampler = _Sampler(x, grid, mode, padding, align)

    def body(p: Position) -> Scalar:
        return _sum(
            sampler.weighted(c, _product([*c.weights, sampler.value(p[0], p[1], c)]))
            for c in sampler.corners(p[0], p[2:])
        )

    cost = 20 << sampler.rank
    return cast(Lazy(b.out.sizes, sampler.wide, body, (x, grid), cost), x.dtype)


def _backward(
    b: Build,
    g: Value,
    x: Value,
    grid: Value,
    mode: int,
    padding: int,
    align: bool,
    wanted: Sequence[bool],
) -> list[Value | None]:
    _refuse_where_the_kernel_is_faster(b, x)
    g, x, grid = shared(b, g), shared(b, x), shared(b, grid)
    sampler = _Sampler(x, grid, mode, padding, align, backward=True)
    wide = sampler.wide
    found: list[Value | None] = [None, None]
    has_slopes = b.results[1] is not None  # the kernel gives them whether they are wanted or not
    if wanted[0]:
        target = filled(b, x.sizes, 0, wide)
        layout = target.layout
        for k in range(1 if mode == NEAREST else 1 << sampler.rank):

            def store(p: list[Index], r: list[Index], k: int = k) -> tuple[Scalar, Index]:
                corner = sampler.corners(p[0], r)[k]
                part = ops.mul(_product(corner.weights), ops.to(g.load([*p, *r]), wide))
                part = ops.where(corner.inside, part, 0)
                return part, layout.index([*p, *sampler.place(corner)])

            target = scatter_node(b, target, store, x.sizes[:2], g.sizes[2:], "sum")
        found[0] = cast(target, x.dtype)
    if has_slopes and mode == NEAREST:
        found[1] = constant(grid.sizes, 0, grid.dtype)
    elif has_slopes:

        def slope(p: list[Index], r: list[Index]) -> Scalar:
            terms = []
            for c in sampler.corners(p[0], p[1:-1]):
                factors = [sampler.value(p[0], r[0], c)]
                for d, (w, s) in enumerate(zip(c.weights, c.slopes, strict=True)):
                    mine = ops.eq(ops.index(p[-1]), sampler.rank - 1 - d)
                    factors.append(ops.where(mine, ops.constant(s, wide), w))
                terms.append(sampler.weighted(c, _product(factors)))
            return ops.mul(_sum(terms), ops.to(g.load([p[0], r[0], *p[1:-1]]), wide))

        sums = b.program.reduce(grid.sizes, [x.sizes[1]], slope, "sum", wide)

        def scaled(p: Position) -> Scalar:
            speed = ops.constant(0.0, wide)
            for d in range(sampler.rank):
                mine = ops.eq(ops.index(p[-1]), sampler.rank - 1 - d)
                speed = ops.where(mine, sampler.coordinate(p[0], p[1:-1], d)[1], speed)
            return ops.mul(sums.load(p), speed)

        found[1] = cast(Lazy(grid.sizes, wide, scaled, (sums, grid), 12), grid.dtype)
    return found


LOWERINGS["aten.grid_sampler_2d"] = _forward
LOWERINGS["aten.grid_sampler_3d"] = _forward
LOWERINGS["aten.grid_sampler_2d_backward"] = _backward
LOWERINGS["aten.grid_sampler_3d_backward"] = _backward
