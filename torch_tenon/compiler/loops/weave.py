"""A loop of few iterations, all at once: each statement for every iteration, and then the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch_tenon.compiler.loops.copy import Copy, instead
from torch_tenon.compiler.loops.tree import Declare, For, Let, Statement, Tree, walk
from torch_tenon.ir.index import Symbol, symbols


def weave(tree: Tree, symbol: Symbol, most: int) -> Tree:
    """Writes out the loop with this symbol, whose iterations are independent and which has a number
    of them: the loops that it holds are then around all of it. One with more than `most` statements
    stays, and so does one whose loops differ from iteration to iteration."""

    def is_woven(loop: For) -> bool:
        if loop.symbol is not symbol or loop.starts != (0,) or loop.stops != (symbol.extent,):
            return False
        inside = list(walk(loop.body))
        bounds = (e for s in inside if isinstance(s, For) for e in (*s.starts, *s.stops))
        fits = isinstance(symbol.extent, int) and symbol.extent * len(inside) <= most
        varying = {symbol, *(s.symbol for s in inside if isinstance(s, Let))}
        return fits and all(varying.isdisjoint(symbols(e)) for e in bounds)

    return tree.replacing(is_woven, _woven)


def _woven(loop: For) -> list[Statement]:
    (count,) = loop.stops
    assert isinstance(count, int)
    arrays = [s.array for s in walk(loop.body) if isinstance(s, Declare)]
    copies = [
        Copy(symbols={loop.symbol: k}, arrays={a: instead(replace(a)) for a in arrays})
        for k in range(count)
    ]
    return _all_of(loop.body, copies)


def _all_of(body: Sequence[Statement], copies: Sequence[Copy]) -> list[Statement]:
    found: list[Statement] = []
    for s in body:
        if isinstance(s, For):
            found.append(s.holding(_all_of(s.body, copies)))
        else:
            found += (copy.statement(s) for copy in copies)
    return found
