"""Kernels in C for the cpu target: OpenMP threads outside, `omp simd` lanes inside.

Values are placed in the outermost loop of the nest (`nest.py`) that they depend on. Float sums are
added up in blocks whose totals are float64, so a long row loses no more than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torch_tenon.compiler.codegen import dialect as c
from torch_tenon.compiler.codegen import innermost
from torch_tenon.compiler.codegen.nest import BLOCK, FAR, TILE_SIDE, Nest, Span, indent
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, Symbol, product, spell, strides, substitute, symbols, var
from torch_tenon.ir.scalar import Scalar
from torch_tenon.ir.values import Buffer, Storage, size_hint

PARALLEL = "#pragma omp parallel for schedule(static)"
PARALLEL_WORK = 16384  # scalar operations below which threads do not pay
SCRATCH_BYTES = 1 << 18
CACHED = 1 << 18  # elements that a cache may hold between two kernels
TURNED = (1, 2, 4, 8)  # bytes of the elements that scalar.h turns tiles of

# What a failed check raises: the text takes the value and the size.
CHECKS: dict[str, int] = {"index": 1, "embedding": 2, "gather": 3, "division": 4}


@dataclass
class Kernel:
    """Generated source, and what to call it with.

    `storages` are those of `sets` runs of the same code, one after the other.
    """

    source: str  # the function, named `@NAME@`
    storages: list[Storage]
    sizes: list[Symbol | int]  # run-time sizes of the program, and numbers
    origin: str
    bytes_moved: int
    layout: str
    work: Index  # scalar operations
    body: list[str]  # what the function does, on one thread
    sets: int = 1


@dataclass
class _Segment:
    """Code between two synchronisation points of an iteration: lines by loop depth."""

    full: bool
    lines: dict[int, list[str]] = field(default_factory=dict)
    checks: list[tuple[str, str, int]] = field(default_factory=list)  # name, size, check
    reductions: list[tuple[Member, str, str]] = field(default_factory=list)  # member, acc, part
    scans: bool = False
    again: bool = False  # whether it reads rows that an earlier segment has read


def generate(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group; `kept` are the buffers that somebody outside needs."""
    return _Writer(group, kept).write()


class _Writer:
    def __init__(self, group: Group, kept: set[Buffer], nest: Nest | None = None) -> None:
        self.group, self.kept = group, kept
        self.members = group.members
        self.storages: list[Storage] = []
        self.pointers: dict[tuple[Storage, torch.dtype], str] = {}
        self.nest = nest or Nest(group)
        self.count = 0
        self.known: dict[Any, tuple[str, int]] = {}  # values that live as long as an iteration
        self.local: dict[Any, tuple[str, int]] = {}  # values of one segment
        self.forward: dict[Buffer, tuple[str, int]] = {}
        self.prelude: dict[int, list[str]] = {}
        self.scratch: dict[Buffer, str] = {}
        self.long: set[str] = set()  # names of values that take long
        self.turns: dict[str, innermost.Turn] = {}  # comparisons with a place in the innermost loop

    # Expressions

    def size(self, e: Index) -> str:
        """An index expression in C; loop variables and run-time sizes by their names."""
        return spell(e, self._name)

    def _where(self, e: Index) -> str:
        if isinstance(e, int):
            return self.nest.argument(e)
        return spell(e, self._name, self.nest.coefficient)

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

    # Values

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
            self.line(self.nest.base, f"{TABLE[b.dtype].memory} {name}[{TILE_SIDE * TILE_SIDE}];")
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
        x, size, message, mask = s.args
        name, depth = self.value_of[x]
        extent = self.nest.argument(substitute(size, m.values))
        if mask is not None:
            guard, other = self.value_of[mask]
            depth = max(depth, other)
            name = self.put((f"{guard}?{name}", "mask"), f"{guard} ? {name} : 0", "int64_t", depth)[
                0
            ]
        key = (f"{name} in {extent}", message)
        found = self.known.get(key) or self.local.get(key)
        if found is None:
            good = f"((uint64_t){name} < (uint64_t)({extent}))"
            number = CHECKS[message]
            if self.nest.full and depth == self.nest.base + len(self.nest.full):
                k = f"{self.count}"
                self.segment.checks.append((k, extent, number))
                self.line(depth, f"low{k} = {name} < low{k} ? {name} : low{k};")
                self.line(depth, f"high{k} = {name} > high{k} ? {name} : high{k};")
            else:
                self.line(depth, f"if (!{good}) report(status, {number}, {name}, {extent});")
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

    # Segments

    def write(self) -> Kernel:
        """The whole function."""
        last = max(m.stage for m in self.members)
        self._choose_scratch()
        segments: list[_Segment] = []
        for stage in range(-1, last + 1):
            for full in (True, False):
                members = [m for m in self.members if m.stage == stage and m.full is full]
                if members:
                    segments.append(self._segment(members, full))
        body: list[str] = []
        for segment in segments:
            body.extend(self._spell_segment(segment))
        return self._function(body)

    def _choose_scratch(self) -> None:
        """Rows that only this kernel sees, and that a later pass reads, live on the stack."""
        made = {m.node.buffer: m for m in self.members}
        self.later: set[Buffer] = set()
        for m in self.members:
            for b, _ in m.loads:
                w = made.get(b)
                if w is not None and not w.result_is_row and m.stage > w.stage:
                    self.later.add(b)
        length = product(s.extent for s in self.group.inner) * max(self.nest.lanes, 1)
        for b in self.later:
            if b in self.kept or not isinstance(length, int):
                continue
            if length * b.dtype.itemsize <= SCRATCH_BYTES and self.nest.layout in ("row", "column"):
                self.scratch[b] = f"row{len(self.scratch)}"
        self.scratch_length = length

    def _segment(self, members: list[Member], full: bool) -> _Segment:
        again = any(m.stage > 0 for m in members)
        self.segment = segment = _Segment(full, again=again)
        self.local = {}
        depth = self.nest.base + len(self.nest.full if full else self.nest.row)
        forwarded = []
        for m in members:
            self.value_of: dict[Scalar, tuple[str, int]] = {}
            for s in m.node.trace:
                self.value_of[s] = self.emit(s, m)
            value = self.value_of[m.node.value]
            if full and m.node.kind in ("reduce", "scan"):
                value = self._combine(m, value[0], depth)
                if m.node.kind == "reduce":
                    continue
            if m.node.kind == "scatter":
                self._scatter(m, value[0], depth)
                continue
            b = m.node.buffer
            if b in self.scratch:
                text = c.to_memory(value[0], b.dtype)
                self.line(depth, f"{self.scratch[b]}[{self._scratch_index()}] = {text};")
            elif b in self.kept or b in self.later:
                self._store(m, value[0], depth)
            self.forward[b] = value
            if full or self.nest.layout == "column":
                forwarded.append((m, value))
        if not full and self.nest.layout == "column":
            for m, value in forwarded:
                self._keep_lanes(m, value[0], depth)
        elif full:
            for m, _ in forwarded:
                del self.forward[m.node.buffer]
            for m, acc, _ in segment.reductions:
                if m.node.kind == "reduce":
                    self.forward[m.node.buffer] = self._total(m, acc)
        return segment

    def _store(self, m: Member, value: str, depth: int) -> None:
        b = m.node.buffer
        text = c.to_memory(value, b.dtype)
        self.line(depth, f"{self._place(b, m.index)} = {text};")

    def _keep_lanes(self, m: Member, value: str, depth: int) -> None:
        """In columns, a row member's result is an array over the lanes for what comes after."""
        assert self.nest.lane is not None
        name = f"lane{self.count}"
        self.count += 1
        ctype = c.register_type(m.node.value.dtype)
        self.segment.lines.setdefault(-1, []).append(f"{ctype} {name}[{self.nest.lanes}];")
        self.line(depth, f"{name}[{self._lane_index()}] = {value};")
        self.forward[m.node.buffer] = (
            f"{name}[{self._lane_index()}]",
            self.nest.depth[self.nest.lane],
        )

    def _lane_index(self) -> str:
        assert self.nest.lane is not None
        name = self.nest.names[self.nest.lane]
        return f"{name} - {name}_tile"

    def _combine(self, m: Member, value: str, depth: int) -> tuple[str, int]:
        """Adds a reduction or a scan step to the segment; gives the running value."""
        dtype = m.node.accumulator()
        ctype = c.register_type(dtype)
        number = self.count
        self.count += 1
        acc, part = f"acc{number}", f"part{number}"
        lines = self.segment.lines
        if self.nest.layout == "column":
            acc, part = f"{acc}[{self._lane_index()}]", f"{part}[{self._lane_index()}]"
        self.segment.reductions.append((m, acc, part))
        if m.node.kind == "scan":
            self.segment.scans = True
            lines.setdefault(depth, []).append(
                f"{acc} = {c.combination(m.node.combine, acc, value, dtype)};"
            )
            element = c.register_type(m.node.buffer.dtype)
            if ctype == "double" and element == "float":
                return self.put((acc, "scan"), f"(float){acc}", element, depth)
            return self.put((acc, "scan"), acc, ctype, depth)
        lines.setdefault(depth, []).append(
            f"{part} = {c.combination(m.node.combine, part, value, dtype)};"
        )
        return acc, depth

    def _scatter(self, m: Member, value: str, depth: int) -> None:
        b = m.node.buffer
        where = self._place(b, m.index)
        if self.nest.place is not None:
            place = var(self.nest.place)
            parts = "const int64_t parts = power_of_2_from(omp_get_max_threads());"
            self.prelude.setdefault(0, []).append(parts)
            mine = f"({self.size(place)} & (parts - 1)) == part"
            self.line(self._index_depth(place), f"if (!({mine})) continue;")
        if m.node.combine != "store":
            dtype = m.node.accumulator()
            value = c.combination(m.node.combine, c.from_memory(where, b.dtype), value, dtype)
        self.line(depth, f"{where} = {c.to_memory(f'{value}', b.dtype)};")

    def _spell_segment(self, segment: _Segment) -> list[str]:
        """The lines of one segment at the depth of an iteration's own scope."""
        out = list(segment.lines.get(-1, []))
        out += segment.lines.get(self.nest.base, [])
        spans = self.nest.full if segment.full else self.nest.row
        reductions = [r for r in segment.reductions if r[0].node.kind == "reduce"]
        for m, acc, _ in segment.reductions:
            out += self._declare(acc, m, self._total_type(m))
        clauses: list[str] = []
        for m, _, part in reductions:
            if self.nest.layout == "row":
                dtype = m.node.accumulator()
                clauses.append(f"reduction({c.reduction_clause(m.node.combine, dtype)}:{part})")
        for k, _, _ in segment.checks:
            out.append(f"int64_t low{k} = 0, high{k} = -1;")
            clauses.append(f"reduction(min:low{k}) reduction(max:high{k})")
        out += self._nest(segment, spans, 0, reductions, " ".join(clauses))
        for k, size, number in segment.checks:
            out.append(
                f"if (low{k} < 0 || high{k} >= {size}) "
                f"report(status, {number}, low{k} < 0 ? low{k} : high{k}, {size});"
            )
        for m, acc, _ in reductions:
            out += self._finish(m, acc)
        return out

    def _widened(self, m: Member) -> bool:
        """Whether parts are float32 and the total float64."""
        dtype = m.node.accumulator()
        return dtype is torch.float32 and m.node.combine == "sum" and m.node.kind == "reduce"

    def _total_type(self, m: Member) -> str:
        return "double" if self._widened(m) else c.register_type(m.node.accumulator())

    def _declare(self, name: str, m: Member, ctype: str) -> list[str]:
        zero = c.identity(m.node.combine, m.node.accumulator())
        if "[" not in name:
            return [f"{ctype} {name} = {zero};"]
        array = name.partition("[")[0]
        loop = f"for (int64_t k = 0; k < {self.nest.lanes}; ++k) {array}[k] = {zero};"
        return [f"{ctype} {array}[{self.nest.lanes}];", loop]

    def _nest(
        self,
        segment: _Segment,
        spans: list[Span],
        at: int,
        reductions: list[tuple[Member, str, str]],
        clauses: str,
    ) -> list[str]:
        """Loops `at` and inward."""
        # In rows the innermost loop is added up by itself, in columns everything under the rows.
        last = len(spans) - 1
        parts_at = last if self.nest.layout == "row" else len(self.nest.inner) - 1
        if not spans:
            out = []
            for m, _, part in reductions:
                out += self._declare(part, m, c.register_type(m.node.accumulator()))
            out += segment.lines.get(self.nest.base + 1, [])
            return out + self._take(reductions)
        span, depth = spans[at], self.nest.base + at
        inside = list(segment.lines.get(depth + 1, []))
        if at < last:
            inside += self._nest(segment, spans, at + 1, reductions, clauses)
        head: list[str] = []
        if (
            at == last
            and not (segment.scans and self.nest.layout == "row")
            and not (self.nest.layout == "scatter" and not self.nest.row)
        ):
            head.append(f"#pragma omp simd {clauses}".rstrip())
        collected = reductions if at == parts_at else []
        if self.nest.in_parts and at == last:
            index = f"[{self._lane_index()}]"
            declared, parts = innermost.parts(inside, self.long, index, self.nest.lanes)
            return declared + [t for part in parts for t in [*head, *span.around(part)]]
        if not collected:
            cut = innermost.pieces(inside, span, self.turns) if at == last else [(span, inside)]
            return [text for one, own in cut for text in [*head, *one.around(own)]]
        declared = []
        for m, _, part in collected:
            declared += self._declare(part, m, c.register_type(m.node.accumulator()))
        block = BLOCK if self.nest.layout == "row" else BLOCK // 8
        extent = span.symbol.extent if span.symbol is not None else None
        sums = any(self._widened(m) for m, _, _ in collected)
        one, outer = span, None
        if sums and not (isinstance(extent, int) and extent <= block):
            name = span.variable
            outer = Span(f"{name}_block", "0", span.stop, block)
            stop = f"{name}_block + {block}"
            if not (isinstance(extent, int) and extent % block == 0):
                stop = f"({stop} < {span.stop} ? {stop} : {span.stop})"
            one = Span(name, f"{name}_block", stop, 1, span.symbol)
        code = [*head, *one.around(inside)]
        if not segment.scans and not segment.checks:
            totals = [
                innermost.Part(part, m.node.combine, m.node.accumulator())
                for m, _, part in collected
            ]
            if (
                self.nest.layout == "column"
                and at == last - 1
                and not self._runs_on(one, collected)
            ):
                lines = [text for d in (1, 2) for text in segment.lines.get(depth + d, [])]
                code = innermost.jammed(lines, one, spans[-1], totals) or code
            elif self.nest.layout == "row" and segment.again:
                code = innermost.streams(inside, one, totals, self.long) or code
        code = [*declared, *code, *self._take(collected)]
        return code if outer is None else outer.around(code)

    def _runs_on(self, rows: Span, reductions: list[tuple[Member, str, str]]) -> bool:
        """Whether the rows of a column lie one after the other in memory, and are more than a
        cache holds: then they are read fastest in that order."""
        assert self.nest.lane is not None and rows.symbol is not None
        whole = self.nest.lane.extent
        loads = [strides(e) or {} for m, _, _ in reductions for _, e in m.loads]
        count = size_hint(product(s.extent for s in self.group.symbols()))
        dense = self.nest.lanes == whole and any(k.get(rows.symbol) == whole for k in loads)
        return dense and count > CACHED

    def _take(self, reductions: list[tuple[Member, str, str]]) -> list[str]:
        """Adds the parts to the totals."""
        out = []
        for m, acc, part in reductions:
            dtype = m.node.accumulator()
            if self._widened(m):
                text = "{0} += {1};"
            else:
                text = f"{{0}} = {c.combination(m.node.combine, '{0}', '{1}', dtype)};"
            if "[" in acc:
                array, other = acc.partition("[")[0], part.partition("[")[0]
                text = text.format(f"{array}[k]", f"{other}[k]")
                out.append(f"for (int64_t k = 0; k < {self.nest.lanes}; ++k) {text}")
            else:
                out.append(text.format(acc, part))
        return out

    def _total(self, m: Member, acc: str) -> tuple[str, int]:
        """A reduction's result as a value, and the depth where it is one."""
        ctype = c.register_type(m.node.accumulator())
        value = acc if self._total_type(m) == ctype else f"({ctype}){acc}"
        if "[" in acc:
            assert self.nest.lane is not None
            return value, self.nest.depth[self.nest.lane]
        return value, self.nest.base

    def _finish(self, m: Member, acc: str) -> list[str]:
        """Stores a reduction's result if somebody outside needs it."""
        b = m.node.buffer
        if b not in self.kept:
            return []
        value = c.to_memory(self._total(m, acc)[0], b.dtype)
        text = f"{self._place(b, m.index)} = {value};"
        return ["#pragma omp simd", *self.nest.row[0].around([text])] if "[" in acc else [text]

    def _function(self, body: list[str]) -> Kernel:
        for b, name in self.scratch.items():
            body.insert(0, f"{TABLE[b.dtype].memory} {name}[{self.scratch_length}];")
        code = body
        for k in reversed(range(len(self.nest.spans))):
            if k + 1 < self.nest.base:
                code = self.prelude.get(k + 1, []) + code
            code = self.nest.spans[k].around(code)
            if k == 0:
                code = self._threads() + code
        code = self.prelude.get(0, []) + code if self.nest.base else code
        names = []
        for (storage, dtype), name in self.pointers.items():
            ctype = TABLE[dtype].memory
            names.append(f"{ctype} *const {name} = a[{self.storages.index(storage)}];")
        for k, _ in enumerate(self.nest.sizes):
            names.append(f"const int64_t n{k} = s[{k}];")
        origin = origin_of(self.members)
        work = self.nest.work
        return Kernel(
            _function(origin, "a", names + code),
            self.storages,
            self.nest.sizes,
            origin,
            _bytes_moved(self.group, self.kept),
            self.nest.layout,
            work,
            names + [line for line in code if not line.startswith(PARALLEL)],
        )

    def _threads(self) -> list[str]:
        if isinstance(self.nest.work, int) and self.nest.work < PARALLEL_WORK:
            return []
        clause = f" collapse({self.nest.collapse})" if self.nest.collapse > 1 else ""
        if not isinstance(self.nest.work, int):
            clause += f" if ({self.size(self.nest.work)} >= {PARALLEL_WORK})"
        return [PARALLEL + clause]


def together(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel for several of the same source that do not need each other.

    The threads share out whole runs: starting them once for each small tensor costs more than
    the work.
    """
    first = kernels[0]
    code = [
        f"for (int64_t set = 0; set < {len(kernels)}; ++set) {{",
        f"  void *const *const a = all + set * {len(first.storages)};",
        *indent(first.body),
        "}",
    ]
    work = len(kernels) * first.work
    if not (isinstance(work, int) and work < PARALLEL_WORK):
        code.insert(0, PARALLEL)
    return replace(
        first,
        source=_function(first.origin, "all", code),
        storages=[s for k in kernels for s in k.storages],
        bytes_moved=sum(k.bytes_moved for k in kernels),
        work=work,
        body=code,
        sets=len(kernels),
    )


def origin_of(members: Sequence[Member]) -> str:
    """The ops that a kernel came from, each once."""
    names = (name for m in members for name in m.node.origin.split(", "))
    return ", ".join(dict.fromkeys(filter(None, names)))


def _function(origin: str, pointers: str, code: list[str]) -> str:
    head = f"void @NAME@(void *const *{pointers}, const int64_t *s, int64_t *status) {{"
    return "\n".join([f"/* {origin} */", head, *indent(code), "}\n"])


def _bytes_moved(group: Group, kept: set[Buffer]) -> int:
    """Bytes that have to cross memory: each distinct element read or written once."""
    seen: dict[tuple[Buffer, Index], int] = {}
    made = {m.node.buffer for m in group.members}
    for m in group.members:
        loops = list(group.symbols())
        for b, e in [*m.loads, (m.node.buffer, m.index)]:
            if b in made and b not in kept:
                continue
            steps = strides(e)
            used = loops if steps is None else [s for s in loops if steps.get(s, 0) != 0]
            count = size_hint(product(s.extent for s in used))
            seen[b, e] = count * b.dtype.itemsize
    return sum(seen.values())
