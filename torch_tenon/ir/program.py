"""A program: storages, versions of their contents, and the nodes that read and write them.

Front ends build a program through `Program`'s methods; the scheduler, the memory plan and the code
generator read it. A tensor inside a program is a `Value`: either `Stored` (a layout over a buffer)
or `Lazy` (a loop body that has no memory yet and is inlined into its users). `realise` gives a lazy
value a buffer and the node that fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tenon.ir.index import Index, Symbol, product, symbols, var
from torch_tenon.ir.scalar import Scalar, Trace, ops, tracing
from torch_tenon.ir.values import (
    Buffer,
    Layout,
    Lazy,
    Storage,
    Stored,
    Value,
    dense_layout,
    in_loops,
    loop_symbol,
    memory_order,
    neutral,
    size_hint,
    steps_read,
)


class Node:
    """Something that runs: it writes `outputs` and reads `reads` (whole buffers)."""

    name: str
    origin: str
    outputs: list[Buffer]
    reads: list[Buffer]
    number: int
    calls: list[int]  # the recorded calls that it computes, the one whose result it stores first


@dataclass(eq=False)
class Loop(Node):
    """A loop nest with one body and one store.

    kind:
      pointwise  for outer: buffer[index] = value
      reduce     for outer: buffer[index] = combine over inner of value
      scan       for outer: running combine along inner, each step stored at index
      scatter    for inner, in order, and outer, in any: buffer[index] (combine)= value
    `combine` names the operation: sum, prod, max, min, any, all, xor; for a scan also
    logaddexp, for a scatter also store.
    `trace` holds the scalars that `value` needs, in order; `index` may hold indirect symbols.
    With `asserts` it is there for what it checks, whoever reads its value.
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
    calls: list[int] = field(default_factory=list)
    asserts: bool = False

    def __post_init__(self) -> None:
        self.outputs = [self.buffer]
        self.loads = [s for s in self.trace if s.op == "load"]
        self.reads = list(dict.fromkeys(s.args[0].base for s in self.loads))

    def accumulator(self) -> torch.dtype:
        """The dtype that a reduction, scan or scatter combines in."""
        return self.value.dtype


PANEL = 32  # columns that weights which were laid out once have side by side
# What the operands of a product may be made of; a target may have kernels for fewer.
MATMUL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FourBits:
    """How weights of four bits are read that PyTorch packed for the CPU.

    `scales` (groups of rows, columns, 2) has each column's scale and what 8 stands for, for every
    `group` of rows. Columns lie in blocks of `block`.
    """

    scales: Stored
    group: int
    block: int


@dataclass(frozen=True)
class Places:
    """Where the windows of a convolution with a kernel of two dimensions lie in an image."""

    places: tuple[Index, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


class Matmul(Loop):
    """The product of two matrices, or of two batches of them, as a loop over its elements.

    The operands are read as wholes (`left`, `right`), so they are no loads of the loop; pointwise
    loops over the product's elements can be fused with it (a target's template). `axes` are
    the loops over batch, rows and columns, None where there is one step. A product of bytes may
    have whole numbers of more bits.

    The right operand may be the windows of an image, which overlap in memory. It then has a batch,
    `rows` dimensions that are its rows together (channels, and the kernel of a convolution), and
    those that are its columns (the places of the kernel).

    It may also be bytes, which are numbers of the left operand's dtype, or `weights` of four bits,
    packed into bytes.

    With `panels` the right operand (K, A) lies in panels (A / PANEL, K, PANEL). The last one is
    filled up with zeros. With `places` it does as well, and the left operand is an image
    (N, B, H, W) whose channels are dense in memory. Its matrix has a row for each place of the
    kernel, and K is H * W * B of the kernel.
    """

    def __init__(
        self,
        left: Stored,
        right: Stored,
        out: Stored,
        rows: int = 1,
        weights: FourBits | None = None,
        places: Places | None = None,
        panels: bool = False,
    ) -> None:
        self.left, self.right, self.out, self.rows = left, right, out, rows
        self.weights, self.places, self.panels = weights, places, panels or places is not None
        found = [loop_symbol("p", k, n) for k, n in enumerate(out.sizes)]
        axes: list[Symbol | None] = [None if s.extent == 1 else s for s in found]
        self.axes: list[Symbol | None] = [*[None] * (3 - len(axes)), *axes]
        with tracing(Trace()):
            nothing = ops.constant(0, out.dtype)
        index = out.layout.index([0 if s is None else var(s) for s in axes])
        outer = [s for s in axes if s is not None]
        super().__init__(out.buffer.name, "matmul", outer, [], [], nothing, out.buffer, index)
        read = [left, right, *([] if weights is None else [weights.scales])]
        self.reads = list(dict.fromkeys(x.buffer.base for x in read))

    @property
    def is_narrow(self) -> bool:
        """Whether the right operand is of bytes."""
        return self.right.dtype is not self.left.dtype

    @property
    def is_plain(self) -> bool:
        """Whether the operands are matrices of one dtype, whose elements lie by strides."""
        return self.rows == 1 and not (self.is_narrow or self.panels or self.weights is not None)


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
    calls: list[int] = field(default_factory=list)
    call_index: int = -1  # the recorded call that it is part of, -1 for none
    # How a kernel written by hand is launched instead: asked with the node and the backend, it
    # gives a `Launch` (compiler/handwritten.py), or None where no such kernel is for them.
    launch: Callable[[Extern, Any], Any] | None = None


class Program:
    """The schedulable form of a window, of a compiled graph or of an exported partition."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.storages: list[Storage] = []
        self._storages_made = 0
        self.inputs: list[Stored] = []
        self.outputs: list[Stored] = []
        self.sizes: list[Symbol] = []  # run-time sizes, in the order of the plan's size arguments
        self.origin = ""
        self.call_index = -1  # of the op at hand, among the recorded calls of a window
        self.taken: Storage | None = None  # what the op at hand may change: nobody needs the old
        self.random: tuple[Stored, Stored] | None = None  # seed and first offset, 0-dim int64
        self.random_ops = 0
        self.by_channel: set[Storage] = set()  # of images whose channels are dense
        # Numbers that are known only when it runs, each with a dtype that has to have it.
        self.fitting: list[tuple[Value | Index, torch.dtype]] = []
        self.standalone = False  # it shall run without PyTorch: no op that has loops is a call

    # Storages and buffers

    def storage(self, kind: str, nbytes: Index, name: str = "") -> Storage:
        """A new block of memory."""
        prefix = {"input": "in", "constant": "const"}.get(kind, "buf")
        made = Storage(name or f"{prefix}{self._storages_made}", kind, nbytes)
        self._storages_made += 1
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
        if isinstance(value, Stored) and value.buffer.storage.current is not value.buffer.base:
            newest = value.buffer.storage.current
            assert newest is not None
            return Stored(newest.seen_as(value.dtype), value.layout)
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

    def drop_unused_random(self) -> None:
        """Takes seed and offset away where no op took a number: attention may draw, and seldom
        does."""
        if self.random is None or self.random_ops:
            return
        unused = [s.buffer.storage for s in self.random]
        self.inputs = [s for s in self.inputs if s.buffer.storage not in unused]
        self.storages = [s for s in self.storages if s not in unused]
        self.random = None

    # Nodes

    def add(self, node: Node) -> None:
        """Appends a node; the order of these calls is an order in which the program may run."""
        node.number = len(self.nodes)
        node.origin = node.origin or self.origin
        if not node.calls and self.call_index >= 0:
            node.calls = [self.call_index]
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
        call: int | None = None,
    ) -> Loop:
        """Traces `body(outer position, inner position) -> (value, store index)` into a node.

        `call` is the recorded call whose result it stores, if that is not the one at hand."""
        p = [loop_symbol("p", k, n) for k, n in enumerate(outer)]
        r = [loop_symbol("r", k, n) for k, n in enumerate(inner)]
        with tracing(Trace(self.call_index)) as trace:
            value, index = body(
                [0 if s.extent == 1 else var(s) for s in p],
                [0 if s.extent == 1 else var(s) for s in r],
            )
        needed = _reachable(value, index)
        # What is read may not depend on where, and yet it is an error to read beyond the end.
        for s in trace.scalars:
            if s.op == "check" and s not in needed:
                needed |= _reachable(s, 0)
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
        names = [*trace.origins, self.origin]
        node.origin = ", ".join(dict.fromkeys(n for n in names if n))
        calls = [self.call_index if call is None else call, *trace.calls]
        node.calls = [k for k in dict.fromkeys(calls) if k >= 0]
        self.add(node)
        return node

    def takes(self, value: Value, sources: Sequence[Any] = ()) -> bool:
        """Whether the memory of `value` is `taken`, and none of the values that it is changed by
        reads it."""
        if not isinstance(value, Stored) or value.buffer.storage is not self.taken:
            return False
        read = {b.storage for s in sources if isinstance(s, Value) for b in s.reads}
        return value.buffer.storage not in read

    def owned(self, value: Value, sources: Sequence[Any]) -> Stored:
        """The contents of `value` in memory that may be changed: its own, or a copy. Of the sources
        of the change, those that are computed of it are computed before."""
        if isinstance(value, Stored) and value.buffer.storage is self.taken:
            for s in sources:
                if isinstance(s, Lazy) and any(b.storage is self.taken for b in s.reads):
                    self.realise(s)
        if isinstance(value, Stored) and self.takes(value, sources):
            return value
        return self.copy(value)

    def copies_first(self, target: Stored, value: Value, whole: Index) -> bool:
        """Whether a write would have to put aside a value almost as large as all of the tensor, of
        that many elements, since it reads what it overwrites: making the tensor anew moves less."""
        large = 4 * size_hint(product(target.sizes)) >= 3 * size_hint(whole)
        return large and not _reads_in_place(in_loops(value), target)

    def write(self, target: Stored, value: Value) -> Stored:
        """Writes `value` (broadcast already) into existing memory; returns the new version."""
        if isinstance(value, Stored) and (value.buffer, value.layout) == (
            target.buffer,
            target.layout,
        ):
            return value  # it lies there already
        if product(target.sizes) == 0:
            return target  # a version that no loop makes would lose what was written before
        moved = in_loops(value)
        place = (
            target if moved is value else Stored(target.buffer.seen_as(moved.dtype), target.layout)
        )
        if not _reads_in_place(moved, place):
            # A read of what is being written: safe in one loop only at the same place.
            moved = self.copy(moved)
        fresh = self._version(place.dtype, target.buffer.storage)
        self.fill(Stored(fresh, target.layout), moved)
        return Stored(fresh.seen_as(target.dtype), target.layout)

    def realise(self, value: Value, like: Sequence[Index] | None = None) -> Stored:
        """Memory for `value`; `like` gives the strides wanted where the value has none yet. Without
        it the value says which."""
        if isinstance(value, Stored):
            return value
        assert isinstance(value, Lazy)
        if value.realised is None:
            value.realised = self._image(value) or self.copy(value, like or value.strides)
            value.cost, value.depth, value.reads = 0, 0, value.realised.reads
        return value.realised

    def _image(self, value: Lazy) -> Stored | None:
        """Memory for what is computed of an image by channel: by channel too, unless its dimensions
        have another order. None for anything else."""
        if len(value.sizes) != 4 or not any(b.storage in self.by_channel for b in value.reads):
            return None
        steps = steps_read(value)
        if steps is not None and steps[1] != 1 and value.sizes[1] != 1:
            return None
        return self.copy_by_channel(value)

    def is_by_channel(self, value: Value) -> bool:
        """Whether it is an image that was laid out by channel here."""
        if isinstance(value, Lazy) and value.realised is not None:
            value = value.realised
        if not isinstance(value, Stored) or len(value.sizes) != 4:
            return False
        return value.buffer.storage in self.by_channel and value.layout.strides[1] == 1

    def copy_by_channel(self, value: Value) -> Stored:
        """Images (N, B, H, W) in fresh memory where channels are dense."""
        n, c, h, w = value.sizes
        layout = Layout((n, c, h, w), (c * h * w, 1, w * c, c))
        new = self.temporary(value.dtype, layout)
        self.by_channel.add(new.buffer.storage)
        if product(value.sizes) != 0:
            self.fill(new, value)
        return new

    def copy(self, value: Value, like: Sequence[Index] | None = None) -> Stored:
        """`value` in fresh memory."""
        return self.copy_as(value, dense_layout(value.sizes, like))

    def copy_as(self, value: Value, layout: Layout) -> Stored:
        """`value` in fresh memory of that layout."""
        moved = in_loops(value)
        new = self.temporary(moved.dtype, layout)
        if product(value.sizes) != 0:
            self.fill(new, moved)
        return Stored(new.buffer.seen_as(value.dtype), layout)

    def fill(self, target: Stored, value: Value) -> None:
        """A loop that stores `value` in memory that nothing reads yet."""
        # Loops run in the order of memory, whatever the order of the dimensions.
        order = memory_order(target.layout)
        sizes = [target.sizes[d] for d in order]

        def body(p: list[Index], r: list[Index]) -> tuple[Scalar, Index]:
            position: list[Index] = [0] * len(order)
            for d, i in zip(order, p, strict=True):
                position[d] = i
            return value.load(position), target.layout.index(position)

        call = value.call_index if isinstance(value, Lazy) and value.call_index >= 0 else None
        self.loop("pointwise", body, sizes, (), target.buffer, call=call)

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
            if length == 1 and combine == "sum" and dtype.is_floating_point:
                found = ops.add(found, ops.constant(0.0, dtype))  # so that -0 becomes 0
            return found, new.layout.index(p)

        if length == 0 or length == 1:
            self.loop("pointwise", lambda p, r: full(p, [0] * len(inner)), sizes, (), new.buffer)
        else:
            self.loop("reduce", full, sizes, inner, new.buffer, combine)
        return new

    def matmul(
        self,
        left: Stored,
        right: Stored,
        sizes: Sequence[Index],
        rows: int = 1,
        weights: FourBits | None = None,
        places: Places | None = None,
        panels: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Stored:
        """The product of two matrices, or of two batches of them, in fresh memory; see `Matmul`.
        Without a `dtype` it has that of the left operand."""
        out = self.temporary(dtype or left.dtype, Layout.contiguous(sizes))
        self.add(Matmul(left, right, out, rows, weights, places, panels))
        return out

    def call(
        self,
        target: Any,
        arguments: Sequence[Any],
        keywords: dict[str, Any],
        outputs: Sequence[tuple[torch.dtype, Layout] | None],
        route: str,
        into: bool = False,
        launch: Callable[[Extern, Any], Any] | None = None,
        writes: Sequence[Stored] = (),
    ) -> list[Stored | None]:
        """A call on whole tensors; `outputs` describes each tensor that it returns, `launch` is
        what an `Extern` has by that name, and `writes` are the arguments that it changes, whose
        storages get a new version."""
        kind = "temporary" if into or launch is not None else "external"
        results = [None if o is None else self.temporary(o[0], o[1], kind) for o in outputs]
        name = f"{getattr(target, '__name__', target)}".replace(".", "_")
        node = Extern(name, target, tuple(arguments), keywords, results, route, into)
        node.launch = launch
        node.call_index = self.call_index
        node.outputs = [r.buffer for r in results if r is not None]
        found: dict[Buffer, None] = {}
        _collect(list(arguments) + list(keywords.values()), found)
        node.reads = list(found)
        for storage, changed in {w.buffer.storage: w for w in writes}.items():
            node.outputs.append(self._version(changed.dtype, storage))
        self.add(node)
        return results


def _collect(x: Any, found: dict[Buffer, None]) -> None:
    if isinstance(x, Stored):
        found[x.buffer.base] = None
    elif isinstance(x, list | tuple):
        for y in x:
            _collect(y, found)


def _reachable(value: Scalar, index: Index) -> set[Scalar]:
    seen: set[Scalar] = set()
    stack = [value, *(s.scalar for s in symbols(index) if s.scalar is not None)]
    while stack:
        s = stack.pop()
        if s not in seen:
            seen.add(s)
            stack.extend(s.operands())
    return seen


def _reads_in_place(value: Value, target: Stored) -> bool:
    """Whether every read of the target's storage in `value` is of the element being written."""
    position = [var(loop_symbol("p", k, n)) for k, n in enumerate(target.sizes)]
    with tracing(Trace()) as trace:
        value.load(position)
    where = target.layout.index(position)
    return all(
        s.args[1] == where and s.args[0].dtype is target.dtype
        for s in trace.scalars
        if s.op == "load" and s.args[0].storage is target.buffer.storage
    )
