"""Loops over tiles, and what their loops are to a backend."""

from __future__ import annotations

from collections.abc import Callable

from torch_tenon.compiler.loops.tree import For, Statement, Tree, is_innermost
from torch_tenon.ir.index import Index, Symbol, var


def tile(tree: Tree, symbol: Symbol, width: int, tiles: Symbol) -> Tree:
    """The loop with this symbol as one inside a tile, and around it one over `tiles`."""

    def change(loop: For) -> list[Statement]:
        start = var(tiles)
        stops: tuple[Index, ...] = (start + width, *loop.stops)
        (stop,) = loop.stops
        if isinstance(stop, int) and loop.starts == (0,) and stop % width == 0:
            stops = stops[:1]  # no tile is cut
        inside = loop.like(starts=(start,), stops=stops)
        return [loop.like(symbol=tiles, step=width, body=[inside])]

    return tree.replacing(lambda loop: loop.symbol is symbol, change)


def share_out(tree: Tree, count: int) -> Tree:
    """The `count` outermost loops as the grid. They have to hold nothing but one another."""

    def mark(body: list[Statement], left: int) -> list[Statement]:
        if left == 0:
            return body
        (loop,) = body
        assert isinstance(loop, For) and loop.kind in ("parallel", "grid")
        return [loop.like(kind="grid", body=mark(loop.body, left - 1))]

    return tree.having(mark(tree.body, count))


def as_lanes(tree: Tree, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops as vectors, but for those whose iterations are in order."""

    def may_be(loop: For) -> bool:
        return loop.kind in ("parallel", "reduce") and chosen(loop) and is_innermost(loop)

    return tree.replacing(may_be, lambda loop: [loop.like(kind="lane")])
