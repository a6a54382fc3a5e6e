"""Transposing tiles: where lanes read across memory, a block of it is copied first, with its rows
and columns exchanged. Rows that are far apart fall on each other in a cache when they are read one
by one.
"""

from __future__ import annotations

from collections.abc import Callable

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    Array,
    CopyBlock,
    Declare,
    For,
    Load,
    Space,
    Statement,
    Tree,
    map_loops,
)
from torch_tenon.ir.index import Index, Symbol, strides, substitute, var
from torch_tenon.ir.values import Buffer


def transpose_tiles(
    tree: Tree,
    rows: Symbol,
    lanes: Symbol,
    side: int,
    chosen: Callable[[Load], bool],
    width: int = 0,
    space: Space = "private",
) -> Tree:
    """In tiles of `side` by `side` iterations, a loop over `rows` around one over `lanes`, the
    chosen loads that are dense along the rows and not along the lanes, from a transposed copy.

    `width` is how far apart the rows of the copy are, if not `side`; `space` is where it is.
    """

    def change(loop: For) -> list[Statement]:
        transposing = _Transposing(loop, lanes, (side, width or side), space, chosen)
        inside = map_loops(loop.body, transposing.lanes)
        return [*transposing.before, loop.holding(inside)]

    return tree.replacing(lambda loop: loop.symbol is rows, change)


class _Transposing(Copy):
    def __init__(
        self,
        rows: For,
        lanes: Symbol,
        sizes: tuple[int, int],
        space: Space,
        chosen: Callable[[Load], bool],
    ) -> None:
        super().__init__(fresh=False)
        self.rows, self.lane, (self.side, self.width), self.chosen = rows, lanes, sizes, chosen
        self.space: Space = space
        self.before: list[Statement] = []

    def lanes(self, loop: For) -> list[Statement]:
        """The loop over lanes, reading the copies."""
        if loop.symbol is not self.lane:
            return [loop]
        made: list[Statement] = []
        for s in loop.body:
            transposed = self._transposed(s, loop) if isinstance(s, Load) else None
            if transposed is None:
                made.append(self.statement(s))
            else:
                assert isinstance(s, Load)
                self.values[s] = transposed
                made.append(transposed)
        return [loop.holding(made)]

    def _transposed(self, s: Load, lanes: For) -> Load | None:
        """The load from a transposed copy, if that is how it is to be read."""
        row, lane = self.rows.symbol, lanes.symbol
        steps = strides(s.index) or {}
        if steps.get(row) != 1 or steps.get(lane, 0) in (0, 1):
            return None
        if s.mask is not None or not isinstance(s.memory, Buffer) or not self.chosen(s):
            return None
        tile = Array("tile", s.memory.dtype, self.side * self.width, space=self.space)
        first: dict[Symbol, Index] = {row: self.rows.starts[0], lane: lanes.starts[0]}
        # Rows of the copy are the loop's, columns its lanes; in memory it is the other way.
        columns, rows = (
            tuple(e - loop.starts[0] for e in loop.stops) for loop in (lanes, self.rows)
        )
        index = substitute(s.index, first)
        self.before += [
            Declare(tile),
            CopyBlock(tile, 0, (self.width, 1), s.memory, index, (1, steps[lane]), rows, columns),
        ]
        position = (var(row) - first[row]) * self.width + var(lane) - first[lane]
        return Load(tile, position, s.dtype)
