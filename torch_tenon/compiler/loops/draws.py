"""Drawing random numbers before the loop that uses them, where its iterations use elements that
follow one another: made together, elements share what one at a time each would compute again.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    VALUES,
    Array,
    Declare,
    Draw,
    For,
    Let,
    Operand,
    Read,
    Statement,
    Tree,
    kind_of_pieces,
)
from torch_tenon.ir.index import Expr, Symbol, strides, substitute, symbols, var
from torch_tenon.ir.scalar_ops import RANDOM_NUMBERS


def draw_before(tree: Tree, width: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops with their random numbers from arrays that are filled before, of
    `width` elements at most: a loop of more iterations becomes one over pieces around it."""

    def change(loop: For) -> list[Statement]:
        found = _draws(loop)
        return _drawn(loop, found, width) if found else [loop]

    return tree.replacing(chosen, change)


def _draws(loop: For) -> dict[Let, Expr]:
    """The random numbers whose elements follow one another, with the element as an index."""
    inside = {s for s in loop.body if isinstance(s, VALUES)}
    bound = {s.symbol for s in inside if isinstance(s, Let)}
    found: dict[Let, Expr] = {}
    if loop.step != 1 or len(loop.starts) != 1:
        return found
    for s in loop.body:
        if isinstance(s, Let) and s.op in RANDOM_NUMBERS:
            seed, offset, element = s.args
            e = _index(element)
            follows = e is not None and (strides(e) or {}).get(loop.symbol) == 1
            if follows and not {seed, offset} & inside and not symbols(e) & bound:  # type: ignore[arg-type]
                found[s] = e  # type: ignore[assignment]
    return found


def _index(x: Operand) -> Expr | None:
    """The index expression that an operand is, if it is one."""
    if isinstance(x, Let) and x.op == "index":
        (x,) = x.args
    return x if isinstance(x, Expr) else None


def _drawn(loop: For, found: dict[Let, Expr], width: int) -> list[Statement]:
    (start,) = loop.starts
    lengths = [n for e in loop.stops if isinstance(n := e - start, int)]
    length = min(lengths, default=width + 1)
    if length <= width:
        return _with_arrays(loop, found, length)
    pieces = Symbol(f"{loop.symbol.name}_piece", loop.symbol.extent)
    start = var(pieces)
    piece = loop.like(starts=(start,), stops=(start + width, *loop.stops))
    around = loop.like(
        kind=kind_of_pieces(loop),
        symbol=pieces,
        step=width,
        body=_with_arrays(piece, found, width),
    )
    return [around]


def _with_arrays(loop: For, found: dict[Let, Expr], length: int) -> list[Statement]:
    """A loop of `length` iterations at most, and before it what it reads of random numbers."""
    (start,) = loop.starts
    position = var(loop.symbol) - start
    counts = tuple(e - start for e in loop.stops)
    copy = Copy(fresh=False)
    before: list[Statement] = []
    body: list[Statement] = []
    for s in loop.body:
        if not (isinstance(s, Let) and s in found):
            body.append(copy.statement(s))
            continue
        array = Array("drawn", s.dtype, length)
        seed, offset, _ = s.args
        first = substitute(found[s], {loop.symbol: start})
        before += [Declare(array), Draw(array, s.op, seed, offset, first, counts)]
        taken = Let("copy", (Read(array, position, s.dtype),), s.dtype, s.symbol)
        copy.values[s] = taken
        body.append(taken)
    return [*before, loop.holding(body)]
