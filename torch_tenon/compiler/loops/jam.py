"""Rows of a column a few at a time, so that accumulators are loaded and stored once for all of
them, and stay in registers in between."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_tenon.compiler.loops.copy import Copy, in_register
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Declare,
    For,
    Let,
    Read,
    Statement,
    Store,
    Tree,
    walk,
)
from torch_tenon.ir.index import Index, Symbol, floordiv, var


def jam(tree: Tree, rows: Callable[[For], int]) -> Tree:
    """Loops that end with a loop over lanes, in steps of so many rows as `rows` says, where these
    are several: they are inside of the lanes, and what is left goes row by row. A lane has to add
    to one element."""
    return tree.replacing(lambda loop: rows(loop) > 1, lambda loop: _jammed(loop, rows(loop)))


def _jammed(loop: For, few: int) -> list[Statement]:
    *before, lanes = loop.body
    assert isinstance(lanes, For)
    where: dict[Accumulator, Index] = {}
    for s in walk(lanes.body):
        if isinstance(s, Accumulate):
            assert where.setdefault(s.accumulator, s.index) == s.index
    registers = {a: Accumulator("register", a.dtype, None, a.combine) for a in where}
    steps = Symbol(f"{loop.symbol.name}_few", loop.axis.extent)
    # Counted from 0: a compiler for which sums wrap cannot tell that there are as many from
    # `steps` on, and makes no vectors around a loop that may have none.
    row = Symbol(f"{loop.symbol.name}_row", few)
    copy = Copy(
        symbols={loop.symbol: var(steps) + var(row)},
        arrays={a: in_register(r) for a, r in registers.items()},
    )
    body = copy.body([*before, *lanes.body])
    rows = For(loop.axis, "unrolled", row, (0,), (few,), body)
    take: list[Statement] = [Declare(r, Read(a, where[a], a.dtype)) for a, r in registers.items()]
    give: list[Statement] = [Store(a, where[a], Read(r, 0, r.dtype)) for a, r in registers.items()]
    several = lanes.holding([*take, rows, *give])
    stops = tuple(e - (few - 1) for e in loop.stops)
    found: list[Statement] = [loop.like(symbol=steps, stops=stops, step=few, body=[several])]
    if not divides(few, loop):
        made, length = length_of(loop)
        start = loop.starts[0] + floordiv(length, few) * few
        left = Copy().body([*before, lanes])
        found += [*made, loop.like(starts=(start,), body=left)]
    return found


def divides(count: int, loop: For) -> bool:
    """Whether a loop over an axis, or over a block of it, has a multiple of `count` iterations: the
    axis has, and so has a block, of which the last is what is left."""
    extent = loop.axis.extent
    lengths = [e - loop.starts[0] for e in loop.stops]
    numbers = [extent, *(n for n in lengths if isinstance(n, int))]
    return all(isinstance(n, int) and n % count == 0 for n in numbers)


def length_of(loop: For) -> tuple[list[Statement], Index]:
    """How many iterations a loop with one start has, and what computes that."""
    length, *others = (e - loop.starts[0] for e in loop.stops)
    made: list[Statement] = []
    for e in others:
        symbol = Symbol("length")  # not negative
        made.append(Let("minimum", (length, e), torch.int64, symbol))
        length = var(symbol)
    return made, length
