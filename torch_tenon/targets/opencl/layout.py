"""How loops are laid out on a device whose work-items are many, as a GPU's, and on one whose
work-items have a processor's vectors each.

Of many, neighbours in a work-group read neighbours in memory:

  long rows        a work-group takes one. Its work-items share out the elements, and put together
                   in local memory what they have reduced, or combine it step by step in a scan
  long columns     a work-group takes some that lie side by side. Work-items share out a column's
                   elements, and put together what they have
  across memory    a work-group takes a tile, which local memory has with rows and columns exchanged
  anything else    a work-item takes a position; that memory is dense along runs fastest
"""

from __future__ import annotations

from collections.abc import Callable

from torch_tenon.compiler.loops.interchange import interchange
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.numbers import Numbers, numbers_as_arguments
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.tile import share_out, tile
from torch_tenon.compiler.loops.transpose import transpose_tiles
from torch_tenon.compiler.loops.tree import For, Load, Tree
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Symbol, product
from torch_tenon.ir.scalar_ops import PLAIN_OPS
from torch_tenon.ir.values import Buffer, size_hint
from torch_tenon.targets.c_family.layout import (
    FAR,
    SHORT,
    SIDE_BY_SIDE,
    Layout,
    is_short_reduction,
    is_transposed,
)
from torch_tenon.targets.opencl.device import Shape
from torch_tenon.targets.opencl.dialect import Part, Shared

LONG_ROW = 64  # elements from which work-items share a row, or a column
SIDE = 32  # columns that lie side by side, and the side of a tile
MOST_SCANS = 2  # that local memory has the values of at once
LONG_PIECE = 1024  # elements of a piece of a row that is read in several places at once


class AloneLayout(Layout):
    """A group's loops for work-items that have a processor's vectors each: as on a processor."""

    def is_side_by_side(self, loop: For) -> bool:
        """Long rows that come from memory, too: it is read faster in several places at once."""
        far = size_hint(loop.axis.extent or 0) >= LONG_PIECE * SIDE_BY_SIDE
        return (loop.again or far) and is_short_reduction(loop)


class GroupLayout:
    """A group's loops for work-items that are many.

    shared  what the work-items of a work-group do together; None where each has a position
    tree    the loops
    """

    def __init__(self, group: Group, kept: set[Buffer], shape: Shape) -> None:
        decided = Layout(group, kept)  # which accesses are dense does not depend on the processor
        self.kind, self.work, self.inner = decided.kind, decided.work, decided.inner
        self.lane, self.across = decided.lane, decided.across
        outer = [*decided.order, *([] if self.lane is None else [self.lane])]
        self.shared = self._shared(group, shape)
        tree = lower(group, kept)
        if self.across is not None and self.shared is None:
            outer.insert(0, self.across)  # tiles of it are not worth it, or do not fit
        if self.shared is None:
            tree = share_out(interchange(tree, outer), len(outer))
        elif self.kind == "row":
            rows = self._rows(decided.rows, shape)
            tree = share_out(keep_rows(tree, rows, self.inner), len(outer))
        else:
            tree = self._in_tiles(tree, decided.order)
        numbers = Numbers(FAR, SHORT, set(self.inner), (), PLAIN_OPS, self.in_pass)
        tree = numbers_as_arguments(place_values(tree), numbers)
        if self.across is not None and self.lane is not None and self.shared is not None:
            chosen = _has_room(shape.local)
            tree = transpose_tiles(tree, self.across, self.lane, SIDE, chosen, SIDE + 1)
        self.tree = tree.replacing(self._is_part, lambda loop: [loop.like(kind="group")])

    def in_pass(self, loop: For) -> bool:
        """Whether a loop belongs to a pass over a position."""
        return loop.axis in self.inner

    def _is_part(self, loop: For) -> bool:
        return self.shared is not None and loop.kind != "grid" and loop.axis in self.shared.parts

    def _shared(self, group: Group, shape: Shape) -> Shared | None:
        """What work-items do together: a long row, long columns, tiles that are transposed."""
        kinds = [m.node.kind for m in group.members]
        row = size_hint(product(s.extent for s in group.inner))
        items = min(shape.items, _power(row))
        if "scatter" in kinds or (self.kind != "flat" and row < LONG_ROW):
            return None
        if self.kind == "row":
            scans = kinds.count("scan")
            if scans and (scans > MOST_SCANS or len(self.inner) > 1):
                return None
            along = items if len(self.inner) == 1 else min(items, _power(_hint(self.inner[-1])))
            parts = {self.inner[-1]: Part(1, along)}
            if along < items:
                parts[self.inner[-2]] = Part(along, items // along)
            return Shared(items, parts)
        if self.lane is None or "scan" in kinds:
            return None
        if self.kind == "column":
            wide = min(SIDE, shape.items, _power(_hint(self.lane)))
            items = min(shape.items, wide * _power(_hint(self.inner[-1])))
            parts = {self.lane: Part(1, wide), self.inner[-1]: Part(wide, items // wide)}
            return Shared(items, parts, self.lane)
        if self.across is None or shape.items < SIDE:
            return None
        parts = {self.lane: Part(1, SIDE), self.across: Part(SIDE, shape.items // SIDE)}
        return Shared(shape.items, parts, side=SIDE)

    def _in_tiles(self, tree: Tree, order: list[Symbol]) -> Tree:
        """The grid over tiles of lanes, and of what is across them, whose loops are inside."""
        assert self.shared is not None
        inside = [s for s in (self.across, self.lane) if s is not None]
        tiles = [Symbol(f"{s.name}_tile", s.extent) for s in inside]
        for s, t in zip(inside, tiles, strict=True):
            tree = tile(tree, s, self.shared.side or self.shared.parts[s].count, t)
        grid = [*order, *tiles]
        return share_out(interchange(tree, [*grid, *inside]), len(grid))

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


def _has_room(left: int) -> Callable[[Load], bool]:
    """Which loads are read from transposed tiles: as many as local memory has bytes for."""

    def chosen(load: Load) -> bool:
        nonlocal left
        nbytes = SIDE * (SIDE + 1) * load.memory.dtype.itemsize
        if not is_transposed(load) or nbytes > left:
            return False
        left -= nbytes
        return True

    return chosen


def _hint(axis: Symbol) -> int:
    return size_hint(axis.extent or 1)


def _power(n: int) -> int:
    """The least power of two from a number on."""
    return 1 << (max(n, 1) - 1).bit_length()
