"""Tensors inside a program: layouts over storages, and loop bodies that have no memory yet.

A `Value` is either `Stored` (a layout over a buffer) or `Lazy` (a body that is inlined into its
users). Views are index maps over either.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import (
    Expr,
    Index,
    Symbol,
    flat_index,
    product,
    strides,
    symbols,
    unflatten,
    var,
)
from torch_tenon.ir.interned import Interned
from torch_tenon.ir.scalar import Scalar, Trace, current, ops, tracing
from torch_tenon.ir.scalar_ops import REDUCTIONS

Position = Sequence[Index]


# A lazy value dearer than this is realised even when it has one user: code size, not speed.
MOST_READS = 24
MOST_COST = 300
MOST_DEPTH = 64  # bodies that call each other: Python's stack has room for a thousand frames


class BodyError(Exception):
    """The body of a lazy value raised an error, which is the cause; `origin` is the op whose result
    the value is. It shows where the value is used: what is lowered then is not to blame."""

    def __init__(self, origin: str) -> None:
        super().__init__(f"the body of {origin}")
        self.origin = origin


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie in a storage: sizes, strides, offset (in elements)."""

    sizes: tuple[Index, ...]
    strides: tuple[Index, ...]
    offset: Index = 0

    def index(self, position: Position) -> Index:
        """The element number, from the start of the storage, at `position`."""
        total = self.offset
        for i, k in zip(position, self.strides, strict=True):
            total = total + i * k
        return total

    def span(self) -> Index:
        """How many elements of the storage the layout reaches to (strides not negative)."""
        total: Index = 1
        for n, k in zip(self.sizes, self.strides, strict=True):
            if n == 0:
                return 0
            total = total + (n - 1) * k
        return total + self.offset

    def rescaled(self, old: int, new: int) -> Layout | None:
        """Where elements of `new` bytes lie instead of those of `old`: the last dimension is that
        much longer or shorter. None where its elements do not lie side by side, or a new one
        would begin in the middle of an old one's neighbours."""
        if old == new or not self.sizes:
            return self if old == new else None
        *outer, step = self.strides
        if step != 1 and self.sizes[-1] != 1:
            return None
        if new < old:
            by = old // new
            length = self.sizes[-1] * by
            found = [*(k * by for k in outer), 1]
            return Layout((*self.sizes[:-1], length), tuple(found), self.offset * by)
        by = new // old
        rows = [k for k, n in zip(outer, self.sizes, strict=False) if n != 1]
        if any(k // by * by != k for k in (self.sizes[-1], self.offset, *rows)):
            return None
        found = [k // by for k in outer]
        return Layout((*self.sizes[:-1], self.sizes[-1] // by), (*found, 1), self.offset // by)

    @staticmethod
    def contiguous(sizes: Iterable[Index]) -> Layout:
        """Row-major strides over `sizes`."""
        sizes = tuple(sizes)
        found: list[Index] = []
        step: Index = 1
        for n in reversed(sizes):
            found.append(step)
            step = step * n
        return Layout(sizes, tuple(found[::-1]))


class Storage:
    """One block of memory. `kind` is `input`, `output`, `temporary`, `external` or `constant`.

    The memory of an `external` storage comes with the result of a call; that of a `constant`
    is a tensor of the front end's, held in `tensor`.
    """

    def __init__(self, name: str, kind: str, nbytes: Index) -> None:
        self.name, self.kind, self.nbytes = name, kind, nbytes
        self.tensor: torch.Tensor | None = None
        self.current: Buffer | None = None

    def __repr__(self) -> str:
        return f"{self.name}({self.kind})"


class Buffer:
    """One version of a storage's contents, of one dtype, made by `writer` (None: given).

    A write in place makes a new buffer over the same storage: `previous` is what it overwrites, and
    the writes to one storage run in the order of their versions. The same version taken for another
    dtype is a `Seen`, whose `base` it is.
    """

    writer: Any
    readers: list[Any]

    def __init__(
        self,
        name: str,
        dtype: torch.dtype,
        storage: Storage,
        previous: Buffer | None = None,
        number: int = 0,
    ) -> None:
        self.name, self.dtype, self.storage, self.previous = name, dtype, storage, previous
        self.number = number
        self.writer = None
        self.readers = []
        self._seen: dict[torch.dtype, Buffer] = {dtype: self}

    @property
    def base(self) -> Buffer:
        """The version itself, whatever its elements are taken for."""
        return self

    def seen_as(self, dtype: torch.dtype) -> Buffer:
        """The same bytes as elements of another dtype."""
        known = self.base._seen
        if dtype not in known:
            known[dtype] = Seen(self.base, dtype)
        return known[dtype]

    def __repr__(self) -> str:
        return self.name


class Seen(Buffer):
    """A version of a storage's contents whose bytes are taken for elements of another dtype.

    Nodes read and write the version: this one stands in loads and layouts alone.
    """

    def __init__(self, base: Buffer, dtype: torch.dtype) -> None:
        self.name, self.dtype = f"{base.name}_{str(dtype).removeprefix('torch.')}", dtype
        self.storage, self.previous, self.number = base.storage, base.previous, base.number
        self._base = base

    @property
    def base(self) -> Buffer:
        return self._base

    @property
    def writer(self) -> Any:
        """Who made the version."""
        return self._base.writer

    @property
    def readers(self) -> list[Any]:  # type: ignore[override]
        """Who reads the version."""
        return self._base.readers


class Value:
    """A tensor inside a program: sizes, dtype, and how to read an element."""

    sizes: tuple[Index, ...]
    dtype: torch.dtype
    cost: int  # scalar operations per element
    depth = 0  # how many bodies are called within each other to read an element
    reads: frozenset[Buffer]
    is_number = False  # a Python number that is known at run time: its dtype decides as theirs do

    def load(self, position: Position) -> Scalar:
        """The element at `position`, recorded in the current trace (in the compute dtype)."""
        raise NotImplementedError

    def numel(self) -> Index:
        """How many elements."""
        return product(self.sizes)


class Stored(Value):
    """A layout over a buffer."""

    def __init__(self, buffer: Buffer, layout: Layout) -> None:
        self.buffer, self.layout = buffer, layout
        self.sizes, self.dtype = layout.sizes, buffer.dtype
        self.cost, self.reads = 0, frozenset((buffer,))

    def load(self, position: Position) -> Scalar:
        loaded: Scalar = ops.load(self.buffer, self.layout.index(position))
        return loaded

    def __repr__(self) -> str:
        return f"Stored({self.buffer}, {self.layout})"


class Lazy(Value):
    """A loop body without memory: `body(position)` records the element, which is then rounded to
    the dtype: what an op computes on the way to a 16-bit number may be of 32 bits, its result is
    not."""

    def __init__(
        self,
        sizes: Iterable[Index],
        dtype: torch.dtype,
        body: Callable[[Position], Scalar],
        inputs: Iterable[Value] = (),
        cost: int = 1,
    ) -> None:
        self.sizes, self.dtype, self.body = tuple(sizes), dtype, body
        self.cost, self.reads = cost, frozenset()
        for v in inputs:
            self.cost += v.cost
            self.depth = max(self.depth, v.depth)
            self.reads |= v.reads
        self.depth += 1
        self.origin = ""  # the op whose result it is
        self.call_index = -1  # the recorded call of that op
        self.realised: Stored | None = None
        self.constant: Any = None  # the number that every element is, if it is one
        self.strides: tuple[Index, ...] | None = None  # wanted in memory; None: the usual order
        self.eager_strides: tuple[Index, ...] | None = (
            None  # in eager code, whatever is wanted here
        )

    def load(self, position: Position) -> Scalar:
        if self.realised is not None:
            return self.realised.load(position)
        trace = current()
        key = (self, *position, trace.mask)
        found = trace.memo.get(key)
        if found is None:
            user = trace.call_index
            if self.call_index >= 0:
                trace.call_index = self.call_index
                trace.calls |= {self.call_index: None}
            found = ops.to(self._computed(position), self.dtype)
            found = trace.memo[key] = ops.rounded(found, self.dtype)
            trace.call_index = user
            trace.origins |= {self.origin: None}
        return found

    def _computed(self, position: Position) -> Scalar:
        try:
            return self.body(position)
        except (BodyError, MemoryError):
            raise
        except Exception as error:
            if not self.origin:  # it is a part of what is being lowered
                raise
            raise BodyError(self.origin) from error

    def __repr__(self) -> str:
        return f"Lazy({self.dtype}, {self.sizes}, cost {self.cost})"


def traced(value: Value) -> Trace:
    """What it takes to compute an element of `value`."""
    position = [0 if n == 1 else var(loop_symbol("p", k, n)) for k, n in enumerate(value.sizes)]
    with tracing(Trace()) as trace:
        value.load(position)
    return trace


def steps_read(value: Value) -> list[Index] | None:
    """By dimension of `value` how far apart in memory lies what neighbours are computed of: of the
    first load that moves with every dimension; None where none does."""
    found = [loop_symbol("p", k, n) for k, n in enumerate(value.sizes)]
    for s in traced(value).scalars:
        steps = strides(s.args[1]) if s.op == "load" else None
        if steps and all(steps.get(p, 0) != 0 for p in found if p.extent != 1):
            return [steps.get(p, 1) for p in found]
    return None


def has_dense_channels(value: Value) -> bool:
    """Whether it is computed of images (N, B, ...) of which several channels of several places lie
    side by side in memory."""
    if len(value.sizes) < 3 or value.sizes[1] == 1 or product(value.sizes[2:]) == 1:
        return False
    if isinstance(value, Lazy) and value.realised is not None:
        value = value.realised
    steps = value.layout.strides if isinstance(value, Stored) else steps_read(value)
    return steps is not None and steps[1] == 1


def name_origin(results: Any, origin: str, call_index: int = -1) -> None:
    """Says which op and which recorded call the results are of, as far as they are computed where
    they are used. What an op gives on as it came is of the op that made it."""
    if isinstance(results, list | tuple):
        for v in results:
            name_origin(v, origin, call_index)
    elif isinstance(results, Lazy) and not results.origin:
        results.origin, results.call_index = origin, call_index


def neutral(combine: str, dtype: torch.dtype) -> Any:
    """What a reduction of nothing gives."""
    start = REDUCTIONS[combine].start
    if start in ("zero", "one"):
        return int(start == "one")
    if dtype is torch.bool:
        return start in ("ones", "greatest")
    if start == "ones":
        return -1
    if dtype.is_floating_point:
        return float("-inf") if start == "least" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if start == "least" else info.max


_shared_symbols: Interned[tuple[str, int, Index], Symbol] = Interned()


def loop_symbol(prefix: str, number: int, extent: Index) -> Symbol:
    """The loop variable of that number and extent: shared, so equal bodies have equal indices."""
    key = (prefix, number, extent)
    found = _shared_symbols.get(key)
    if found is None:
        found = _shared_symbols.enter(key, Symbol(f"{prefix}{number}", extent))
    return found


def memory_order(layout: Layout) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    rank = len(layout.sizes)

    def key(d: int) -> tuple[float, int]:
        k = layout.strides[d]
        if layout.sizes[d] == 1:
            return (0.0, d)
        return (-size_hint(k), d)

    if all(
        k == c
        for k, c in zip(layout.strides, Layout.contiguous(layout.sizes).strides, strict=False)
    ):
        return list(range(rank))
    return sorted(range(rank), key=key)


def set_hint(symbol: Symbol, value: int) -> None:
    """Remembers a typical value of a run-time size, for decisions that are not about rightness."""
    symbol.hint = value


def size_hint(e: Index) -> int:
    """A typical value of an expression in run-time sizes."""
    if isinstance(e, int):
        return e
    total = 0
    for monomial, k in e.terms.items():
        total += k * math.prod(a.hint if isinstance(a, Symbol) else 8 for a in monomial)
    return max(total, 1)


def dense_layout(sizes: Sequence[Index], like: Sequence[Index] | None = None) -> Layout:
    """A layout without gaps over `sizes`, its dimensions in the memory order of strides `like`."""
    if like is None or len(like) != len(sizes):
        return Layout.contiguous(sizes)
    order = memory_order(Layout(tuple(sizes), tuple(like)))
    found: list[Index] = [0] * len(sizes)
    step: Index = 1
    for d in reversed(order):
        found[d] = step
        step = step * sizes[d]
    return Layout(tuple(sizes), tuple(found))


def in_loops(value: Value) -> Value:
    """What loops move `value` as: where they have no numbers of its dtype, its bits in memory."""
    if value.dtype in TABLE or not isinstance(value, Stored):
        return value
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.dtype.itemsize]
    return Stored(value.buffer.seen_as(bits), value.layout)


def reindex(
    value: Value, sizes: Iterable[Index], position: Callable[[Position], Position]
) -> Value:
    """A view: element i of the result is element `position(i)` of `value`.

    A view of stored memory stays stored where its index is affine (every view of PyTorch's is).
    """
    sizes = tuple(sizes)
    if isinstance(value, Lazy) and value.realised is not None:
        value = value.realised
    if isinstance(value, Stored):
        fresh = [loop_symbol("v", k, n) for k, n in enumerate(sizes)]
        at = [0 if n == 1 else var(s) for s, n in zip(fresh, sizes, strict=True)]
        index = value.layout.index(position(at))
        steps = strides(index)
        if steps is not None and not _has_indirect(index):
            offset = index
            found = []
            for s, _n in zip(fresh, sizes, strict=True):
                k = steps.get(s, 0)
                offset = offset - k * var(s)
                found.append(k)
            if not isinstance(offset, Expr) or not any(s in fresh for s in symbols(offset)):
                return Stored(value.buffer, Layout(sizes, tuple(found), offset))
    source = value

    def body(p: Position) -> Scalar:
        return source.load(position(p))

    return Lazy(sizes, value.dtype, body, (value,), 0)


def real_part(value: Value) -> Value:
    """The real parts of complex numbers."""
    dtype = value.dtype.to_real()
    return Lazy(value.sizes, dtype, lambda p: ops.real(value.load(p)), (value,), 0)


def imag_part(value: Value) -> Value:
    """The imaginary parts of complex numbers."""
    dtype = value.dtype.to_real()
    return Lazy(value.sizes, dtype, lambda p: ops.imag(value.load(p)), (value,), 0)


def joined(real: Value, imag: Value) -> Value:
    """The complex numbers of these parts."""
    dtype = real.dtype.to_complex()
    return Lazy(real.sizes, dtype, lambda p: ops.pair(real.load(p), imag.load(p)), (real, imag), 0)


def pairs_joined(value: Value) -> Value:
    """The complex numbers whose parts a last dimension of 2 has."""

    def part(k: int) -> Value:
        return reindex(value, value.sizes[:-1], lambda p: [*p, k])

    return joined(part(0), part(1))


Run = tuple[int, int]  # of dimensions, from one up to another


def _has_indirect(e: Index) -> bool:
    return any(s.scalar is not None for s in symbols(e))


def reshape(value: Value, sizes: Iterable[Index]) -> Value:
    """`value` with other sizes and as many elements, in row-major order."""
    sizes = tuple(sizes)
    if sizes == value.sizes:
        return value
    old = value.sizes
    groups = _matched_dims(old, sizes)
    if isinstance(value, Lazy) and value.realised is not None:
        value = value.realised
    if isinstance(value, Stored):
        layout = _seen_in_groups(value.layout, sizes, groups)
        if layout is not None:
            return Stored(value.buffer, layout)

    def position(p: Position) -> Position:
        found: list[Index] = []
        for (a, b), (c, d) in groups:
            if b - a == 1 and d - c == 1:
                found.append(p[c])
            else:
                found.extend(unflatten(flat_index(p[c:d], sizes[c:d]), old[a:b]))
        return found

    return reindex(value, sizes, position)


def _seen_in_groups(
    layout: Layout, sizes: tuple[Index, ...], groups: Sequence[tuple[Run, Run]]
) -> Layout | None:
    """The layout with other sizes, where the dimensions of each run lie one within the other."""
    strides: list[Index] = [0] * len(sizes)
    for (a, b), (c, d) in groups:
        dims = [k for k in range(a, b) if layout.sizes[k] != 1]
        for outer, inner in itertools.pairwise(dims):
            if layout.strides[outer] != layout.strides[inner] * layout.sizes[inner]:
                return None
        step: Index = layout.strides[dims[-1]] if dims else 1
        for k in reversed(range(c, d)):
            strides[k] = step
            step = step * sizes[k]
    return Layout(sizes, tuple(strides), layout.offset)


def _matched_dims(old: Sequence[Index], new: Sequence[Index]) -> list[tuple[Run, Run]]:
    """Splits two shapes of equal size into the shortest runs of dimensions of equal product."""
    groups = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, c = i, j
        left: Index = 1
        right: Index = 1
        if i < len(old):
            left, i = old[i], i + 1
        if j < len(new):
            right, j = new[j], j + 1
        while left != right:
            grow_left = i < len(old) and (
                j >= len(new) or size_hint(left) <= size_hint(right) or left == 0
            )
            if grow_left:
                left, i = left * old[i], i + 1
            elif j < len(new):
                right, j = right * new[j], j + 1
            else:
                return [((0, len(old)), (0, len(new)))]
        groups.append(((a, i), (c, j)))
    return groups


def weigh(value: Value, users: int) -> bool:
    """Whether a lazy value with that many users should have memory rather than be inlined."""
    if not isinstance(value, Lazy) or value.realised is not None:
        return False
    if len(value.reads) > MOST_READS or value.cost > MOST_COST or value.depth > MOST_DEPTH:
        return True
    return users > 1 and (len(value.reads) > 1 or value.cost > 8)
