"""Views and shape ops: each is an index map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, less, nonnegative, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import (
    Layout,
    Lazy,
    Position,
    Stored,
    Value,
    dense_layout,
    reindex,
    reshape,
)
from torch_tenon.ops.lowerings.table import Build, CannotLower, cast, lowering

SHORT_ROW = 64  # elements: a remainder for each takes longer than a comparison for each element
MOST_COST_TWICE = 4  # of what is computed in two places; what is dearer gets memory


def wrap_dim(d: int, rank: int) -> int:
    """A dimension counted from the front. Raises CannotLower for one that is none, of which
    PyTorch's kernels say so."""
    most = max(rank, 1)
    if not -most <= d < most:
        raise CannotLower(f"dimension {d} of {rank}")
    return d + most if d < 0 else d


def from_front(i: Index, n: Index) -> Index:
    """A position of a dimension of `n`, counted from the front. Raises CannotLower for a run-time
    number of either sign."""
    if nonnegative(i):
        return i
    if not less(i, 0):
        raise CannotLower("a position that may be counted from the front or from the end")
    return i + n


@lowering("aten.view.default", "aten._unsafe_view", "aten.reshape", "aten.view_copy.default")
@lowering("aten._reshape_alias")
def view(b: Build, x: Value, *sizes: Any) -> Value:
    """Other sizes, the same elements in row-major order."""
    return reshape(x, b.out.sizes)


@lowering("aten.expand", "aten.expand_copy")
def expand(b: Build, x: Value, sizes: Sequence[Index], **keywords: Any) -> Value:
    """Dimensions of size 1, and new ones in front, repeated."""
    skip = len(sizes) - len(x.sizes)
    full = tuple(
        x.sizes[d - skip] if d >= skip and (n == -1 or x.sizes[d - skip] != 1) else n
        for d, n in enumerate(sizes)
    )
    if full == x.sizes:
        return x
    if isinstance(x, Lazy) and x.cost >= 12 and x.sizes:
        b.program.realise(x)

    def position(p: Position) -> Position:
        return [0 if n == 1 else p[skip + d] for d, n in enumerate(x.sizes)]

    return reindex(x, full, position)


@lowering("aten.permute", "aten.permute_copy")
def permute(b: Build, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions in another order."""
    order = [wrap_dim(d, len(x.sizes)) for d in dims]

    def position(p: Position) -> Position:
        found: list[Index] = [0] * len(order)
        for d, i in zip(order, p, strict=True):
            found[d] = i
        return found

    return reindex(x, [x.sizes[d] for d in order], position)


@lowering("aten.t", "aten.t_copy")
def t(b: Build, x: Value) -> Value:
    """The transpose of a matrix."""
    return permute(b, x, list(range(len(x.sizes)))[::-1])


@lowering("aten.transpose.int", "aten.transpose_copy")
def transpose(b: Build, x: Value, d0: int, d1: int) -> Value:
    """Two dimensions exchanged."""
    rank = len(x.sizes)
    if rank == 0:
        return x
    order = list(range(rank))
    d0, d1 = wrap_dim(d0, rank), wrap_dim(d1, rank)
    order[d0], order[d1] = order[d1], order[d0]
    return permute(b, x, order)


@lowering("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(b: Build, x: Value, dim: int) -> Value:
    """A new dimension of size 1."""
    d = dim + len(x.sizes) + 1 if dim < 0 else dim
    return reindex(x, (*x.sizes[:d], 1, *x.sizes[d:]), lambda p: [*p[:d], *p[d + 1 :]])


@lowering("aten.squeeze", "aten.squeeze_copy")
def squeeze(b: Build, x: Value, dims: Any = None) -> Value:
    """Dimensions of size 1 dropped: all, one or some."""
    rank = len(x.sizes)
    wanted = range(rank) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {wrap_dim(d, rank) for d in wanted}
    keep = [d for d in range(rank) if d not in gone or x.sizes[d] != 1]

    def position(p: Position) -> Position:
        found: list[Index] = [0] * rank
        for d, i in zip(keep, p, strict=True):
            found[d] = i
        return found

    return reindex(x, [x.sizes[d] for d in keep], position)


@lowering("aten.select.int", "aten.select_copy")
def select(b: Build, x: Value, dim: int, at: Index) -> Value:
    """One position of a dimension, which goes."""
    d = wrap_dim(dim, len(x.sizes))
    where = from_front(at, x.sizes[d])
    return reindex(x, (*x.sizes[:d], *x.sizes[d + 1 :]), lambda p: [*p[:d], where, *p[d:]])


def slice_bounds(start: Any, end: Any, step: int, n: Index, length: Index) -> tuple[Index, Index]:
    """The first position of a slice of a dimension of `n`, and one that is not before its end.
    Raises CannotLower where the first depends on run-time numbers in more than one way, and for a
    step that the op refuses."""
    if step < 1:
        raise CannotLower("a step that is not positive")
    if end is None or (isinstance(end, int) and end >= 2**40):
        end = n
    last = from_front(end, n)
    if start is None:
        return 0, last
    if isinstance(start, int) and isinstance(n, int):
        return min(max(start + n if start < 0 else start, 0), n), last
    if nonnegative(start):
        return start, last
    if step == 1 and (end == n or less(end, 0)):
        return last - length, last  # whether or not the start is cut off
    first = from_front(start, n)
    if not nonnegative(first):
        raise CannotLower("a slice that may start before the dimension does")
    return first, last


@lowering("aten.slice.Tensor", "aten.slice_copy")
def slice_(
    b: Build, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    """Every step-th position of a dimension between two bounds."""
    d = wrap_dim(dim, len(x.sizes))
    sizes = b.out.sizes
    first, _ = slice_bounds(start, end, step, x.sizes[d], sizes[d])
    return reindex(x, sizes, lambda p: [*p[:d], first + p[d] * step, *p[d + 1 :]])


@lowering("aten.unfold", "aten.unfold_copy")
def unfold(b: Build, x: Value, dim: int, size: Index, step: Index) -> Value:
    """Windows of a dimension, of `size` positions and `step` apart."""
    if not x.sizes:
        raise CannotLower("a window of a tensor without dimensions")
    d = wrap_dim(dim, len(x.sizes))
    return reindex(x, b.out.sizes, lambda p: [*p[:d], p[d] * step + p[-1], *p[d + 1 : -1]])


def narrow(x: Value, d: int, start: Index, length: Index) -> Value:
    """`length` positions of dimension d from `start`."""
    sizes = (*x.sizes[:d], length, *x.sizes[d + 1 :])
    return reindex(x, sizes, lambda p: [*p[:d], start + p[d], *p[d + 1 :]])


@lowering("aten.narrow_copy")
def narrow_copy(b: Build, x: Value, dim: int, start: Index, length: Index) -> Value:
    """`length` positions of a dimension from `start`."""
    d = wrap_dim(dim, len(x.sizes))
    return narrow(x, d, from_front(start, x.sizes[d]), length)


@lowering("aten.split_with_sizes", "aten.split_with_sizes_copy")
def split_with_sizes(b: Build, x: Value, lengths: Sequence[Index], dim: int = 0) -> list[Value]:
    """Consecutive pieces of a dimension."""
    d = wrap_dim(dim, len(x.sizes))
    pieces = []
    start: Index = 0
    for n in lengths:
        pieces.append(narrow(x, d, start, n))
        start = start + n
    return pieces


@lowering("aten.split.Tensor")
def split(b: Build, x: Value, length: Index, dim: int = 0) -> list[Value]:
    """Pieces of equal length, the last perhaps shorter."""
    d = wrap_dim(dim, len(x.sizes))
    return split_with_sizes(b, x, [r.sizes[d] for r in b.results if r is not None], d)


@lowering("aten.unbind.int", "aten.unbind_copy.int")
def unbind(b: Build, x: Value, dim: int = 0) -> list[Value]:
    """Each position of a dimension."""
    return [select(b, x, dim, i) for i in range(len(b.results))]


@lowering("aten.diagonal", "aten.diagonal_copy")
def diagonal(b: Build, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """The diagonal of two dimensions, as a last one."""
    rank = len(x.sizes)
    return diagonal_of(x, b.out.sizes, offset, wrap_dim(dim1, rank), wrap_dim(dim2, rank))


def diagonal_of(x: Value, sizes: Sequence[Index], offset: int, d1: int, d2: int) -> Value:
    """The diagonal of dimensions d1 and d2, as a last one."""
    rank = len(x.sizes)
    others = [d for d in range(rank) if d not in (d1, d2)]

    def position(p: Position) -> Position:
        found: list[Index] = [0] * rank
        for d, i in zip(others, p[:-1], strict=True):
            found[d] = i
        found[d1] = p[-1] + max(-offset, 0)
        found[d2] = p[-1] + max(offset, 0)
        return found

    return reindex(x, sizes, position)


@lowering("aten.flip")
def flip(b: Build, x: Value, dims: Sequence[int]) -> Value:
    """Dimensions read backwards."""
    turned = {wrap_dim(d, len(x.sizes)) for d in dims}
    return reindex(
        x, x.sizes, lambda p: [x.sizes[d] - 1 - i if d in turned else i for d, i in enumerate(p)]
    )


@lowering("aten.roll")
def roll(b: Build, x: Value, shifts: Any, dims: Any = ()) -> Value:
    """Dimensions turned round by a shift."""
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if not dims:
        flat = reshape(x, (x.numel(),))
        return reshape(roll(b, flat, shifts, [0]), x.sizes)
    if x.numel() == 0:
        return x
    by: dict[int, Index] = {}
    for k, d in zip(shifts, dims, strict=True):
        by[wrap_dim(d, len(x.sizes))] = by.get(wrap_dim(d, len(x.sizes)), 0) + k

    if not all(nonnegative(k) or less(k, 0) for k in by.values()):
        raise CannotLower("a shift that may be to either side")
    ahead = {d: x.sizes[d] - k % x.sizes[d] if nonnegative(k) else -k for d, k in by.items()}
    last = len(x.sizes) - 1
    if len(ahead) == 1 and last not in ahead and x.dtype in TABLE:
        ((d, k),) = ahead.items()
        each = product(x.sizes[d + 1 :])
        flat = reshape(x, (product(x.sizes[:d]), x.sizes[d] * each))
        if isinstance(each, int) and each < SHORT_ROW and isinstance(flat, Stored):
            return reshape(_roll_rows(b, flat, k * each), x.sizes)
    along_rows = ahead.pop(last, 0) if x.dtype in TABLE else 0

    def position(p: Position) -> Position:
        return [
            (i + ahead[d]) % n if d in ahead else i
            for d, (i, n) in enumerate(zip(p, x.sizes, strict=True))
        ]

    return _roll_rows(b, reindex(x, x.sizes, position) if ahead else x, along_rows)


def _roll_rows(b: Build, x: Value, ahead: Index) -> Value:
    """Each row from its element `ahead` on, and then from its start: no vectors would be made of
    loads that a remainder places."""
    n = x.sizes[-1]
    if ahead == 0 or n == 1:
        return x
    if isinstance(x, Lazy) and x.cost > MOST_COST_TWICE:
        x = b.program.realise(x)
    ahead = ahead % n

    def body(p: Position) -> Scalar:
        here = ops.lt(ops.index(p[-1]), ops.index(n - ahead))
        first = ops.masked(here, lambda: x.load([*p[:-1], p[-1] + ahead]), 0)
        second = ops.masked(~here, lambda: x.load([*p[:-1], p[-1] + ahead - n]), 0)
        return ops.where(here, first, second)

    return Lazy(x.sizes, x.dtype, body, (x,), 2)


@lowering("aten.repeat")
def repeat(b: Build, x: Value, repeats: Sequence[Index]) -> Value:
    """The tensor tiled."""
    skip = len(repeats) - len(x.sizes)
    sizes = [n * (x.sizes[d - skip] if d >= skip else 1) for d, n in enumerate(repeats)]
    if product(sizes) == 0:
        raise CannotLower("an empty result")

    if x.sizes and x.sizes[-1] != 1 and repeats[-1] != 1:
        # Rows beside themselves: loops over one row have no remainder in them.
        count, n = repeats[-1], x.sizes[-1]
        rows = repeat(b, x, [*repeats[:-1], 1])
        beside = reindex(rows, (*sizes[:-1], count, n), lambda p: [*p[:-2], p[-1]])
        return reshape(b.program.copy(beside), sizes)

    def position(p: Position) -> Position:
        return [0 if n == 1 else p[skip + d] % n for d, n in enumerate(x.sizes)]

    return reindex(x, sizes, position)


@lowering("aten.as_strided", "aten.as_strided_copy")
def as_strided(
    b: Build, x: Value, sizes: Sequence[Index], steps: Sequence[Index], offset: Any = None
) -> Value:
    """Any layout over the storage of x, which the front end has laid out as its trace says."""
    stored = b.program.realise(x)
    start = stored.layout.offset if offset is None else offset
    return Stored(stored.buffer, Layout(tuple(sizes), tuple(steps), start))


@lowering("aten.as_strided_scatter")
def as_strided_scatter(
    b: Build,
    x: Value,
    source: Value,
    sizes: Sequence[Index],
    steps: Sequence[Index],
    offset: Any = None,
) -> Value:
    """A copy of the memory of x with a source stored by any layout."""
    if x.dtype not in TABLE:
        raise CannotLower(f"no loops over {x.dtype}")
    if product(source.sizes) == 0:
        return x
    stored = b.program.realise(x)
    if any(k == 0 and n != 1 for n, k in zip(stored.sizes, stored.layout.strides, strict=True)):
        raise CannotLower("elements that share memory, which a copy of has apart")
    place, held = as_strided(b, stored, sizes, steps, offset), stored.layout
    assert isinstance(place, Stored)
    if not b.program.takes(stored):
        # All that either of them reaches; memory that was given goes on around what x shows of it.
        first = _least(place.layout.offset, held.offset)
        end = -_least(-place.layout.span(), -held.span())
        whole = b.program.copy(Stored(stored.buffer, Layout((end - first,), (1,), first)))
        by = whole.layout.offset - first
        held, there = (Layout(x.sizes, x.strides, x.offset + by) for x in (held, place.layout))
        place = Stored(whole.buffer, there)
    return Stored(b.program.write(place, cast(source, x.dtype)).buffer, held)


def _least(a: Index, b: Index) -> Index:
    """The smaller one of two indices. Raises CannotLower where that is not known."""
    if nonnegative(b - a):
        return a
    if nonnegative(a - b):
        return b
    raise CannotLower("a store that may be beyond the tensor's own memory")


@lowering("aten.cat")
def cat(b: Build, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors one after the other along a dimension."""
    dtype = b.out.dtype
    parts = [x for x in tensors if x.sizes != (0,)] or [tensors[0]]
    if any(x.dtype not in TABLE for x in parts):
        raise CannotLower("dtype")
    d = wrap_dim(dim, len(parts[0].sizes))
    pieces = [cast(x, dtype) for x in parts if x.sizes[d] != 0] or [cast(parts[0], dtype)]
    if len(pieces) == 1:
        return pieces[0]
    if all(n != 0 for n in b.out.sizes) and sum(x.cost + 2 for x in pieces) > 24:
        return _cat_stores(b, pieces, d)

    starts: list[Index] = [0]
    for x in pieces:
        starts.append(starts[-1] + x.sizes[d])

    def _choose(p: Position, first: int, last: int) -> Scalar:
        at = ops.index(p[d])
        if last - first == 1:
            x = pieces[first]
            return x.load([*p[:d], p[d] - starts[first], *p[d + 1 :]])
        middle = (first + last) // 2
        here = ops.lt(at, ops.index(starts[middle]))
        left = ops.masked(here, lambda: _choose(p, first, middle), 0)
        right = ops.masked(~here, lambda: _choose(p, middle, last), 0)
        return ops.where(here, left, right)

    count = len(pieces)
    return Lazy(b.out.sizes, dtype, lambda p: _choose(p, 0, count), pieces, count)


def _cat_stores(b: Build, pieces: Sequence[Value], d: int) -> Value:
    """A concatenation as one store per piece into the result's memory: no selection per element."""
    target = b.program.temporary(pieces[0].dtype, dense_layout(b.out.sizes, b.out.strides))
    start: Index = 0
    for x in pieces:
        where = narrow(target, d, start, x.sizes[d])
        assert isinstance(where, Stored)
        written = b.program.write(where, x)
        target = Stored(written.buffer, target.layout)
        start = start + x.sizes[d]
    return target


@lowering("aten.stack")
def stack(b: Build, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Tensors side by side along a new dimension."""
    d = dim + len(tensors[0].sizes) + 1 if dim < 0 else dim
    return cat(b, [unsqueeze(b, x, d) for x in tensors], d)


@lowering("aten.constant_pad_nd")
def constant_pad_nd(b: Build, x: Value, pad: Sequence[Index], value: Any = 0) -> Value:
    """A border of one value; negative widths cut."""
    value = b.fitting(value, x.dtype)
    rank = len(x.sizes)
    low: list[Index] = [0] * rank
    for k in range(len(pad) // 2):
        low[rank - 1 - k] = pad[2 * k]
    sizes = b.out.sizes

    def body(p: Position) -> Scalar:
        inside = ops.constant(True, torch.bool)
        at: list[Index] = []
        for d, i in enumerate(p):
            j = i - low[d]
            at.append(j)
            if not nonnegative(-low[d]):
                inside = inside & ops.ge(ops.index(j), 0)
            if sizes[d] - low[d] != x.sizes[d] and not less(sizes[d] - low[d], x.sizes[d]):
                inside = inside & ops.lt(ops.index(j), ops.index(x.sizes[d]))
        return ops.masked(inside, lambda: x.load(at), value)

    return Lazy(sizes, x.dtype, body, (x,), 3)
