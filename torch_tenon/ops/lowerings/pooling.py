"""Average pooling, forward and backward; the rest of pooling decomposes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Lazy, Position, Stored, Value
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.reductions import shared
from torch_tenon.ops.lowerings.table import LOWERINGS, Build, CannotLower, cast, of_fractions

Ints = Sequence[int]
LARGEST_WINDOW = 64  # loads written out in one body


class _Windows:
    """The windows of a pooling op over the last `rank` dimensions."""

    def __init__(
        self,
        rank: int,
        sizes: Sequence[Index],
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Any,
        include_pad: bool,
        divisor: int | None,
    ) -> None:
        def full(v: Any) -> list[int]:
            many = [v] if isinstance(v, int) else list(v)
            return many * rank if len(many) == 1 else many

        self.rank, self.sizes = rank, list(sizes[-rank:])
        self.kernel = full(kernel)
        self.stride = full(stride) if stride else self.kernel
        self.padding = full(padding)
        self.include_pad, self.divisor = include_pad, divisor

    @property
    def is_large(self) -> bool:
        """Whether a window has too many elements for one body."""
        return math.prod(self.kernel) > LARGEST_WINDOW

    def count(self, place: Position, wide: Any) -> Scalar:
        """How many elements window `place` averages over."""
        if self.divisor is not None:
            fixed: Scalar = ops.constant(self.divisor, wide)
            return fixed
        extents = []
        for i, n, k, s, p in zip(
            place, self.sizes, self.kernel, self.stride, self.padding, strict=True
        ):
            start = ops.index(i * s - p)
            end = ops.minimum(ops.index(i * s - p + k), ops.index(n + p))
            if not self.include_pad:
                start = ops.maximum(start, 0)
                end = ops.minimum(end, ops.index(n))
            extents.append(ops.sub(end, start))
        return ops.to(functools.reduce(ops.mul, extents), wide)


def _between(i: Index, n: Index) -> Scalar:
    inside: Scalar = ops.ge(ops.index(i), 0) & ops.lt(ops.index(i), ops.index(n))
    return inside


def with_border(b: Build, x: Value, padding: Ints, filler: float) -> Stored:
    """Images (N, B, H, W) by channel, with `filler` around them.

    The inside is stored as it is computed, by the product that it comes from if there is one.
    """
    n, c, h, w = x.sizes
    above, before = padding
    high, wide = h + 2 * above, w + 2 * before
    image, row = c * high * wide, wide * c
    layout = Layout((n, c, high, wide), (image, 1, row, c))
    buffer = b.program.temporary(x.dtype, layout).buffer
    b.program.by_channel.add(buffer.storage)
    inside = Layout((n, c, h, w), (image, 1, row, c), above * row + before * c)
    b.program.fill(Stored(buffer, inside), x)
    around = []
    if above:
        steps = (image, 1, (h + above) * row, row, c)
        around.append(Layout((n, c, 2, above, wide), steps))
    if before:
        steps = (image, 1, row, (w + before) * c, c)
        around.append(Layout((n, c, h, 2, before), steps, above * row))
    for part in around:
        border = constant(part.sizes, filler, x.dtype)
        buffer = b.program.write(Stored(buffer, part), border).buffer
    return Stored(buffer, layout)


def _sum(terms: Sequence[Scalar], dtype: torch.dtype) -> Scalar:
    # From zero on, as the CPU's: a sum of negative zeros is no negative one.
    return functools.reduce(ops.add, terms, ops.constant(0, dtype))


def _average(total: Scalar, count: Scalar) -> Scalar:
    quotient: Scalar = (ops.div if total.dtype.is_floating_point else ops.trunc_div)(total, count)
    return quotient


def _forward(rank: int) -> Callable[..., Value]:
    def lower(
        b: Build,
        x: Value,
        kernel: Ints,
        stride: Ints = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        of_fractions(x, torch.int64)
        windows = _Windows(
            rank, x.sizes, kernel, stride, padding, count_include_pad, divisor_override
        )
        if windows.is_large and not b.program.standalone:
            raise CannotLower("a large window")
        x = shared(b, x)
        wide = TABLE[x.dtype].compute

        def term(p: Position, offset: Position) -> Scalar:
            at = [
                i * s - q + o
                for i, s, q, o in zip(
                    p[-rank:], windows.stride, windows.padding, offset, strict=True
                )
            ]
            inside = ops.constant(True, torch.bool)
            for i, n in zip(at, windows.sizes, strict=True):
                inside = inside & _between(i, n)
            found: Scalar = ops.masked(inside, lambda: ops.to(x.load([*p[:-rank], *at]), wide), 0)
            return found

        if windows.is_large:
            total = b.program.reduce(b.out.sizes, windows.kernel, term, "sum", wide)
            return cast(
                Lazy(
                    b.out.sizes,
                    wide,
                    lambda p: _average(total.load(p), windows.count(p[-rank:], wide)),
                    (total,),
                    4,
                ),
                x.dtype,
            )

        def body(p: Position) -> Scalar:
            terms = [term(p, offset) for offset in itertools.product(*map(range, windows.kernel))]
            return _average(_sum(terms, wide), windows.count(p[-rank:], wide))

        y = Lazy(b.out.sizes, wide, body, (x,), 4 * math.prod(windows.kernel))
        return cast(y, x.dtype)

    return lower


def _backward(rank: int) -> Callable[..., Value]:
    def lower(
        b: Build,
        g: Value,
        x: Value,
        kernel: Ints,
        stride: Ints,
        padding: Any,
        ceil: bool,
        *how: Any,
    ) -> Value:
        windows = _Windows(rank, x.sizes, kernel, stride, padding, *how)
        g = shared(b, g)
        wide = TABLE[g.dtype].compute
        spread = [-(-k // s) for k, s in zip(windows.kernel, windows.stride, strict=True)]
        if windows.is_large or math.prod(spread) > LARGEST_WINDOW:
            raise CannotLower("a large window")

        def body(p: Position) -> Scalar:
            # Each element gathers from the windows that hold it.
            terms = []
            for back in itertools.product(*map(range, spread)):
                inside = ops.constant(True, torch.bool)
                at: list[Index] = []
                for d, o in enumerate(back):
                    i = p[len(p) - rank + d] + windows.padding[d]
                    j = i // windows.stride[d] - o
                    at.append(j)
                    reach = ops.lt(ops.index(i - j * windows.stride[d]), windows.kernel[d])
                    inside = inside & reach & _between(j, g.sizes[len(p) - rank + d])
                where = [*p[:-rank], *at]

                def share(w: Any = where) -> Scalar:
                    value: Scalar = ops.to(g.load(w), wide)
                    return _average(value, windows.count(w[-rank:], wide))

                terms.append(ops.masked(inside, share, 0))
            return _sum(terms, wide)

        y = Lazy(x.sizes, wide, body, (g,), 8 * math.prod(spread))
        return cast(y, x.dtype)

    return lower


for _rank in (2, 3):
    LOWERINGS[f"aten.avg_pool{_rank}d"] = _forward(_rank)
    LOWERINGS[f"aten.avg_pool{_rank}d_backward"] = _backward(_rank)
