"""The greatest of windows, pooling whose windows differ in size or lie at random places, the
backwards that store at indices, and the backward of padding by replication."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, flat_index, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Value, neutral, reshape
from torch_tenon.ops.lowerings.indexing import filled, scatter_node
from torch_tenon.ops.lowerings.pooling import LARGEST_WINDOW, with_border
from torch_tenon.ops.lowerings.reductions import reduce, shared, typed
from torch_tenon.ops.lowerings.table import (
    LOWERINGS,
    Build,
    CannotLower,
    cast,
    elementwise,
    of_fractions,
)

FEW_WINDOWS = 4  # that hold an element, and are added up in one body


def _bounds(o: Index, n: Index, m: Index) -> tuple[Index, Index]:
    """Where output o of m over n elements begins and ends."""
    return o * n // m, ((o + 1) * n + m - 1) // m


def _widest(n: Sequence[Index], m: Sequence[Index]) -> list[Index]:
    """The elements of the longest window by dimension; of run-time sizes maybe one more."""
    return [
        max(-(-(o + 1) * a // c) - o * a // c for o in range(c))
        if isinstance(a, int) and isinstance(c, int)
        else (a + c - 1) // c + 1
        for a, c in zip(n, m, strict=True)
    ]


def _known(b: Build, sizes: Sequence[Index]) -> Sequence[Index]:
    """Sizes of adaptive pooling; those that are known only at run time are for loops alone."""
    return sizes if b.program.standalone and 0 not in sizes else _static(sizes)


def _static(sizes: Sequence[Index]) -> list[int]:
    found = [n for n in sizes if isinstance(n, int)]
    if len(found) < len(sizes) or 0 in found:
        raise CannotLower("adaptive pooling of run-time or empty sizes")
    return found


def _average(rank: int) -> Callable[..., Value]:
    """A dimension after the other, the last one at the end: what is added up before that is dense
    in memory, and a sum along a dimension has few terms."""

    def lower(b: Build, x: Value, out: Sequence[Index]) -> Value:
        n, m = _known(b, x.sizes[-rank:]), _known(b, b.out.sizes[-rank:])
        x = shared(b, x)
        wide = TABLE[x.dtype].compute
        if all(c == 1 for c in m):
            d = range(len(x.sizes) - rank, len(x.sizes))
            total: Value = reduce(b, x, d, "sum", True, typed(x, wide))
        else:
            total = x
            for k in range(rank):
                total = _sums_of_windows(b, total, len(x.sizes) - rank + k, n[k], m[k], wide)

        def divide(p: Position) -> Scalar:
            count: Index = 1
            for o, a, c in zip(p[-rank:], n, m, strict=True):
                start, end = _bounds(o, a, c)
                count = count * (end - start)
            return ops.div(total.load(p), ops.to(ops.index(count), wide))

        return cast(Lazy(b.out.sizes, wide, divide, (total,), 4), x.dtype)

    return lower


def _sums_of_windows(b: Build, x: Value, d: int, n: Index, m: Index, wide: torch.dtype) -> Value:
    """x with the sums of m windows for the n elements along a dimension."""
    if n == m:
        return x
    sizes = [m if k == d else size for k, size in enumerate(x.sizes)]
    (longest,) = _widest([n], [m])

    def element(p: Position, r: Position) -> Scalar:
        start, end = _bounds(p[d], n, m)
        place = [start + r[0] if k == d else i for k, i in enumerate(p)]
        inside = ops.lt(ops.index(start + r[0]), ops.index(end))
        return ops.masked(inside, lambda: ops.to(x.load(place), wide), 0)

    return b.program.reduce(sizes, [longest], element, "sum", wide)


def _average_backward(rank: int) -> Callable[..., Value]:
    """The last dimension first, whose windows are still few then."""

    def lower(b: Build, g: Value, x: Value) -> Value:
        of_fractions(g, torch.complex64, torch.complex128)
        n, m = _static(x.sizes[-rank:]), _static(g.sizes[-rank:])
        wide = TABLE[g.dtype].compute

        def share(p: Position) -> Scalar:
            count: Index = 1
            for o, a, c in zip(p[-rank:], n, m, strict=True):
                start, end = _bounds(o, a, c)
                count = count * (end - start)
            return ops.div(ops.to(g.load(p), wide), ops.to(ops.index(count), wide))

        total: Value = Lazy(g.sizes, wide, share, (g,), 8)
        for k in reversed(range(rank)):
            total = _of_windows(b, total, len(g.sizes) - rank + k, n[k], m[k])
        return cast(total, x.dtype)

    return lower


def _of_windows(b: Build, x: Value, d: int, n: int, m: int) -> Value:
    """For n elements along a dimension the sums of what x has for the windows, m of them, that an
    element is in."""
    if n == m:
        return x
    x = b.program.realise(x)
    sizes = [n if k == d else size for k, size in enumerate(x.sizes)]

    def element(p: Position, r: Position) -> Scalar:
        # Of the windows that hold an element, the number of the first is a division.
        o = p[d] * m // n + r[0]
        place = [o if k == d else i for k, i in enumerate(p)]
        if r[0] == 0:
            return x.load(place)
        start, _ = _bounds(o, n, m)
        inside = ops.lt(ops.index(o), m) & ops.le(ops.index(start), ops.index(p[d]))
        return ops.masked(inside, lambda: x.load(place), 0)

    most = -(-m // n) + 1
    if most > FEW_WINDOWS:
        return b.program.reduce(sizes, [most], element, "sum", x.dtype)

    def body(p: Position) -> Scalar:
        return functools.reduce(ops.add, (element(p, [k]) for k in range(most)))

    return Lazy(sizes, x.dtype, body, (x,), 4 * most)


Candidate = tuple[Callable[[], Scalar], Index, Scalar]
# Values, their numbers in the plane, counted from that of a base, and whether they are there; the
# base; and the number of where it begins, counted likewise.
Window = tuple[Sequence[Candidate], Index, Scalar]


def _first_greatest(window: Window, dtype: torch.dtype) -> tuple[Scalar, Scalar]:
    """The greatest of a window (a NaN counts as that) and its number in the plane; of one without
    any value that is greater than the least there is, this and where the window begins."""
    candidates, base, begin = window
    # A choice between numbers as wide as the values is one of whole vectors.
    is_short = all(isinstance(k, int) and k < 2**31 for _, k, _ in candidates)
    whole = torch.int32 if is_short else torch.int64
    best = ops.constant(neutral("max", dtype), TABLE[dtype].compute)
    where = ops.to(begin, whole)
    for k, (value, offset, there) in enumerate(candidates):
        number = ops.constant(offset, whole) if isinstance(offset, int) else ops.index(offset)
        if k == 0 and _always(there):
            best, where = value(), number
            continue
        new = ops.masked(there, value, 0)
        better = ops.gt(new, best)
        if new.dtype.is_floating_point:
            better = better | ops.isnan(new)
        better = better & there
        best, where = ops.where(better, new, best), ops.where(better, number, where)
    return best, ops.add(ops.index(base), ops.to(where, torch.int64))


def _always(x: Scalar) -> bool:
    return x.op == "constant" and bool(x.args[1].value)


def _pair(b: Build, x: Value, windows: Callable[[Position], Window], cost: int = 8) -> list[Value]:
    """The greatest of each window, and its number in the plane."""
    x = shared(b, x)
    sizes = b.out.sizes

    def best(p: Position) -> Scalar:
        return _first_greatest(windows(p), x.dtype)[0]

    def where(p: Position) -> Scalar:
        return _first_greatest(windows(p), x.dtype)[1]

    return [Lazy(sizes, x.dtype, best, (x,), cost), Lazy(sizes, torch.int64, where, (x,), cost)]


def _pair_by_loops(
    b: Build,
    x: Value,
    rank: int,
    window: Sequence[Index],
    at: Callable[[int, Index, Index], tuple[Index, Scalar]],
    begin: Callable[[Position], Scalar] | None = None,
) -> list[Value]:
    """The same by loops over a window of any size: `at` gives for a dimension, the number of a
    window and a place in it the element, and whether there is one. `begin` is the number of a
    window without any, where there are such."""
    x = shared(b, x)
    sizes, n, program = b.out.sizes, x.sizes[-rank:], b.program
    wide = TABLE[x.dtype].compute

    def found(p: Position, r: Position, value: Callable[[Scalar, Index], Scalar], none: Any) -> Any:
        pairs = [at(d, p[len(p) - rank + d], k) for d, k in enumerate(r)]
        where = [i for i, _ in pairs]
        there = functools.reduce(ops.logical_and, [t for _, t in pairs])

        def inside() -> Scalar:
            return value(ops.to(x.load([*p[:-rank], *where]), wide), flat_index(where, n))

        return ops.masked(there, inside, none)

    best = program.reduce(
        sizes, window, lambda p, r: found(p, r, lambda v, i: v, neutral("max", wide)), "max", wide
    )

    def equal(p: Position, r: Position) -> Scalar:
        def number(v: Scalar, i: Index) -> Scalar:
            return ops.where(ops.eq(v, best.load(p)), ops.index(i), 2**62)

        return found(p, r, number, 2**62)

    first = program.reduce(sizes, window, equal, "min", torch.int64)
    places: Value = first
    if begin is not None:

        def known(p: Position) -> Scalar:
            number = first.load(p)
            return ops.where(ops.eq(number, 2**62), begin(p), number)

        places = Lazy(sizes, torch.int64, known, (first,), 8)
    if wide.is_floating_point:  # of several NaNs the last one counts

        def is_nan(p: Position, r: Position) -> Scalar:
            return found(p, r, lambda v, i: ops.where(ops.isnan(v), ops.index(i), -1), -1)

        last = program.reduce(sizes, window, is_nan, "max", torch.int64)
        places = elementwise(
            lambda a, z: ops.where(ops.lt(z, 0), a, z), (places, last), torch.int64, torch.int64
        )
    return [cast(best, x.dtype), places]


def _max(rank: int) -> Callable[..., list[Value]]:
    def lower(
        b: Build,
        x: Value,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> list[Value]:
        kernel, stride, padding, dilation = (
            list(v) * rank if len(v) == 1 else list(v)
            for v in (kernel, stride or kernel, padding, dilation)
        )
        if x.dtype is torch.bool:
            raise CannotLower("values of torch.bool")
        is_large = math.prod(kernel) > LARGEST_WINDOW
        if is_large and not b.program.standalone:
            raise CannotLower("a large window")
        n, m = x.sizes[-rank:], b.out.sizes[-rank:]
        plane = product(n)
        whole = torch.int32 if isinstance(plane, int) and plane < 2**30 else torch.int64
        x = shared(b, x)

        def at(d: int, o: Index, k: Index) -> tuple[Index, Scalar]:
            """Place k of window o along a dimension, and whether it lies in the input."""
            i = o * stride[d] - padding[d] + k * dilation[d]
            there = ops.constant(True, torch.bool)
            if padding[d] and not (isinstance(k, int) and k * dilation[d] >= padding[d]):
                there = there & ops.ge(ops.index(i), 0)
            last = (m[d] - 1) * stride[d] - padding[d] + k * dilation[d] - n[d]
            if not isinstance(last, int) or last >= 0:
                there = there & ops.lt(ops.index(i), ops.index(n[d]))
            return i, there

        def base(p: Position) -> Index:
            """The number of a window's first place, be it before the input."""
            return flat_index(
                [o * s - q for o, s, q in zip(p[-rank:], stride, padding, strict=True)], n
            )

        def first(d: int, o: Index) -> Scalar:
            """The first place of window o that is not before the input, counted from its first."""
            if padding[d] <= 0:
                return ops.constant(0, whole)
            before = ops.maximum(ops.to(ops.index(padding[d] - o * stride[d]), whole), 0)
            if dilation[d] == 1:
                return before
            steps = ops.floor_div(ops.add(before, dilation[d] - 1), dilation[d])
            return ops.mul(steps, dilation[d])

        def begin(p: Position) -> Scalar:
            """The number of where a window begins, counted from its base."""
            if not any(padding):
                return ops.constant(0, whole)
            places = [first(d, p[len(p) - rank + d]) for d in range(rank)]
            number = places[0]
            for size, i in zip(n[1:], places[1:], strict=True):
                wide = size if isinstance(size, int) else ops.index(size)
                number = ops.add(ops.mul(number, wide), i)
            return number

        def windows(p: Position) -> Window:
            found: list[Candidate] = []
            for offset in itertools.product(*map(range, kernel)):
                places = [at(d, p[len(p) - rank + d], k) for d, k in enumerate(offset)]
                there = functools.reduce(ops.logical_and, [t for _, t in places])
                where = [i for i, _ in places]
                load = functools.partial(x.load, [*p[:-rank], *where])
                steps = [k * s for k, s in zip(offset, dilation, strict=True)]
                found.append((load, flat_index(steps, n), there))
            return found, base(p), begin(p)

        def number(p: Position) -> Scalar:
            return ops.add(ops.index(base(p)), ops.to(begin(p), torch.int64))

        if is_large:
            return _pair_by_loops(b, x, rank, kernel, at, number)
        pair = _pair(b, x, windows, 4 * math.prod(kernel))
        if any(padding) and not ceil_mode and b.program.is_by_channel(x):
            # Choices between all channels and none are no vectors: the least there is lies around.
            least = neutral("max", x.dtype)
            around = with_border(b, x, padding, least)
            pair[0] = lower(b, around, kernel, stride, (0,), dilation)[0]
        return pair

    return lower


def _adaptive_max(rank: int) -> Callable[..., list[Value]]:
    def lower(b: Build, x: Value, out: Sequence[Index]) -> list[Value]:
        of_fractions(x)
        n, m = _known(b, x.sizes[-rank:]), _known(b, b.out.sizes[-rank:])
        longest = _widest(n, m)
        widest = [k for k in longest if isinstance(k, int)]
        if len(widest) < rank or math.prod(widest) > LARGEST_WINDOW:
            if not b.program.standalone:
                raise CannotLower("a large window")

            def at(d: int, o: Index, k: Index) -> tuple[Index, Scalar]:
                start, end = _bounds(o, n[d], m[d])
                return start + k, ops.lt(ops.index(start + k), ops.index(end))

            return _pair_by_loops(b, x, rank, longest, at)

        def windows(p: Position) -> Window:
            found: list[Candidate] = []
            base = flat_index([o * a // c for o, a, c in zip(p[-rank:], n, m, strict=True)], n)
            for offset in itertools.product(*map(range, widest)):
                place: list[Index] = []
                there = ops.constant(True, torch.bool)
                for o, k, a, c in zip(p[-rank:], offset, n, m, strict=True):
                    start, end = _bounds(o, a, c)
                    place.append(start + k)
                    if k:  # windows are not empty
                        there = there & ops.lt(ops.index(start + k), ops.index(end))
                load = functools.partial(x.load, [*p[:-rank], *place])
                found.append((load, flat_index(offset, n), there))
            return found, base, ops.constant(0, torch.int32)

        return _pair(b, x, windows)

    return lower


def _fractional(rank: int) -> Callable[..., list[Value]]:
    def lower(
        b: Build, x: Value, kernel: Sequence[int], out: Sequence[int], samples: Value
    ) -> list[Value]:
        of_fractions(x)
        n = _static(x.sizes[-rank:])
        if not 0 < product(kernel) <= LARGEST_WINDOW:  # type: ignore[operator]
            raise CannotLower("a large window, or one of nothing")
        batched = len(x.sizes) == rank + 2
        wide = TABLE[samples.dtype].compute
        if wide is not samples.dtype:
            # PyTorch rounds at every step, which decides where a window lies.
            raise CannotLower(f"places computed in {samples.dtype}")

        def start(p: Position, d: int) -> Scalar:
            if out[d] == 1:
                return ops.constant(n[d] - kernel[d], torch.int64)
            # The last number of a sample is the last dimension's in 2-d, the first's in 3-d.
            lead = [p[0], p[1]] if batched else [0, p[0]]
            u = samples.load([*lead, rank - 1 - d if rank == 2 else d])
            alpha = ops.constant((n[d] - kernel[d]) / (out[d] - 1), wide)
            i = ops.to(ops.index(p[len(p) - rank + d]), wide)
            first = ops.to(ops.mul(ops.add(i, u), alpha), torch.int64)
            at = ops.sub(first, ops.to(ops.mul(u, alpha), torch.int64))
            last = ops.eq(ops.index(p[len(p) - rank + d]), out[d] - 1)
            return ops.where(last, ops.constant(n[d] - kernel[d], torch.int64), at)

        def windows(p: Position) -> Window:
            starts = [start(p, d) for d in range(rank)]
            first = [ops.indirect(s, n[d], "index") for d, s in enumerate(starts)]
            found: list[Candidate] = []
            for offset in itertools.product(*map(range, kernel)):
                at: list[Index] = [
                    ops.indirect(ops.add(s, k), n[d], "index")
                    for d, (s, k) in enumerate(zip(starts, offset, strict=True))
                ]
                place = [*p[:-rank], *at]
                yes = ops.constant(True, torch.bool)
                load = functools.partial(x.load, place)
                found.append((load, flat_index(offset, n), yes))
            return found, flat_index(first, n), ops.constant(0, torch.int32)

        return _pair(b, x, windows)

    return lower


def _scattered(rank: int) -> Callable[..., Value]:
    """The backward of a pooling op that took one element of each window. Which one is a choice of
    vectors, and so has memory: to store at it is one element after the other."""

    def lower(b: Build, g: Value, x: Value, *args: Any) -> Value:
        at: Value = shared(b, args[-1])
        lead, plane = x.sizes[:-rank], product(x.sizes[-rank:])
        count = product(g.sizes[-rank:])
        flat_g, flat_at = reshape(g, (*lead, count)), reshape(at, (*lead, count))
        wide = TABLE[g.dtype].compute
        target = filled(b, (*lead, plane), 0, wide)

        def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            row = ops.indirect(flat_at.load([*p, r[0]]), plane, "index")
            return ops.to(flat_g.load([*p, r[0]]), wide), target.layout.index([*p, row])

        done = scatter_node(b, target, body, list(lead), [count], "sum")
        return cast(reshape(done, x.sizes), x.dtype)

    return lower


def _replication_backward(rank: int) -> Callable[..., Value]:
    def lower(b: Build, g: Value, x: Value, pad: Sequence[int]) -> Value:
        wide = TABLE[g.dtype].compute
        target = filled(b, x.sizes, 0, wide)
        lead = len(x.sizes) - rank

        def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            place: list[Index] = list(p)
            for d, i in enumerate(r):
                n = x.sizes[lead + d]
                j = ops.maximum(ops.index(i - pad[2 * (rank - 1 - d)]), 0)
                place.append(ops.place(ops.minimum(j, ops.index(n - 1)), n))
            return ops.to(g.load([*p, *r]), wide), target.layout.index(place)

        done = scatter_node(b, target, body, g.sizes[:lead], g.sizes[lead:], "sum")
        return cast(done, x.dtype)

    return lower


for _rank in (2, 3):
    LOWERINGS[f"aten._adaptive_avg_pool{_rank}d"] = _average(_rank)
    LOWERINGS[f"aten._adaptive_avg_pool{_rank}d_backward"] = _average_backward(_rank)
    LOWERINGS[f"aten.adaptive_max_pool{_rank}d"] = _adaptive_max(_rank)
    LOWERINGS[f"aten.adaptive_max_pool{_rank}d_backward"] = _scattered(_rank)
    LOWERINGS[f"aten.fractional_max_pool{_rank}d"] = _fractional(_rank)
    LOWERINGS[f"aten.fractional_max_pool{_rank}d_backward"] = _scattered(_rank)
    LOWERINGS[f"aten.max_pool{_rank}d_with_indices"] = _max(_rank)
    LOWERINGS[f"aten.max_pool{_rank}d_with_indices_backward"] = _scattered(_rank)
for _rank in (1, 2, 3):
    LOWERINGS[f"aten.replication_pad{_rank}d_backward"] = _replication_backward(_rank)
