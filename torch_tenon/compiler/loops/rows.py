"""Keeping a row in fast memory: what a pass writes and only later passes over the row read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import Array, Declare, For, Memory, Space, Statement, Tree
from torch_tenon.ir.index import Index, Symbol, flat_index, product, var
from torch_tenon.ir.values import Buffer


def keep_rows(
    tree: Tree,
    buffers: Sequence[Buffer],
    inner: Sequence[Symbol],
    count: int = 1,
    number: Index = 0,
    space: Space = "private",
) -> Tree:
    """The buffers as arrays in `space`, with an element for each position of the loops `inner`.

    They have to be read where they were written, and by nobody else. The arrays have `count` rows,
    where several positions share them; `number` is that of the one at hand.
    """
    if not buffers:
        return tree
    return tree.having(_Rows(buffers, inner, count, number, space).around(tree.body))


class _Rows(Copy):
    def __init__(
        self,
        buffers: Sequence[Buffer],
        inner: Sequence[Symbol],
        count: int,
        number: Index,
        space: Space,
    ) -> None:
        super().__init__(fresh=False)
        extents = [s.extent for s in inner]
        length = product(extents)
        assert isinstance(length, int)
        self.inner = inner
        self.rows = {b: Array("row", b.dtype, length * count, space=space) for b in buffers}
        self.element = number * length + flat_index([var(s) for s in inner], extents)

    def around(self, body: Sequence[Statement]) -> list[Statement]:
        """A copy of statements, with the arrays declared where the passes stand."""
        outer = body[0] if len(body) == 1 else None
        if isinstance(outer, For) and outer.symbol not in self.inner:
            return [outer.holding(self.around(outer.body))]
        declared: list[Any] = [Declare(a) for a in self.rows.values()]
        return declared + self.body(body)

    def _memory(self, memory: Memory, index: Index) -> tuple[Memory, Index]:
        row = self.rows.get(memory) if isinstance(memory, Buffer) else None
        return super()._memory(memory, index) if row is None else (row, self.element)
