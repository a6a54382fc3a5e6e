"""Shapes of an innermost loop that keep the processor busy: how its lines are cut and repeated.

Values in the lines are named t0, t1, ..., each defined once (`const float t3 = ...;`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch

from torch_tenon.ir.values import size_hint
from torch_tenon.targets.cpu import dialect as c
from torch_tenon.targets.cpu.nest import Span, indent

MOST_PIECES = 8  # of a loop that is cut where it starts to compute something else
WORTH_CUTTING = 64  # iterations from which it is
STREAMS = 4  # pieces of a cached row that are added up side by side
JAM = 8
MOST_LINES = 12  # of an iteration that is short enough to be repeated
NAME = re.compile(r"\bt\d+\b")
DEFINITION = re.compile(r"const (\w+) (t\d+) = ")


@dataclass
class Part:
    """An accumulator of the loop: a variable, or an element of an array over the lanes."""

    name: str
    combine: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Turn:
    """Where along the loop a comparison changes: it is `first` before `at`, and not from there."""

    at: int
    first: bool


def pieces(lines: list[str], span: Span, turns: Mapping[str, Turn]) -> list[tuple[Span, list[str]]]:
    """The loop cut where the comparisons `turns` in its lines change, as where the parts of a `cat`
    end: each piece computes its own, and not all of them everywhere."""
    found: dict[int, Turn] = {}  # by line
    for k, text in enumerate(lines):
        made = DEFINITION.match(text)
        if made is not None and made[2] in turns:
            found[k] = turns[made[2]]
    cuts = sorted({t.at for t in found.values() if t.at > 0})
    extent = span.symbol.extent if span.symbol is not None else None
    short = extent is not None and size_hint(extent) < WORTH_CUTTING
    if not cuts or short or len(cuts) >= MOST_PIECES:
        return [(span, lines)]
    cut = []
    for low, high in itertools.pairwise([None, *cuts, None]):
        start, stop = span.start, span.stop
        if low is not None:
            start = str(low) if start == "0" else f"({start} > {low} ? {start} : {low})"
        if high is not None:
            stop = f"({stop} < {high} ? {stop} : {high})"
        own = list(lines)
        for k, turn in found.items():
            is_first = turn.at > (low or 0)
            head = own[k].partition(" = ")[0]
            own[k] = f"{head} = {int(turn.first is is_first)};"
        cut.append((Span(span.variable, start, stop, 1, span.symbol), own))
    return cut


def parts(
    lines: list[str], long: AbstractSet[str], index: str, lanes: int
) -> tuple[list[str], list[list[str]]]:
    """The lines cut before each of the values `long` but the first, and what to declare before.

    Instructions of several iterations overlap only as far as the processor looks ahead, so a long
    chain is faster as several loops over a tile: what later ones need goes through arrays of
    `lanes` elements, at `index`.
    """
    cut: list[list[str]] = [[]]
    home: dict[str, int] = {}
    types: dict[str, str] = {}
    has_long = False
    for text in lines:
        made = DEFINITION.match(text)
        if made is not None:
            if made[2] in long:
                if has_long:
                    cut.append([])
                has_long = True
            types[made[2]], home[made[2]] = made[1], len(cut) - 1
        cut[-1].append(text)
    carried: dict[str, None] = {}
    for k, part in enumerate(cut):
        used = dict.fromkeys(n for text in part for n in NAME.findall(text))
        before = [n for n in used if home.get(n, k) < k]
        part[:0] = [f"const {types[n]} {n} = {n}s{index};" for n in before]
        carried.update(dict.fromkeys(before))
    for n in carried:
        cut[home[n]].append(f"{n}s{index} = {n};")
    return [f"{types[n]} {n}s[{lanes}];" for n in carried], cut


def jammed(lines: list[str], span: Span, lanes: Span, totals: list[Part]) -> list[str]:
    """The rows `span` of columns a few at a time, so that the accumulators are loaded and stored
    once for all of them. Nothing where an iteration is too long for that to matter."""
    assert span.symbol is not None
    extent = span.symbol.extent
    if len(lines) > MOST_LINES or (isinstance(extent, int) and extent < JAM):
        return []
    name = span.variable
    take, give = [], []
    inside = lines
    for p in totals:
        register = f"{p.name.partition('[')[0]}_{name}"
        take.append(f"{c.register_type(p.dtype)} {register} = {p.name};")
        give.append(f"{p.name} = {register};")
        inside = [text.replace(p.name, register) for text in inside]
    few = Span(f"{name}_few", span.start, f"{span.stop} - {JAM - 1}", JAM)
    rows = Span(name, few.variable, f"{few.variable} + {JAM}")
    several = [*take, f"#pragma GCC unroll {JAM}", *rows.around(inside), *give]
    code = few.around(["#pragma omp simd", *lanes.around(several)])
    if not (isinstance(extent, int) and extent % JAM == 0):
        start = f"{span.start} + ({span.stop} - {span.start})/{JAM}*{JAM}"
        code += Span(name, start, span.stop).around(["#pragma omp simd", *lanes.around(lines)])
    return code


def streams(lines: list[str], span: Span, totals: list[Part], long: AbstractSet[str]) -> list[str]:
    """A row that is in the cache by now in quarters side by side: from there one accumulator is
    not fast enough. Nothing where memory or a long iteration sets the pace."""
    assert span.symbol is not None and span.symbol.extent is not None
    extent = span.symbol.extent
    slow = any(n in long for text in lines for n in NAME.findall(text))
    if slow or len(lines) > MOST_LINES or size_hint(extent) < STREAMS * 64:
        return []
    quarter = f"quarter_{totals[0].name}"
    before, clauses, after = [], [], []
    inside: list[str] = []
    for k in range(STREAMS):
        inside += ["{", f"  const int64_t {span.variable} = {span.start} + k + {k}*{quarter};"]
        for p in totals:
            own = f"{p.name}_{k}"
            before.append(f"{c.register_type(p.dtype)} {own} = {c.identity(p.combine, p.dtype)};")
            clauses.append(f"reduction({c.reduction_clause(p.combine, p.dtype)}:{own})")
            after.append(f"{p.name} = {c.combination(p.combine, p.name, own, p.dtype)};")
        inside += [*indent(_numbered(lines, totals, k)), "}"]
    code = [f"const int64_t {quarter} = ({span.stop} - {span.start})/{STREAMS};", *before]
    code += ["#pragma omp simd " + " ".join(clauses), *Span("k", "0", quarter).around(inside)]
    if not (isinstance(extent, int) and extent % STREAMS == 0):
        rest = Span(span.variable, f"{span.start} + {STREAMS}*{quarter}", span.stop)
        code.append("#pragma omp simd " + " ".join(clauses[: len(totals)]))
        code += rest.around(_numbered(lines, totals, 0))
    return code + after


def _numbered(lines: list[str], totals: list[Part], k: int) -> list[str]:
    for p in totals:
        lines = [re.sub(rf"\b{p.name}\b", f"{p.name}_{k}", text) for text in lines]
    return lines
