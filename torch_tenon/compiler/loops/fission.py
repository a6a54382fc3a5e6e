"""Splitting an iteration into several loops over a tile.

Instructions of several iterations overlap only as far as a processor looks ahead, so a long chain
is faster as several loops; and what is computed of a scan's running value needs no order, so it may
be a loop of vectors behind that of the scan. What later loops need goes through arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    VALUES,
    Accumulate,
    Array,
    Check,
    Declare,
    For,
    Kind,
    Let,
    Read,
    Statement,
    Store,
    Tree,
    Value,
    needed,
    used,
)
from torch_tenon.ir.index import Symbol, var


def fission(tree: Tree, long: Collection[str], width: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops, of `width` iterations at most, each as one loop for every op of
    `long`. Their iterations must not depend on each other."""

    def change(loop: For) -> list[Statement]:
        return _in_loops(loop, [(loop, part) for part in _by_long(loop.body, long)], width)

    return tree.replacing(chosen, change)


def scans_apart(
    tree: Tree, width: int, chosen: Callable[[For], bool], dear: Callable[[Statement], bool]
) -> Tree:
    """The chosen innermost loops, which hold scans, `width` iterations at a time: a loop in order
    with the scans, and before and behind it loops of lanes with all that does not need the order.
    What goes into the scans has a loop of its own where some of it is dear, and so has the rest."""

    def change(loop: For) -> list[Statement]:
        if not scanned(loop.body):
            return [loop]
        before, behind = around_scans(loop.body)
        apart = [part if any(map(dear, part)) else [] for part in (before, behind)]
        ordered = [s for s in loop.body if all(s not in part for part in apart)]
        parts: list[tuple[Kind, list[Statement]]]
        parts = [("lane", apart[0]), (loop.kind, ordered), ("lane", apart[1])]
        made = [(kind, part) for kind, part in parts if part]
        if len(made) == 1:
            return [loop]
        extent = loop.axis.extent
        if isinstance(extent, int) and extent <= width:
            return _in_loops(loop, [(loop.like(kind=kind), part) for kind, part in made], width)
        tiles = Symbol(f"{loop.symbol.name}_tile", extent)
        tile = loop.like(starts=(var(tiles),), stops=(var(tiles) + width, *loop.stops))
        loops = [(tile.like(kind=kind), part) for kind, part in made]
        return [loop.like(symbol=tiles, step=width, body=_in_loops(tile, loops, width))]

    return tree.replacing(chosen, change)


def around_scans(body: Sequence[Statement]) -> tuple[list[Statement], list[Statement]]:
    """Of an innermost loop's statements those that go into its scans and need no running value, and
    those that do not go into them. Where anything is checked nothing is before the scans."""
    needed = scanned(body)
    found: set[object] = {s.accumulator for s in body if isinstance(s, Accumulate) and s in needed}
    for s in (s for s in body if s in needed):
        if isinstance(s, Accumulate) or not found.isdisjoint(used(s)):
            found |= {s, s.symbol} if isinstance(s, Let) and s.symbol is not None else {s}
    checked = any(isinstance(s, Check) for s in needed)
    before = [] if checked else [s for s in body if s in needed and s not in found]
    return before, [s for s in body if s not in needed]


def scanned(body: Sequence[Statement]) -> set[Statement]:
    """Those of an innermost loop's statements that go into scans, and the running values."""
    running = {s.accumulator for s in body if isinstance(s, Accumulate) and s.accumulator.running}
    return needed(body, running)


def _by_long(body: Sequence[Statement], long: Collection[str]) -> list[list[Statement]]:
    """Statements in runs that have one op of `long` each, in front."""
    parts: list[list[Statement]] = [[]]
    has_long = False
    for s in body:
        if isinstance(s, Let) and s.op in long:
            if has_long:
                parts.append([])
            has_long = True
        parts[-1].append(s)
    return parts


def _in_loops(
    loop: For, parts: Sequence[tuple[For, list[Statement]]], width: int
) -> list[Statement]:
    """A loop for each part of the body of `loop`, one after the other."""
    home = {s: k for k, (_, part) in enumerate(parts) for s in part if isinstance(s, VALUES)}
    of_symbol = {s.symbol: s for s in home if isinstance(s, Let) and s.symbol is not None}
    position = var(loop.symbol) - loop.starts[0]
    arrays: dict[Value, Array] = {}
    bodies: list[list[Statement]] = []
    copies: list[Copy] = []
    for k, (_, part) in enumerate(parts):
        copy = Copy()
        body: list[Statement] = []
        used = _used(part, of_symbol)
        for x in (x for x in home if x in used and home[x] < k):
            if x not in arrays:
                arrays[x] = Array("passed", x.dtype, width)
                value = copies[home[x]].operand(x)
                bodies[home[x]].append(Store(arrays[x], position, value))
            symbol = x.symbol if isinstance(x, Let) else None
            taken = Let("copy", (Read(arrays[x], position, x.dtype),), x.dtype, symbol)
            copy.values[x] = taken
            body.append(taken)
        bodies.append(body + copy.body(part))
        copies.append(copy)
    declared: list[Statement] = [Declare(a) for a in arrays.values()]
    return declared + [around.holding(b) for (around, _), b in zip(parts, bodies, strict=True)]


def _used(part: list[Statement], of_symbol: Mapping[Symbol, Let]) -> set[Value]:
    """The values that statements use."""
    found = set().union(*map(used, part))
    values = {x for x in found if isinstance(x, VALUES)}
    return values | {let for symbol, let in of_symbol.items() if symbol in found}
