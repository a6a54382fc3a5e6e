"""A loop tree in OpenCL C. It decides nothing.

The grid is what work-items share out: one takes one step of it. A loop of kind group is what the
work-items of a work-group share out, whose accumulators are put together in local memory after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Barrier,
    Declare,
    For,
    Statement,
    Store,
    Tree,
    walk,
)
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, floordiv, product, substitute
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import Names, Writer, indent
from torch_tenon.targets.opencl.device import Shape

# Before a loop of lanes: its iterations do not depend on each other. Compilers that are not clang's
# pass over it.
LANES = "#pragma clang loop vectorize(assume_safety) vectorize_width({})"
NO_LANES = "#pragma clang loop vectorize(disable)"
# So many vectors of them side by side, where each adds to the one before and nothing else does.
SIDE_BY_SIDE = " interleave_count(4)"
# Before a statement in braces: what is added up may be so in any order.
ANY_ORDER = '_Pragma("clang fp reassociate(on)")'
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


class OpenCLWriter(Writer):
    """Spells the statements of one tree, for work-groups of `local` work-items. With `shared` these
    do one step of the grid together, else each does one. `given` is as for `Writer`."""

    memory_space = "__global "
    local = 1
    shared = False

    def __init__(self, tree: Tree, shape: Shape, given: Names | None = None) -> None:
        super().__init__(tree, given)
        self.shape = shape
        self.local_memory: list[str] = []  # declarations, which stand first in a kernel
        self.in_pass = False  # inside of what work-items share
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
        lines = [*self.local_memory, *self.pointers(), *shares, *body]
        return "\n".join([f"/* {origin} */", size, head, *indent(lines), "}\n"])

    def groups(self) -> Index:
        """How many work-groups a launch has, in the program's sizes."""
        items = 1 if self.shared else self.local
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
        return self._pass(s) if self.shared else self._loop(s)

    def _pass(self, s: For) -> list[str]:
        """A loop that the work-items of a work-group share, or one inside or around of it."""
        outermost, self.in_pass = not self.in_pass, True
        lines = super()._for(s)
        self.in_pass = not outermost
        if outermost:
            for a in self.reduced(s):
                lines += self._put_together(a)
        return lines

    def _put_together(self, a: Accumulator) -> list[str]:
        """What all work-items of a work-group have, in each of them."""
        parts = f"parts{len(self.local_memory)}"
        ctype, mine = c.accumulator_type(a.dtype), f"{parts}[get_local_id(0)]"
        self.local_memory.append(f"__local {ctype} {parts}[{self.local}];")
        both = c.combination(a.combine, mine, f"{parts}[get_local_id(0) + k]", a.dtype)
        return [
            f"{mine} = {self.names[a]};",
            BARRIER,
            f"for (int k = {self.local // 2}; k > 0; k /= 2) {{",
            f"  if (get_local_id(0) < k) {mine} = {both};",
            f"  {BARRIER}",
            "}",
            f"{self.names[a]} = {parts}[0];",
            BARRIER,
        ]

    def _steps(self, s: For, name: str, start: str, stop: str) -> str:
        if s.kind != "group":
            return super()._steps(s, name, start, stop)
        first = f"{start} + get_local_id(0)"
        return f"int64_t {name} = {first}; {name} < {stop}; {name} += {self.local}"

    def _widest(self) -> int:
        """Iterations that clang may take at once: vectors, side by side."""
        return 4 * self.shape.lanes

    def _room(self, length: int | None) -> int | None:
        # clang takes code with vectors beyond the end of an array for code that never runs, and
        # then what the other code stores there for something else.
        return length and max(length, self._widest())

    def _declare(self, s: Declare) -> list[str]:
        lines = super()._declare(s)
        if not self.shared or isinstance(s.array, Accumulator):
            return lines
        self.local_memory += [f"__local {text}" for text in lines]
        return []

    def _store(self, s: Store) -> list[str]:
        lines = super()._store(s)
        if not self.shared or self.in_pass:
            return lines
        # One of them writes what all have, once all have read what was there.
        return [BARRIER, f"if (get_local_id(0) == 0) {lines[0]}"]

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
        if s.kind == "lane":
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
        (line,) = super()._accumulate(s)
        if a.combine in ("sum", "prod") and a.dtype.is_floating_point and not a.running:
            return [f"{{ {ANY_ORDER} {line} }}"]
        return [line]

    def _barrier(self, s: Barrier) -> list[str]:
        return [BARRIER] if self.shared else []


def steps_of(loop: For) -> Index:
    """How many iterations a loop of the grid has."""
    (start,), (stop,) = loop.starts, loop.stops
    return floordiv(stop - start + loop.step - 1, loop.step)
