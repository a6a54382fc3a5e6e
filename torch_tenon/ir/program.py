"""A program: storages, versions of their contents, and the nodes that read and write them.

Front ends build a program through `Program`'s methods; the scheduler, the memory plan and the code
generator read it. A tensor inside a program is a `Value`: either `Stored` (a layout over a buffer)
or `Lazy` (a loop body that has no memory yet and is inlined into its users). `realise` gives a lazy
value a buffer and the node that fills it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import Expr, Index, Symbol, flat_index, product, strides, unflatten, var
from torch_tenon.ir.scalar import Scalar, Trace, ops, tracing

Position = Sequence[Index]
# A lazy value dearer than this is realised even when it has one user: code size, not speed.
MOST_READS = 24
MOST_COST = 300


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
    the writes to one storage run in the order of their versions.
    """

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
        self.writer: Node | None = None
        self.readers: list[Node] = []

    def __repr__(self) -> str:
        return self.name


class Value:
    """A tensor inside a program: sizes, dtype, and how to read an element."""

    sizes: tuple[Index, ...]
    dtype: torch.dtype
    cost: int  # scalar operations per element
    reads: frozenset[Buffer]

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
    """A loop body without memory: `body(position)` records the element."""

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
            self.reads |= v.reads
        self.realised: Stored | None = None
        self.constant: Any = None  # the number that every element is, if it is one

    def load(self, position: Position) -> Scalar:
        if self.realised is not None:
            return self.realised.load(position)
        trace = _current_trace()
        key = (self, *position, trace.mask)
        found = trace.memo.get(key)
        if found is None:
            found = trace.memo[key] = ops.to(self.body(position), self.dtype)
        return found

    def __repr__(self) -> str:
        return f"Lazy({self.dtype}, {self.sizes}, cost {self.cost})"


def _current_trace() -> Trace:
    from torch_tenon.ir.scalar import current

    return current()


class Node:
    """Something that runs: it writes `outputs` and reads `reads` (whole buffers)."""

    name: str
    origin: str
    outputs: list[Buffer]
    reads: list[Buffer]
    number: int


@dataclass(eq=False)
class Loop(Node):
    """A loop nest with one body and one store.

    kind:
      pointwise  for outer: buffer[index] = value
      reduce     for outer: buffer[index] = combine over inner of value
      scan       for outer: running combine along inner, each step stored at index
      scatter    for inner, in order, and outer, in any: buffer[index] (combine)= value
    `combine` names the operation: sum, prod, max, min, any, all, xor; for a scatter also "store".
    `trace` holds the scalars that `value` needs, in order; `index` may hold indirect symbols.
    """

    name: str
    kind: str
    outer: list[Symbol]
    inner: list[Symbol]
    trace: list[Scalar]
    value: Scalar
    buffer: Buffer
    index: Index
    combine: str = ""
    origin: str = ""
    number: int = 0
    outputs: list[Buffer] = field(default_factory=list)
    reads: list[Buffer] = field(default_factory=list)
    loads: list[Scalar] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outputs = [self.buffer]
        self.loads = [s for s in self.trace if s.op == "load"]
        self.reads = list(dict.fromkeys(s.args[0] for s in self.loads))

    def accumulator(self) -> torch.dtype:
        """The dtype that a reduction, scan or scatter combines in."""
        return self.value.dtype


@dataclass(eq=False)
class Extern(Node):
    """A call on whole tensors: a library kernel or a fallback.

    `arguments` mirrors the op's arguments, with a `Stored` for each tensor and an `Index` for each
    size. With `into`, the call takes `out=` and writes its one output; else its results become the
    memory of `outputs` (None for a result that nobody needs).
    """

    name: str
    target: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    results: list[Stored | None]
    route: str = "fallback"
    into: bool = False
    origin: str = ""
    number: int = 0
    outputs: list[Buffer] = field(default_factory=list)
    reads: list[Buffer] = field(default_factory=list)


class Program:
    """The schedulable form of a window, of a compiled graph or of an exported partition."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []
        self.inputs: list[Stored] = []
        self.outputs: list[Stored] = []
        self.sizes: list[Symbol] = []  # run-time sizes, in the order of the plan's size arguments
        self.threads = torch.get_num_threads()
        self.origin = ""
        self.random: tuple[Stored, Stored] | None = None  # seed and first offset, 0-dim int64
        self.random_ops = 0

    # Storages and buffers

    def storage(self, kind: str, nbytes: Index, name: str = "") -> Storage:
        """A new block of memory."""
        prefix = {"input": "in", "constant": "const"}.get(kind, "buf")
        made = Storage(name or f"{prefix}{len(self.storages)}", kind, nbytes)
        self.storages.append(made)
        return made

    def input(self, dtype: torch.dtype, layout: Layout, name: str = "") -> Stored:
        """A tensor that the caller of the plan passes, in the order of these calls."""
        storage = self.storage("input", layout.span() * dtype.itemsize, name)
        stored = Stored(self._version(dtype, storage), layout)
        self.inputs.append(stored)
        return stored

    def constant(self, tensor: torch.Tensor) -> Stored:
        """A tensor of the front end's that lives as long as the plan."""
        layout = Layout(tuple(tensor.shape), tuple(tensor.stride()))
        storage = self.storage("constant", layout.span() * tensor.dtype.itemsize)
        storage.tensor = tensor
        return Stored(self._version(tensor.dtype, storage), layout)

    def temporary(self, dtype: torch.dtype, layout: Layout, kind: str = "temporary") -> Stored:
        """Memory of the program's own."""
        storage = self.storage(kind, layout.span() * dtype.itemsize)
        return Stored(self._version(dtype, storage), layout)

    def _version(self, dtype: torch.dtype, storage: Storage) -> Buffer:
        previous = storage.current
        number = 0 if previous is None else previous.number + 1
        name = f"{storage.name}_v{number}" if number else storage.name
        buffer = Buffer(name, dtype, storage, previous, number)
        storage.current = buffer
        return buffer

    def current(self, value: Value) -> Value:
        """`value` with the newest contents of its storage: what a view sees after a write."""
        if isinstance(value, Stored) and value.buffer.storage.current is not value.buffer:
            newest = value.buffer.storage.current
            assert newest is not None
            return Stored(newest, value.layout)
        return value

    def version(self, target: Stored) -> Stored:
        """A new version of the target's storage, for a node that changes part of it in place."""
        return Stored(self._version(target.dtype, target.buffer.storage), target.layout)

    def next_random(self) -> tuple[Value, Value]:
        """The seed and the offset of the next random op."""
        assert self.random is not None
        seed, first = self.random
        number = self.random_ops
        self.random_ops += 1
        offset = Lazy((), torch.int64, lambda p: ops.add(first.load(p), number), (first,))
        return seed, offset

    # Nodes

    def add(self, node: Node) -> None:
        """Appends a node; the order of these calls is an order in which the program may run."""
        node.number = len(self.nodes)
        node.origin = node.origin or self.origin
        self.nodes.append(node)
        for b in node.outputs:
            b.writer = node
        for b in node.reads:
            b.readers.append(node)

    def loop(
        self,
        kind: str,
        body: Callable[[list[Index], list[Index]], tuple[Scalar, Index]],
        outer: Sequence[Index],
        inner: Sequence[Index],
        buffer: Buffer,
        combine: str = "",
    ) -> Loop:
        """Traces `body(outer position, inner position) -> (value, store index)` into a node."""
        p = [_loop_symbol("p", k, n) for k, n in enumerate(outer)]
        r = [_loop_symbol("r", k, n) for k, n in enumerate(inner)]
        with tracing(Trace()) as trace:
            value, index = body(
                [0 if s.extent == 1 else var(s) for s in p],
                [0 if s.extent == 1 else var(s) for s in r],
            )
        needed = _reachable(value, index)
        node = Loop(
            f"{buffer.name}",
            kind,
            [s for s in p if s.extent != 1],
            [s for s in r if s.extent != 1],
            [s for s in trace.scalars if s in needed],
            value,
            buffer,
            index,
            combine,
        )
        self.add(node)
        return node

    def write(self, target: Stored, value: Value) -> Stored:
        """Writes `value` (broadcast already) into existing memory; returns the new version."""
        if (
            not isinstance(value, Lazy) or target.buffer.storage in _storages(value.reads)
        ) and not _reads_in_place(value, target):
            # A read of what is being written: safe in one loop only at the same place.
            value = self.copy(value)
        fresh = self._version(target.dtype, target.buffer.storage)
        new = Stored(fresh, target.layout)
        if product(target.sizes) != 0:
            self._fill(new, value)
        return new

    def realise(self, value: Value, like: Sequence[Index] | None = None) -> Stored:
        """Memory for `value`; `like` gives the strides wanted where the value has none yet."""
        if isinstance(value, Stored):
            return value
        assert isinstance(value, Lazy)
        if value.realised is None:
            value.realised = self.copy(value, like)
            value.cost, value.reads = 0, value.realised.reads
        return value.realised

    def copy(self, value: Value, like: Sequence[Index] | None = None) -> Stored:
        """`value` in fresh memory."""
        layout = dense_layout(value.sizes, like)
        new = self.temporary(value.dtype, layout)
        if product(value.sizes) != 0:
            self._fill(new, value)
        return new

    def _fill(self, target: Stored, value: Value) -> None:
        # Loops run in the order of memory, whatever the order of the dimensions.
        order = memory_order(target.layout)
        sizes = [target.sizes[d] for d in order]

        def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            position: list[Index] = [0] * len(order)
            for d, i in zip(order, p, strict=True):
                position[d] = i
            return value.load(position), target.layout.index(position)

        self.loop("pointwise", body, sizes, (), target.buffer)

    def reduce(
        self,
        sizes: Sequence[Index],
        inner: Sequence[Index],
        body: Callable[[list[Index], list[Index]], Scalar],
        combine: str,
        dtype: torch.dtype,
    ) -> Stored:
        """A reduction over `inner` for each position in `sizes`, in fresh memory of `dtype`."""
        new = self.temporary(dtype, Layout.contiguous(sizes))
        if product(sizes) == 0:
            return new

        length = product(inner)

        def full(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            value = neutral(combine, dtype) if length == 0 else None
            found = body(p, r) if value is None else ops.constant(value, dtype)
            return found, new.layout.index(p)

        if length == 0 or length == 1:
            self.loop("pointwise", lambda p, r: full(p, [0] * len(inner)), sizes, (), new.buffer)
        else:
            self.loop("reduce", full, sizes, inner, new.buffer, combine)
        return new

    def call(
        self,
        target: Any,
        arguments: Sequence[Any],
        keywords: dict[str, Any],
        outputs: Sequence[tuple[torch.dtype, Layout] | None],
        route: str,
        into: bool = False,
    ) -> list[Stored | None]:
        """A call on whole tensors; `outputs` describes each tensor that it returns."""
        results = [
            None if o is None else self.temporary(o[0], o[1], "temporary" if into else "external")
            for o in outputs
        ]
        name = f"{getattr(target, '__name__', target)}".replace(".", "_")
        node = Extern(name, target, tuple(arguments), keywords, results, route, into)
        node.outputs = [r.buffer for r in results if r is not None]
        found: dict[Buffer, None] = {}
        _collect(list(arguments) + list(keywords.values()), found)
        node.reads = list(found)
        self.add(node)
        return results


def _collect(x: Any, found: dict[Buffer, None]) -> None:
    if isinstance(x, Stored):
        found[x.buffer] = None
    elif isinstance(x, list | tuple):
        for y in x:
            _collect(y, found)


def neutral(combine: str, dtype: torch.dtype) -> Any:
    """What a reduction of nothing gives."""
    if combine in ("sum", "any", "xor"):
        return 0
    if combine in ("prod", "all"):
        return 1
    if dtype is torch.bool:
        return combine == "min"
    if dtype.is_floating_point:
        return float("-inf") if combine == "max" else float("inf")
    info = torch.iinfo(dtype)
    return info.min if combine == "max" else info.max


_loop_symbols: dict[tuple[str, int, Index], Symbol] = {}


def _loop_symbol(prefix: str, number: int, extent: Index) -> Symbol:
    """The loop variable of that number and extent: shared, so equal bodies have equal indices."""
    key = (prefix, number, extent)
    found = _loop_symbols.get(key)
    if found is None:
        found = _loop_symbols[key] = Symbol(f"{prefix}{number}", extent)
    return found


def _reachable(value: Scalar, index: Index) -> set[Scalar]:
    from torch_tenon.ir.index import symbols

    seen: set[Scalar] = set()
    stack = [value, *(s.scalar for s in symbols(index) if s.scalar is not None)]
    while stack:
        s = stack.pop()
        if s not in seen:
            seen.add(s)
            stack.extend(s.operands())
    return seen


def _storages(buffers: Iterable[Buffer]) -> set[Storage]:
    return {b.storage for b in buffers}


def _reads_in_place(value: Value, target: Stored) -> bool:
    """Whether every read of the target's storage in `value` is of the element being written."""
    position = [var(_loop_symbol("p", k, n)) for k, n in enumerate(target.sizes)]
    with tracing(Trace()) as trace:
        value.load(position)
    where = target.layout.index(position)
    return all(
        s.args[1] == where
        for s in trace.scalars
        if s.op == "load" and s.args[0].storage is target.buffer.storage
    )


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


_hints: dict[Symbol, int] = {}


def set_hint(symbol: Symbol, value: int) -> None:
    """Remembers a typical value of a run-time size, for decisions that are not about rightness."""
    _hints[symbol] = value


def size_hint(e: Index) -> int:
    """A typical value of an expression in run-time sizes."""
    if isinstance(e, int):
        return e
    total = 0
    for monomial, k in e.terms.items():
        total += k * math.prod(_hints.get(a, 64) if isinstance(a, Symbol) else 8 for a in monomial)
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
        fresh = [_loop_symbol("v", k, n) for k, n in enumerate(sizes)]
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
            if not isinstance(offset, Expr) or not any(s in fresh for s in _symbols(offset)):
                return Stored(value.buffer, Layout(sizes, tuple(found), offset))
    source = value

    def body(p: Position) -> Scalar:
        return source.load(position(p))

    return Lazy(sizes, value.dtype, body, (value,), 0)


def _symbols(e: Index) -> set[Symbol]:
    from torch_tenon.ir.index import symbols

    return symbols(e)


def _has_indirect(e: Index) -> bool:
    return any(s.scalar is not None for s in _symbols(e))


def reshape(value: Value, sizes: Iterable[Index]) -> Value:
    """`value` with other sizes and as many elements, in row-major order."""
    sizes = tuple(sizes)
    if sizes == value.sizes:
        return value
    old = value.sizes
    groups = _matched_dims(old, sizes)

    def position(p: Position) -> Position:
        found: list[Index] = []
        for (a, b), (c, d) in groups:
            if b - a == 1 and d - c == 1:
                found.append(p[c])
            else:
                found.extend(unflatten(flat_index(p[c:d], sizes[c:d]), old[a:b]))
        return found

    return reindex(value, sizes, position)


def _matched_dims(
    old: Sequence[Index], new: Sequence[Index]
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
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
    if len(value.reads) > MOST_READS or value.cost > MOST_COST:
        return True
    return users > 1 and (len(value.reads) > 1 or value.cost > 8)


def needs_compute(dtype: torch.dtype) -> bool:
    """Whether values of `dtype` are widened in registers."""
    return compute_dtype(dtype) is not dtype
