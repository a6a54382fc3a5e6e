"""How loops are laid out on a device whose work-items are many, as a GPU's, and on one whose
work-items have a processor's vectors each.

Of many: a position of the loops over results is a step of the grid. Where its row is long and
dense, a work-group takes it: the work-items share out the row, and put their parts together in
local memory. Else a work-item takes it, so that neighbours read neighbouring elements.
"""

from __future__ import annotations

from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.numbers import Numbers, numbers_as_arguments
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.tile import share_out
from torch_tenon.compiler.loops.tree import For, Tree
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import product
from torch_tenon.ir.scalar_ops import PLAIN_OPS
from torch_tenon.ir.values import Buffer, size_hint
from torch_tenon.targets.c_family.layout import (
    FAR,
    SHORT,
    SIDE_BY_SIDE,
    Layout,
    is_short_reduction,
)
from torch_tenon.targets.opencl.device import Shape

LONG_ROW = 64  # elements from which work-items share a row
LONG_PIECE = 1024  # elements of a piece of a row that is read in several places at once


class AloneLayout(Layout):
    """A group's loops for work-items that have a processor's vectors each: as on a processor."""

    def is_side_by_side(self, loop: For) -> bool:
        """Long rows that come from memory, too: it is read faster in several places at once."""
        far = size_hint(loop.axis.extent or 0) >= LONG_PIECE * SIDE_BY_SIDE
        return (loop.again or far) and is_short_reduction(loop)


class GroupLayout:
    """A group's loops for work-items that share rows, or not.

    items   work-items that share a row, 0 where each has its own
    tree    the loops
    """

    def __init__(self, group: Group, kept: set[Buffer], shape: Shape) -> None:
        decided = Layout(group, kept)  # which accesses are dense does not depend on the processor
        self.kind, self.work = decided.kind, decided.work
        self.inner = decided.inner
        row = size_hint(product(s.extent for s in group.inner))
        shares = self.kind == "row" and row >= LONG_ROW
        serial = any(m.node.kind in ("scan", "scatter") for m in group.members)
        self.items = 0 if serial or not shares else min(shape.items, 1 << (row - 1).bit_length())
        tree = lower(group, kept)
        if self.items:
            tree = keep_rows(tree, self._rows(decided.rows, shape), self.inner)
        tree = share_out(tree, len(group.outer))
        numbers = Numbers(FAR, SHORT, set(self.inner), (), PLAIN_OPS, self.in_pass)
        tree = numbers_as_arguments(place_values(tree), numbers)
        self.tree = self._shared(tree) if self.items else tree

    def in_pass(self, loop: For) -> bool:
        """Whether a loop belongs to a pass over a position."""
        return loop.axis in self.inner

    def _rows(self, wanted: list[Buffer], shape: Shape) -> list[Buffer]:
        """Rows that local memory has room for, beside what is put together there."""
        free, found = shape.local // 2, []
        for b in wanted:
            length = product(s.extent for s in self.inner)
            nbytes = length * b.dtype.itemsize if isinstance(length, int) else free + 1
            if nbytes <= free:
                found.append(b)
                free -= nbytes
        return found

    def _shared(self, tree: Tree) -> Tree:
        return tree.replacing(
            lambda loop: loop.axis is self.inner[-1], lambda loop: [loop.like(kind="group")]
        )
