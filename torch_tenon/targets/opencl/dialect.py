"""A loop tree in OpenCL C. It decides nothing.

The grid is what work-items share out: one takes one step of it, or a work-group does. Then the
loops of kind group are what its work-items share out (`Shared`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Barrier,
    CopyBlock,
    Declare,
    For,
    Memory,
    Space,
    Statement,
    Store,
    Tree,
    space_of,
    walk,
)
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, Symbol, floordiv, product, substitute, var
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import Names, Writer, extreme, indent
from torch_tenon.targets.opencl.device import Shape

# Before a loop of lanes: its iterations do not depend on each other. Compilers that are not clang's
# pass over it.
LANES = "#pragma clang loop vectorize(assume_safety) vectorize_width({})"
NO_LANES = "#pragma clang loop vectorize(disable)"
# So many vectors of them side by side, where each adds to the one before and nothing else does.
SIDE_BY_SIDE = " interleave_count(4)"
# What a combination is called there.
ATOMICS = {"sum": "add", "max": "max", "min": "min", "xor": "xor"}
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


@dataclass(frozen=True)
class Part:
    """How work-items share out a loop: work-item w begins at iteration `w / apart % count`, and
    every `count`-th is its own."""

    apart: int
    count: int

    def number(self) -> str:
        """The iteration that a work-item begins at, as a number of OpenCL's."""
        text = "get_local_id(0)" + (f" / {self.apart}" if self.apart > 1 else "")
        return f"({text} % {self.count})"

    def first(self) -> str:
        """The same for an index."""
        return f"(int64_t){self.number()}"


@dataclass(frozen=True)
class Shared:
    """What the work-items of a work-group do together.

    items     how many they are, a power of two
    parts     how they share out the loops along an axis of the tree
    together  how those are numbered that put their accumulators together, and of which one stores
    position  the axis of which each work-item has one position, where a work-group has several
    side      of tiles that are transposed in local memory
    """

    items: int
    parts: dict[Symbol, Part] = field(default_factory=dict)
    together: Part = Part(0, 1)
    position: Symbol | None = None
    side: int = 0


class OpenCLWriter(Writer):
    """Spells the statements of one tree. Where work-items of a work-group do a step of the grid
    together, `shared` says how; else each of `local` does one. `given` is as for `Writer`."""

    spaces: ClassVar[Mapping[Space, str]] = {
        "global": "__global ",
        "shared": "__local ",
        "private": "",
    }
    local = 1

    def __init__(
        self,
        tree: Tree,
        shape: Shape,
        given: Names | None = None,
        shared: Shared | None = None,
    ) -> None:
        super().__init__(tree, given)
        self.shape, self.shared = shape, shared
        if shared is not None:
            self.local = shared.items
        self.local_memory: list[str] = []  # declarations, which stand first in a kernel
        self.in_pass = False  # inside of what work-items share
        self.guards: list[str] = []  # what holds where a work-item's position is one of its own
        self.scanning = ""  # the one of a loop with running combinations
        self.scans: dict[Accumulator, tuple[str, str]] = {}  # what was before, and all their values
        self.together: dict[str, str] = {}  # where those of a type are put together
        self.keys: dict[Accumulator, str] = {}  # of extremes whose numbers are compared as integers

    def function(self, origin: str) -> str:
        """The kernel of that origin."""
        return self.kernel(origin, self.body(self.tree.body))

    def kernel(self, origin: str, body: Sequence[str]) -> str:
        """A kernel with these lines, which may have asked for pointers and arguments."""
        parameters = [
            *(f"__global uchar *m{k}, const ulong o{k}" for k, _ in enumerate(self.storages)),
            *(f"const long n{k}" for k, _ in enumerate(self.arguments)),
            *(["__global long *status"] if self.failures else []),
        ]
        head = f"__kernel void @NAME@({', '.join(parameters)}) {{"
        size = f"__attribute__((reqd_work_group_size({self.local}, 1, 1)))"
        shares = [f"const int64_t shares = {self.shape.shares};"] if self.tree.shares else []
        lines = [*self.local_memory, *self.pointers(), *shares, *once(body)]
        return "\n".join([f"/* {origin} */", size, head, *indent(lines), "}\n"])

    def groups(self) -> Index:
        """How many work-groups a launch has, in the program's sizes."""
        items = self.local if self.shared is None else 1
        return floordiv(self.steps() + items - 1, items)

    def steps(self) -> Index:
        """How many steps the grid has, in the program's sizes."""
        steps = product(map(steps_of, self.grid()))
        known: dict[Any, Index] = dict(self.tree.numbers)
        if self.tree.shares is not None:
            known[self.tree.shares] = self.shape.shares
        return steps if isinstance(steps, int) else substitute(steps, known)

    def grid(self) -> list[For]:
        """The loops of the grid, from the outermost. Raises NotImplementedError for two grids."""
        found = [s for s in walk(self.tree.body) if isinstance(s, For) and s.kind == "grid"]
        loops: list[For] = []
        body = self.tree.body
        while inner := [s for s in body if isinstance(s, For) and s.kind == "grid"]:
            loops.append(inner[0])
            body = inner[0].body
        if loops != found:
            raise NotImplementedError("a kernel with more than one grid")
        return loops

    def _start(self, number: int, pointer: str) -> str:
        return f"({pointer})(m{number} + o{number})"

    def _for(self, s: For) -> list[str]:
        if s.kind == "grid":
            return self._grid(s)
        if self.shared is None:
            return self._loop(s)
        if s.kind == "group" and s.axis is self.shared.position:
            return self._positions(s)
        return self._pass(s)

    def _positions(self, s: For) -> list[str]:
        """The positions that work-items have each. Beyond the last one they compute it once more:
        all of them have to come to each barrier."""
        assert self.shared is not None
        name = self._bound(s)
        (start,), stop = map(self.index, s.starts), self._stop(s)
        mine = f"mine{len(self.guards)}"
        self.guards.append(mine)
        own = f"{start} + {self.shared.parts[s.axis].first()}"
        lines = [
            f"const bool {mine} = {own} < {stop};",
            f"const int64_t {name} = min({own}, {stop} - 1);",
            *self.body(s.body),
        ]
        self.guards.pop()
        return lines

    def _bound(self, s: For) -> str:
        """A name for a loop's symbol, which nothing around has."""
        name = s.symbol.name
        while name in self.open:
            name += "_"
        self.open.add(name)
        self.names[s.symbol] = name
        return name

    def _stop(self, s: For) -> str:
        return extreme([f"(int64_t)({self.index(e)})" for e in s.stops], "<")

    def _pass(self, s: For) -> list[str]:
        """A loop that the work-items of a work-group share, or one inside or around of it."""
        outermost, self.in_pass = not self.in_pass, True
        scanned = [
            t.accumulator
            for t in s.body
            if isinstance(t, Accumulate) and t.accumulator.running and s.kind == "group"
        ]
        lines = self._scan(s, list(dict.fromkeys(scanned))) if scanned else super()._for(s)
        self.in_pass = not outermost
        if outermost:
            for a in self.reduced(s):
                if not a.running:
                    lines += self._put_together(a)
        return lines

    def _local(self, label: str, ctype: str) -> str:
        """Local memory with an element for each work-item."""
        name = f"{label}{len(self.local_memory)}"
        self.local_memory.append(f"__local {ctype} {name}[{self.local}];")
        return name

    def _put_together(self, a: Accumulator) -> list[str]:
        """What all work-items of a work-group have, or all of a position, in each of them."""
        assert self.shared is not None
        part = self.shared.together
        if part.count == 1:
            return []
        ctype = c.accumulator_type(a.dtype)
        parts = self.together.get(ctype)
        if parts is None:
            parts = self.together[ctype] = self._local("parts", ctype)
        mine, number = f"{parts}[get_local_id(0)]", part.number()
        step = "k" if part.apart == 1 else f"k * {part.apart}"
        both = c.combination(a.combine, mine, f"{parts}[get_local_id(0) + {step}]", a.dtype)
        first = number if part.apart == 1 else f"{number} * {part.apart}"
        return [
            f"{mine} = {self.names[a]};",
            BARRIER,
            f"for (int k = {part.count // 2}; k > 0; k /= 2) {{",
            f"  if ({number} < k) {mine} = {both};",
            f"  {BARRIER}",
            "}",
            f"{self.names[a]} = {parts}[get_local_id(0) - {first}];",
            BARRIER,
        ]

    def _scan(self, s: For, scanned: Sequence[Accumulator]) -> list[str]:
        """A loop with running combinations: as many positions as there are work-items at a time.
        Each puts its value into local memory, where those of the positions before it are combined
        by doubling. Beyond the end, positions are the last one's, and store and combine nothing."""
        assert self.shared is not None and self.shared.parts[s.axis] == Part(1, self.local)
        name = self._bound(s)
        (start,), stop = map(self.index, s.starts), self._stop(s)
        mine = f"mine{len(self.guards)}"
        self.guards.append(mine)
        self.scanning = mine
        inside = [
            f"const int64_t own_{name} = first_{name} + get_local_id(0);",
            f"const bool {mine} = own_{name} < {stop};",
            f"const int64_t {name} = min(own_{name}, {stop} - 1);",
            *self.body(s.body),
        ]
        self.guards.pop()
        self.scanning = ""
        self.open.discard(name)
        for a in scanned:
            before, parts = self.scans[a]
            last = f"{parts}[{self.local - 1}]"
            inside.append(f"{self.names[a]} = {c.combination(a.combine, before, last, a.dtype)};")
        head = (
            f"int64_t first_{name} = {start}; first_{name} < {stop}; first_{name} += {self.local}"
        )
        return [f"for ({head}) {{", *indent([*inside, BARRIER]), "}"]

    def _running(self, s: Accumulate) -> list[str]:
        """A running combination in a loop that work-items share: the accumulator is what it is at
        the position of each, until the loop's end makes it that of all of them."""
        a = s.accumulator
        ctype, identity = c.accumulator_type(a.dtype), c.identity(a.combine, a.dtype)
        parts, sofar = self._local("values", ctype), self._new(s, "before")
        self.scans[a] = sofar, parts
        mine = f"{parts}[get_local_id(0)]"
        # Values are combined in the order of their positions, whatever the way.
        both = c.combination(a.combine, "nearer", mine, a.dtype)
        whole = c.combination(a.combine, sofar, mine, a.dtype)
        return [
            f"const {ctype} {sofar} = {self.names[a]};",
            f"{mine} = {self.scanning} ? ({ctype}){self.operand(s.value)} : {identity};",
            BARRIER,
            f"for (int k = 1; k < {self.local}; k *= 2) {{",
            "  const bool joins = get_local_id(0) >= k;",
            f"  const {ctype} nearer = {parts}[joins ? get_local_id(0) - k : 0];",
            f"  {BARRIER}",
            f"  if (joins) {mine} = {both};",
            f"  {BARRIER}",
            "}",
            f"{self.names[a]} = {whole};",
        ]

    def _steps(self, s: For, name: str, start: str, stop: str) -> str:
        part = self.shared.parts.get(s.axis) if self.shared is not None else None
        if part is None:
            return super()._steps(s, name, start, stop)
        first = f"{start} + {part.first()}"
        return f"int64_t {name} = {first}; {name} < {stop}; {name} += {part.count}"

    def _widest(self) -> int:
        """Iterations that clang may take at once: vectors, side by side."""
        return 4 * self.shape.lanes

    def _room(self, length: int | None) -> int | None:
        # clang takes code with vectors beyond the end of an array for code that never runs, and
        # then what the other code stores there for something else.
        return length and max(length, self._widest())

    def _declare(self, s: Declare) -> list[str]:
        lines = super()._declare(s)
        if s.array.space != "shared":
            return lines
        self.local_memory += lines
        return []

    def _copyblock(self, s: CopyBlock) -> list[str]:
        if s.memory.space != "shared":
            return super()._copyblock(s)
        rows, columns = (extreme(list(map(self.index, e)), "<") for e in (s.rows, s.columns))
        most_rows, most = (_most(e) for e in (s.rows, s.columns))
        place = {Symbol(name): name for name in ("row", "column")}
        self.names |= place

        def element(memory: Memory, index: Index, strides: Sequence[Index]) -> str:
            # What memory is dense along stands last.
            terms = sorted(zip(place, strides, strict=True), key=lambda term: term[1] == 1)
            return self._element(memory, index + sum(var(p) * step for p, step in terms))

        to = element(s.memory, s.index, s.strides)
        source = element(s.source, s.source_index, s.source_strides)
        # Neighbours read neighbours.
        first, side, second = ("column", most, "row")
        if s.source_strides[0] == 1:
            first, side, second = ("row", most_rows, "column")
        count = most_rows * most
        return [
            *([BARRIER] if self.in_pass else []),  # all are done with what the last iteration had
            f"for (int place = get_local_id(0); place < {count}; place += {self.local}) {{",
            f"  const int64_t {first} = place % {side}, {second} = place / {side};",
            f"  if (row < {rows} && column < {columns})",
            f"    {to} = {source};",
            "}",
            BARRIER,
        ]

    def _store(self, s: Store) -> list[str]:
        lines = super()._store(s)
        if self.shared is None:
            return lines
        guard = list(self.guards)
        if not self.in_pass and self.shared.together.count > 1:
            # One of them writes what all have, once all have read what was there.
            guard.append(f"{self.shared.together.number()} == 0")
        if not guard:
            return lines
        held = f"if ({' && '.join(guard)}) {lines[0]}"
        return [held] if self.in_pass else [BARRIER, held]

    def _atomic(self, s: Store, where: str, value: str) -> str:
        # Of 64 bits they are an extension's, whose names are older.
        prefix = "atom" if s.memory.dtype.itemsize == 8 else "atomic"
        ctype = f"volatile {self.spaces[space_of(s.memory)]}{c.MEMORY[s.memory.dtype]}"
        return f"{prefix}_{ATOMICS[s.combine]}(({ctype} *)&{where}, {value});"

    def _loop(self, s: For) -> list[str]:
        extremes = self._extremes(s) if s.kind == "lane" else {}
        before = [f"{kind} {name} = {self._key(a)};" for a, (kind, name) in extremes.items()]
        self.keys.update({a: name for a, (_, name) in extremes.items()})
        lines = [*before, *super()._for(s)]
        for a, (_, name) in extremes.items():
            del self.keys[a]
            lines.append(f"{self.names[a]} = {a.combine}_of_key_{TABLE[a.dtype].short}({name});")
        return lines

    def _key(self, a: Accumulator) -> str:
        return f"{a.combine}_key_{TABLE[a.dtype].short}({self.names[a]})"

    def _extremes(self, s: For) -> dict[Accumulator, tuple[str, str]]:
        """Accumulators of floats' extremes in lanes: as integers in the same order they need no
        choice that a compiler could not make for a vector."""
        found: dict[Accumulator, tuple[str, str]] = {}
        for a in self.reduced(s):
            if a.combine in ("max", "min") and a.dtype.is_floating_point:
                kind = "int32_t" if a.dtype is torch.float32 else "int64_t"
                found[a] = (kind, f"key_{self.names[a]}")
        return found

    def _grid(self, s: For) -> list[str]:
        """All loops of the grid: the position in each follows from the work-item's number."""
        loops = self.grid()
        counts = [f"({self.index(steps_of(loop))})" for loop in loops]
        number = "get_group_id(0)" if self.shared else "get_global_id(0)"
        lines = [f"const int64_t step = {number};"]
        body: Sequence[Statement] = [s]
        rest = "step"
        for k, loop in enumerate(loops):
            name = self.names[loop.symbol] = loop.symbol.name + ("_" * k if k else "")
            self.open.add(name)
            inner = "*".join(counts[k + 1 :])
            position = f"({rest}) / ({inner})" if inner else rest
            start = self.index(loop.starts[0])
            scaled = f"({position})" + (f" * {loop.step}" if loop.step != 1 else "")
            lines.append(f"const int64_t {name} = {start} + {scaled};")
            rest = f"step % ({inner})" if inner else ""
            body = loop.body
        inside = self.body(body)
        if self.shared or self.local == 1:
            return [*lines, *inside]
        return [lines[0], f"if (step < {'*'.join(counts)}) {{", *indent([*lines[1:], *inside]), "}"]

    def _pragma(self, s: For) -> list[str]:
        if s.kind == "lane" and self.shared is None:
            counts = [e - s.starts[0] for e in s.stops]
            # clang makes nothing of loops that are over in a few vectors, or what is wrong.
            least = min((n for n in counts if isinstance(n, int)), default=self._widest())
            if least < self._widest():
                return [NO_LANES] if least < self.shape.lanes else []
            side_by_side = SIDE_BY_SIDE if len(self.reduced(s)) == 1 else ""
            return [LANES.format(self.shape.lanes) + side_by_side]
        return [f"#pragma unroll {s.stops[0] - s.starts[0]}"] if s.kind == "unrolled" else []

    def _accumulate(self, s: Accumulate) -> list[str]:
        a = s.accumulator
        if a in self.keys:
            name, short = self.keys[a], TABLE[a.dtype].short
            key = f"{a.combine}_key_{short}({self.operand(s.value)})"
            return [f"{name} = {a.combine}({name}, {key});"]
        if self.scanning and a.running:
            return self._running(s)
        (line,) = super()._accumulate(s)
        if self.scanning:
            return [f"if ({self.scanning}) {line}"]
        if a.combine in ("sum", "prod") and a.dtype.is_floating_point and not a.running:
            return [f"{{ IN_ANY_ORDER {line} }}"]
        return [line]

    def _barrier(self, s: Barrier) -> list[str]:
        return [] if self.shared is None else [BARRIER]


def once(lines: Sequence[str]) -> list[str]:
    """The lines, where several barriers follow each other one of them."""
    pairs = itertools.pairwise(["", *lines])
    return [line for before, line in pairs if line.strip() != BARRIER or before != line]


def _most(counts: Sequence[Index]) -> int:
    """How many rows or columns there are at most: tiles have a number for that."""
    return min(n for n in counts if isinstance(n, int))


def steps_of(loop: For) -> Index:
    """How many iterations a loop of the grid has."""
    (start,), (stop,) = loop.starts, loop.stops
    return floordiv(stop - start + loop.step - 1, loop.step)
