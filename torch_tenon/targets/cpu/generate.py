"""Kernels in C for the cpu target: OpenMP threads outside, `omp simd` lanes inside.

The loops of a nest (`nest.py`) around what an iteration computes (`iteration.py`). Float sums are
added up in blocks whose totals are float64, so a long row loses no more than a short one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from torch_tenon.compiler.kernel import Kernel, bytes_moved, origin_of
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.index import product, strides, var
from torch_tenon.ir.values import Buffer, size_hint
from torch_tenon.targets.cpu import dialect as c
from torch_tenon.targets.cpu import innermost
from torch_tenon.targets.cpu.iteration import STATUS_WORDS, Iteration, Segment
from torch_tenon.targets.cpu.nest import BLOCK, Span, indent

PARALLEL = "#pragma omp parallel for schedule(static)"
PARALLEL_WORK = 16384  # scalar operations below which threads do not pay
SCRATCH_BYTES = 1 << 18
CACHED = 1 << 18  # elements that a cache may hold between two kernels


def generate(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group; `kept` are the buffers that somebody outside needs."""
    return _Writer(group, kept).write()


class _Writer(Iteration):
    def write(self) -> Kernel:
        """The whole function."""
        last = max(m.stage for m in self.members)
        self._choose_scratch()
        segments: list[Segment] = []
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
        for m in self.members:
            for b, _ in m.loads:
                w = made.get(b)
                if w is not None and not w.result_is_row and m.stage > w.stage:
                    self.later[b] = None
        length = product(s.extent for s in self.group.inner) * max(self.nest.lanes, 1)
        for b in self.later:
            if b in self.kept or not isinstance(length, int):
                continue
            if length * b.dtype.itemsize <= SCRATCH_BYTES and self.nest.layout in ("row", "column"):
                self.scratch[b] = f"row{len(self.scratch)}"
        self.scratch_length = length

    def _segment(self, members: list[Member], full: bool) -> Segment:
        again = any(m.stage > 0 for m in members)
        self.segment = segment = Segment(full, again=again)
        self.local = {}
        depth = self.nest.base + len(self.nest.full if full else self.nest.row)
        forwarded = []
        for m in members:
            self.value_of = {}
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

    def _spell_segment(self, segment: Segment) -> list[str]:
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
        for k, size, report in segment.checks:
            out.append(
                f"if (low{k} < 0 || high{k} >= {size}) "
                f"report({report}, low{k} < 0 ? low{k} : high{k}, {size});"
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
        segment: Segment,
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
            body.insert(0, f"{c.MEMORY[b.dtype]} {name}[{self.scratch_length}];")
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
            ctype = c.MEMORY[dtype]
            names.append(f"{ctype} *const {name} = a[{self.storages.index(storage)}];")
        for k, _ in enumerate(self.nest.sizes):
            names.append(f"const int64_t n{k} = s[{k}];")
        origin = origin_of(self.members)
        work = self.nest.work
        return Kernel(
            _function(origin, names + code),
            self.storages,
            self.nest.sizes,
            origin,
            bytes_moved(self.group, self.kept),
            self.nest.layout,
            work,
            names + [line for line in code if not line.startswith(PARALLEL)],
            [calls for _, calls in self.checks.values()],
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
        f"  int64_t *const status = reports + set * {STATUS_WORDS * len(first.checks)};",
        *indent(first.body),
        "}",
    ]
    work = len(kernels) * first.work
    if not (isinstance(work, int) and work < PARALLEL_WORK):
        code.insert(0, PARALLEL)
    return replace(
        first,
        source=_function(first.origin, code, "all", "reports"),
        storages=[s for k in kernels for s in k.storages],
        bytes_moved=sum(k.bytes_moved for k in kernels),
        work=work,
        body=code,
        checks=[calls for k in kernels for calls in k.checks],
        sets=len(kernels),
    )


def _function(origin: str, code: list[str], pointers: str = "a", status: str = "status") -> str:
    head = f"void @NAME@(void *const *{pointers}, const int64_t *s, int64_t *{status}) {{"
    return "\n".join([f"/* {origin} */", head, *indent(code), "}\n"])
