"""From a fused group to a loop tree in its plain form.

The loops over results are outside, in the group's order, and all that one position of them does is
inside: the passes over what is reduced, one after the other, and between them what is computed once
for the position. Every value stands in the innermost loop of its pass.
"""

from __future__ import annotations

import torch

from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Barrier,
    Check,
    Constant,
    Declare,
    Failure,
    For,
    Kind,
    Let,
    Load,
    Operand,
    Read,
    Statement,
    Store,
    Tree,
)
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import (
    Expr,
    Index,
    Symbol,
    floordiv,
    mod,
    strides,
    substitute,
    symbols,
    var,
)
from torch_tenon.ir.program import Loop
from torch_tenon.ir.scalar import Scalar
from torch_tenon.ir.sixteen_bits import ROUNDING
from torch_tenon.ir.values import Buffer, loop_symbol


def axes(group: Group) -> dict[Symbol, Symbol]:
    """The loops' symbols in the tree, by the group's: i0, i1, ... over results, j0, j1, ... over
    what is reduced."""
    found = {}
    for prefix, loops in (("i", group.outer), ("j", group.inner)):
        for k, s in enumerate(loops):
            assert s.extent is not None
            found[s] = loop_symbol(prefix, k, s.extent)
    return found


def read_later(group: Group) -> dict[Buffer, None]:
    """Buffers with an element for each position that a pass writes and a later one reads."""
    made = {m.node.buffer: m for m in group.members}
    found: dict[Buffer, None] = {}
    for m in group.members:
        for b, _ in m.loads:
            w = made.get(b)
            if w is not None and not w.result_is_row and m.stage > w.stage:
                found[b] = None
    return found


def lower(group: Group, kept: set[Buffer]) -> Tree:
    """The plain tree of a group; `kept` are the buffers that somebody outside needs."""
    lowering = Lowering(group, kept, {s: var(t) for s, t in axes(group).items()})
    body = lowering.position()
    for s in reversed(group.outer):
        body = [over(lowering.loops[s], "parallel", body)]
    return Tree(body)


def over(index: Index, kind: Kind, body: list[Statement], again: bool = False) -> For:
    """The loop over the whole extent of a symbol."""
    (symbol,) = symbols(index)
    assert symbol.extent is not None
    return For(symbol, kind, symbol, (0,), (symbol.extent,), body, again=again)


def joined_loops(
    product: Member, whole: Symbol | None, axis: Symbol, loops: dict[Symbol, Index]
) -> list[Statement]:
    """Adds to `loops` the group's loops of which one of a product, `whole`, is a join, for `axis`
    in its place. Gives what computes them where they are several."""
    if whole is None:
        return []
    steps = strides(product.values[whole]) or {}
    if len(steps) == 1:
        loops[next(iter(steps))] = var(axis)
        return []
    computed: list[Statement] = []
    for s, step in steps.items():
        assert s.extent is not None
        position = floordiv(var(axis), step)
        if step * s.extent != whole.extent:
            position = mod(position, s.extent)
        symbol = loop_symbol(axis.name, len(computed), s.extent)
        computed.append(Let("index", (position,), torch.int64, symbol))
        loops[s] = var(symbol)
    return computed


class Lowering:
    """Makes the statements of one position. `loops` has the group's loops in symbols of the tree,
    `forward` what is known of buffers without reading them."""

    def __init__(
        self,
        group: Group,
        kept: set[Buffer],
        loops: dict[Symbol, Index],
        forward: dict[Buffer, Operand] | None = None,
    ) -> None:
        self.group, self.kept, self.loops = group, kept, loops
        self.later = read_later(group)
        self.forward = dict(forward or {})
        # Of 16-bit buffers, those of which that may have more digits than memory.
        self.wide = {b for b, x in self.forward.items() if not _is_of(b.dtype, x)}
        self.out: list[Statement] = []
        self.values: dict[Scalar, Operand] = {}  # of the member at hand
        self.symbols: dict[Symbol, Index] = {}  # the same

    def position(self) -> list[Statement]:
        """All that one position of the loops over results does."""
        found: list[Statement] = []
        passes = 0
        last = max(m.stage for m in self.group.members)
        for stage in range(-1, last + 1):
            for full in (True, False):
                members = [m for m in self.group.members if m.stage == stage and m.full is full]
                if not members:
                    continue
                if found:
                    found.append(Barrier())
                if full:
                    found += self._pass(members, passes > 0)
                    passes += 1
                else:
                    found += self.statements(members)
        return found

    def _pass(self, members: list[Member], again: bool) -> list[Statement]:
        """A pass over all inner positions, and what is stored of the reductions after it."""
        before = dict(self.forward)
        accumulators = {
            n: Accumulator("acc", n.accumulator(), None, n.combine, n.kind == "scan")
            for n in (m.node for m in members)
            if n.kind in ("reduce", "scan")
        }
        body = self.statements(members, accumulators)
        kinds = {m.node.kind for m in members}
        kind: Kind = "parallel"
        if kinds & {"scan", "scatter"}:
            kind = "serial"
        elif "reduce" in kinds:
            kind = "reduce"
        for s in reversed(self.group.inner):
            body = [over(self.loops[s], kind, body, again)]
        # What a pass computes for each inner position ends with it.
        self.forward = before
        found: list[Statement] = [Declare(a) for a in accumulators.values()]
        found += body
        for node, a in accumulators.items():
            if not a.running:
                total = Read(a, 0, a.dtype)
                self.forward[node.buffer] = total
                if node.buffer in self.kept:
                    index = next(m.index for m in members if m.node is node)
                    found.append(Store(node.buffer, substitute(index, self.loops), total))
        return found

    def statements(
        self, members: list[Member], accumulators: dict[Loop, Accumulator] | None = None
    ) -> list[Statement]:
        """What members do at one position, in their order."""
        self.out = []
        for m in members:
            self.values = {}
            self.symbols = {s: substitute(e, self.loops) for s, e in m.values.items()}
            for s in m.node.trace:
                self.values[s] = self._scalar(s, m)
            self._end(m, self.values[m.node.value], (accumulators or {}).get(m.node))
        return self.out

    def _end(self, m: Member, value: Operand, accumulator: Accumulator | None) -> None:
        """What becomes of a member's value."""
        b = m.node.buffer
        if accumulator is not None:
            self.out.append(Accumulate(accumulator, 0, value))
            if not accumulator.running:
                return
            dtype = accumulator.dtype
            if dtype is torch.float64 and compute_dtype(b.dtype) is torch.float32:
                dtype = torch.float32
            value = self._let("copy", (Read(accumulator, 0, dtype),), dtype)
        if m.node.kind == "scatter":
            self.out.append(Store(b, self._index(m.node.index, m), value, m.node.combine))
            return
        if b in self.kept or b in self.later:
            self.out.append(Store(b, self._index(m.node.index, m), value))
        self.forward[b] = value
        if not gives_rounded(m.node):
            self.wide.add(b)

    def _let(self, op: str, args: tuple[Operand, ...], dtype: torch.dtype) -> Let:
        made = Let(op, args, dtype)
        self.out.append(made)
        return made

    def _index(self, e: Index, m: Member) -> Index:
        """An index expression of a member in the tree's symbols."""
        if not isinstance(e, Expr):
            return e
        for s in symbols(e):
            if s.scalar is not None and s not in self.symbols:
                value = self.values[s.scalar]
                assert isinstance(value, Let)
                value.symbol = value.symbol or s
                self.symbols[s] = var(value.symbol)
        return substitute(e, self.symbols)

    def _scalar(self, s: Scalar, m: Member) -> Operand:
        if s.op == "constant":
            return Constant(s.args[1].value, s.dtype)
        if s.op == "index":
            return self._let("index", (self._index(s.args[0], m),), s.dtype)
        if s.op == "load":
            return self._load(s, m)
        if s.op == "check":
            return self._check(s, m)
        if s.op == "within":
            value, size = s.args
            return self._let(s.op, (self.values[value], self._index(size, m)), s.dtype)
        args = tuple(self.values[a] for a in s.args)
        return self._let(s.op, args, s.dtype)

    def _load(self, s: Scalar, m: Member) -> Operand:
        buffer, index, mask, other = s.args
        guard = None if mask is None else self.values[mask]
        rest = None if mask is None else self.values[other]
        if buffer not in self.forward:
            made = Load(buffer, self._index(index, m), s.dtype, guard, rest)
            self.out.append(made)
            return made
        value = self.forward[buffer]
        if buffer in self.wide:
            # An element is one number, whether it is read from memory or not.
            value = self._let(ROUNDING[buffer.dtype], (value,), s.dtype)
        if guard is None or rest is None:
            return value
        return self._let("where", (guard, value, rest), s.dtype)

    def _check(self, s: Scalar, m: Member) -> Operand:
        x, size, message, mask, call_index = s.args
        value = self.values[x]
        extent = self._index(size, m)
        if mask is not None:
            zero = Constant(0, torch.int64)
            value = self._let("where", (self.values[mask], value, zero), torch.int64)
        self.out.append(Check(value, value, extent, Failure(message, [call_index])))
        return self._let("within", (value, extent), torch.int64)


def gives_rounded(node: Loop) -> bool:
    """Whether what a node stores is of its dtype as it is computed: only 16-bit numbers may not."""
    dtype = node.buffer.dtype
    return dtype not in ROUNDING or (node.kind == "pointwise" and dtype in node.value.exact)


def _is_of(dtype: torch.dtype, x: Operand) -> bool:
    """Whether a value is known to be of that dtype, where it is a 16-bit one."""
    return dtype not in ROUNDING or (isinstance(x, Load) and x.memory.dtype is dtype)
