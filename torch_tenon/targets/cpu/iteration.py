"""What an iteration of a kernel's loops computes, in C: values, what they load, what they check.

A value is placed in the outermost loop of the nest (`nest.py`) that it depends on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.index import Index, Symbol, strides, substitute, symbols, var
from torch_tenon.ir.scalar import Scalar
from torch_tenon.ir.values import Buffer, Storage
from torch_tenon.targets.cpu import dialect as c
from torch_tenon.targets.cpu import innermost
from torch_tenon.targets.cpu.nest import FAR, TILE_SIDE, Nest

TURNED = (1, 2, 4, 8)  # bytes of the elements that scalar.h turns tiles of

# What a failed check raises: the text takes the value and the size.
CHECKS: dict[str, int] = {
    "index": 1,
    "embedding": 2,
    "gather": 3,
    "division": 4,
    "target": 5,
    "batch": 6,
}
STATUS_WORDS = 4  # kStatusWords in csrc/execute/plan.h


@dataclass
class Segment:
    """Code between two synchronisation points of an iteration: lines by loop depth."""

    full: bool
    lines: dict[int, list[str]] = field(default_factory=dict)
    checks: list[tuple[str, str, str]] = field(default_factory=list)  # name, size, see _check
    reductions: list[tuple[Member, str, str]] = field(default_factory=list)  # member, acc, part
    scans: bool = False
    again: bool = False  # whether it reads rows that an earlier segment has read


class Iteration:
    """Writes the values of a group's members into the lines of a segment."""

    def __init__(self, group: Group, kept: set[Buffer], nest: Nest | None = None) -> None:
        self.group, self.kept = group, kept
        self.members = group.members
        self.storages: list[Storage] = []
        self.pointers: dict[tuple[Storage, torch.dtype], str] = {}
        self.nest = nest or Nest(group)
        self.count = 0
        self.known: dict[Any, tuple[str, int]] = {}  # values that live as long as an iteration
        self.local: dict[Any, tuple[str, int]] = {}  # values of one segment
        self.segment = Segment(full=True)  # that is written
        self.value_of: dict[Scalar, tuple[str, int]] = {}  # of its member
        self.forward: dict[Buffer, tuple[str, int]] = {}  # what was computed, and is read here
        self.later: dict[Buffer, None] = {}  # in their order: what a later pass reads
        self.prelude: dict[int, list[str]] = {}
        self.scratch: dict[Buffer, str] = {}
        self.long: set[str] = set()  # names of values that take long
        self.turns: dict[str, innermost.Turn] = {}  # comparisons with a place in the innermost loop
        # By what is checked: a number, and the recorded calls that fail with it.
        self.checks: dict[tuple[str, str], tuple[int, list[int]]] = {}

    def size(self, e: Index) -> str:
        """An index expression in C; loop variables and run-time sizes by their names."""
        return c.spell(e, self._name)

    def _where(self, e: Index) -> str:
        if isinstance(e, int):
            return self.nest.argument(e)
        return c.spell(e, self._name, self.nest.coefficient)

    def _place(self, b: Buffer, index: Index) -> str:
        """An element of a buffer in C. Long steps of the vector loop are run-time arguments: gcc
        takes the elements between two for a group to load and sort, and minutes to write that."""
        steps = strides(index) or {}
        for s in self.nest.vector:
            step = steps.get(s, 0)
            if isinstance(step, int) and abs(step) > FAR:
                rest = index - step * var(s)
                text = f"{self._name(s)}*{self.nest.argument(step)}"
                start = f"{self._where(rest)} + " if rest != 0 else ""
                return f"{self.pointer(b)}[{start}{text}]"
        return f"{self.pointer(b)}[{self._where(index)}]"

    def _name(self, s: Symbol) -> str:
        if s.scalar is not None:
            return self.value_of[s.scalar][0]
        return self.nest.name(s)

    def _index_depth(self, e: Index) -> int:
        depth = 0
        for s in symbols(e):
            if s.scalar is not None:
                depth = max(depth, self.value_of[s.scalar][1])
            elif s.extent is not None:
                depth = max(depth, self.nest.depth[s])
        return depth

    def pointer(self, b: Buffer) -> str:
        """The name of the pointer to a buffer's storage, as elements of its dtype."""
        key = (b.storage, b.dtype)
        if key not in self.pointers:
            if b.storage not in self.storages:
                self.storages.append(b.storage)
            self.pointers[key] = f"x{len(self.pointers)}"
        return self.pointers[key]

    def put(self, key: Any, text: str, ctype: str, depth: int) -> tuple[str, int]:
        """Names the value `text` at `depth`, once for equal keys."""
        found = self.known.get(key) or self.local.get(key)
        if found is None:
            found = (f"t{self.count}", depth)
            self.count += 1
            self.line(depth, f"const {ctype} {found[0]} = {text};")
            (self.known if depth <= self.nest.base else self.local)[key] = found
        return found

    def line(self, depth: int, text: str) -> None:
        """Adds a line at `depth`: inside the segment, or in the prelude of an outer loop."""
        if not self.segment.full:  # one loop over the lanes at most
            depth = min(depth, self.nest.base + 1)
        if depth < self.nest.base:
            self.prelude.setdefault(depth, []).append(text)
        else:
            self.segment.lines.setdefault(depth, []).append(text)

    def emit(self, s: Scalar, m: Member) -> tuple[str, int]:
        """The name (or literal) and depth of a recorded scalar."""
        if s.op == "constant":
            return c.literal(s.args[1].value, s.dtype), 0
        ctype = c.register_type(s.dtype)
        if s.op == "index":
            e = substitute(s.args[0], m.values)
            text = f"({ctype})({self.size(e)})"
            return self.put((text, None), text, ctype, self._index_depth(e))
        if s.op == "load":
            return self._load(s, m)
        names = [self._operand(a, s) if isinstance(a, Scalar) else (a, 0) for a in s.args]
        depth = max((d for _, d in names), default=0)
        args = [n for n, _ in names]
        if s.op == "check":
            return self._check(s, m)
        if s.op == "to":
            text = c.convert(args[0], s.dtype, s.args[0].dtype)
        elif s.op == "bitcast":
            kinds = {
                torch.float32: "bits_f32",
                torch.float64: "bits_f64",
                torch.int32: "bits_i32",
                torch.int64: "bits_i64",
            }
            text = f"{kinds.get(s.dtype, f'({ctype})')}({args[0]})"
        elif s.op == "where":
            text = f"{args[0]} ? {args[1]} : {args[2]}"
        else:
            text = c.operation(s.op, args, s.dtype, s.args[0].dtype)
        found = self.put((text, s.dtype), text, ctype, depth)
        if s.op in c.LONG:
            self.long.add(found[0])
        if (turn := self._turn(s, m)) is not None:
            self.turns[found[0]] = turn
        return found

    def _turn(self, s: Scalar, m: Member) -> innermost.Turn | None:
        """Where a comparison of a place in the innermost loop with a number changes."""
        if s.op not in ("lt", "le", "gt", "ge"):
            return None
        left, right = s.operands()
        if left.op != "index" or right.op != "constant":
            return None
        e = substitute(left.args[0], m.values)
        steps = strides(e)
        for lane in self.nest.vector:
            offset = e - var(lane)
            if steps == {lane: 1} and isinstance(offset, int):
                at = int(right.args[1].value) - offset + (s.op in ("le", "gt"))
                return innermost.Turn(at, s.op in ("lt", "le"))
        return None

    def _operand(self, s: Scalar, user: Scalar) -> tuple[str, int]:
        """The name and depth of a scalar; that of an argument of the kernel for a number that is
        likely to come from a shape, as where the pieces of a `cat` end. A place in the innermost
        loop is a number: the loop is cut there, so that each piece computes its own."""
        if s.op == "constant" and s.dtype is torch.int64 and user.op in c.PLAIN:
            value = int(s.args[1].value)
            inside = any(self.value_of[x][1] > self.nest.base for x in user.operands())
            if value > FAR and not inside:
                return self.nest.argument(value), 0
        return self.value_of[s]

    def _load(self, s: Scalar, m: Member) -> tuple[str, int]:
        buffer = s.args[0]
        if buffer in self.forward:
            text, depth = self.forward[buffer]
            narrow = {torch.bfloat16: "round_bf16", torch.float16: "round_f16"}.get(buffer.dtype)
            if narrow and (buffer in self.kept or buffer in self.later):
                # Other loops read it from memory: a mean and the deviations from it are of the
                # same numbers.
                text = c.operation(narrow, [text], s.dtype, s.dtype)
                text, depth = self.put((text, s.dtype), text, c.register_type(s.dtype), depth)
            if s.args[2] is None:
                return text, depth
        elif buffer in self.scratch:
            where = f"{self.scratch[buffer]}[{self._scratch_index()}]"
            text, depth = c.from_memory(where, buffer.dtype), self.nest.base + len(self.nest.full)
        else:
            index = substitute(s.args[1], m.values)
            depth = self._index_depth(index)
            where = self._place(buffer, index)
            if s.args[2] is None and buffer.dtype.itemsize in TURNED:
                where = self._turned(where, index, buffer) or where
            text = c.from_memory(where, buffer.dtype)
        if s.args[2] is not None:
            mask, other = self.value_of[s.args[2]], self.value_of[s.args[3]]
            depth = max(depth, mask[1], other[1])
            text = f"{mask[0]} ? {text} : {other[0]}"
        ctype = c.register_type(s.dtype)
        return self.put((text, buffer), text, ctype, depth)

    def _turned(self, where: str, index: Index, b: Buffer) -> str | None:
        """The element in a copy of the tile with rows and columns exchanged, where `index` runs
        across the lanes: rows far apart fall on each other in the cache when read one by one."""
        lane, turned, steps = self.nest.lane, self.nest.turned, strides(index)
        if lane is None or turned is None or steps is None or steps.get(turned) != 1:
            return None
        if steps.get(lane, 0) in (0, 1):
            return None
        key = (where, "tile")
        if key not in self.known:
            name = f"tile{self.count}"
            self.count += 1
            rows, columns = self.nest.full[1], self.nest.full[0]  # of memory
            self.line(self.nest.base, f"{c.MEMORY[b.dtype]} {name}[{TILE_SIDE * TILE_SIDE}];")
            first = ", ".join(f"{s.variable} = {s.start}" for s in (columns, rows))
            sizes = ", ".join(f"{s.stop} - {s.start}" for s in (rows, columns))
            step = self.nest.argument(steps[lane])
            size = 8 * b.dtype.itemsize
            call = f"turn_{size}({name}, (const void *)&{where}, {step}, {sizes});"
            self.line(self.nest.base, f"{{ const int64_t {first}; {call} }}")
            self.known[key] = (name, self.nest.base)
        row, column = (f"{s.variable} - {s.start}" for s in self.nest.full)
        return f"{self.known[key][0]}[({row})*{TILE_SIDE} + {column}]"

    def _check(self, s: Scalar, m: Member) -> tuple[str, int]:
        x, size, message, mask, call_index = s.args
        name, depth = self.value_of[x]
        extent = self.nest.argument(substitute(size, m.values))
        if mask is not None:
            guard, other = self.value_of[mask]
            depth = max(depth, other)
            name = self.put((f"{guard}?{name}", "mask"), f"{guard} ? {name} : 0", "int64_t", depth)[
                0
            ]
        key = (f"{name} in {extent}", message)
        # The calls are no part of the code, so that other windows share it.
        number, calls = self.checks.setdefault(key, (len(self.checks), []))
        if call_index not in calls:
            calls.append(call_index)
        found = self.known.get(key) or self.local.get(key)
        if found is None:
            good = f"((uint64_t){name} < (uint64_t)({extent}))"
            report = f"status + {STATUS_WORDS * number}, {CHECKS[message]}"
            if self.nest.full and depth == self.nest.base + len(self.nest.full):
                k = f"{self.count}"
                self.segment.checks.append((k, extent, report))
                self.line(depth, f"low{k} = {name} < low{k} ? {name} : low{k};")
                self.line(depth, f"high{k} = {name} > high{k} ? {name} : high{k};")
            else:
                self.line(depth, f"if (!{good}) report({report}, {name}, {extent});")
            found = self.put(key, f"{good} ? {name} : 0", "int64_t", depth)
        return found

    def _scratch_index(self) -> str:
        spans = (
            [*self.nest.inner] if self.nest.layout == "row" else [*self.nest.inner, *self.nest.row]
        )
        total = ""
        for span in spans:
            name = span.variable
            if span.start != "0":
                name = f"({name} - {span.start})"
                total = f"({total})*{self.nest.lanes} + {name}" if total else name
            else:
                total = f"({total})*({span.stop}) + {name}" if total else name
        return total
