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
    Declare,
    For,
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


def scans_apart(tree: Tree, width: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops, which hold scans, `width` iterations at a time: a loop in order
    with the scans, and one of lanes with all that does not go into them."""

    def change(loop: For) -> list[Statement]:
        ordered = scanned(loop.body)
        if not ordered:
            return [loop]
        first = [s for s in loop.body if s in ordered]
        rest = [s for s in loop.body if s not in ordered]
        extent = loop.axis.extent
        if isinstance(extent, int) and extent <= width:
            return _in_loops(loop, [(loop, first), (loop.like(kind="lane"), rest)], width)
        tiles = Symbol(f"{loop.symbol.name}_tile", extent)
        inside = loop.like(starts=(var(tiles),), stops=(var(tiles) + width, *loop.stops))
        parts = [(inside, first), (inside.like(kind="lane"), rest)]
        return [loop.like(symbol=tiles, step=width, body=_in_loops(inside, parts, width))]

    return tree.replacing(chosen, change)


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
