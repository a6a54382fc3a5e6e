"""Splitting a long iteration into several loops over a tile.

Instructions of several iterations overlap only as far as a processor looks ahead, so a long chain
is faster as several loops; what later ones need goes through arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    VALUES,
    Array,
    Declare,
    For,
    Let,
    Read,
    Statement,
    Store,
    Tree,
    Value,
    indices,
    map_loops,
    operands,
)
from torch_tenon.ir.index import Symbol, symbols, var


def fission(tree: Tree, long: Collection[str], width: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops, of `width` iterations at most, each as one loop for every op of
    `long`. Their iterations must not depend on each other."""

    def change(loop: For) -> list[Statement]:
        return _split(loop, long, width) if chosen(loop) else [loop]

    return tree.having(map_loops(tree.body, change))


def _split(loop: For, long: Collection[str], width: int) -> list[Statement]:
    parts: list[list[Statement]] = [[]]
    home: dict[Value, int] = {}
    has_long = False
    for s in loop.body:
        if isinstance(s, Let) and s.op in long:
            if has_long:
                parts.append([])
            has_long = True
        if isinstance(s, VALUES):
            home[s] = len(parts) - 1
        parts[-1].append(s)
    of_symbol = {s.symbol: s for s in home if isinstance(s, Let) and s.symbol is not None}
    position = var(loop.symbol) - loop.starts[0]
    arrays: dict[Value, Array] = {}
    bodies: list[list[Statement]] = []
    copies: list[Copy] = []
    for k, part in enumerate(parts):
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
    return declared + [loop.holding(b) for b in bodies]


def _used(part: list[Statement], of_symbol: Mapping[Symbol, Let]) -> set[Value]:
    """The values that statements use."""
    found: set[Value] = set()
    for s in part:
        found |= {x for x in operands(s) if isinstance(x, VALUES)}
        for e in indices(s):
            found |= {of_symbol[t] for t in symbols(e) if t in of_symbol}
    return found
