"""How loops are laid out on a device whose work-items are many, as a GPU's, and on one whose
work-items have a processor's vectors each.

Of many, neighbours in a work-group read neighbours in memory:

  long rows        a work-group takes one. Its work-items share out the elements, and put together
                   in local memory what they have reduced, or combine it step by step in a scan
  short rows       the same for as many rows as a work-group has work-items for
  long columns     a work-group takes some that lie side by side. Work-items share out a column's
                   elements, and put together what they have
  across memory    a work-group takes a tile, which local memory has with rows and columns exchanged
  few positions    of a scatter with atomics: a work-item takes one of the stores
  anything else    a work-item takes a position; that memory is dense along runs fastest
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.loops.atomics import atomic_stores
from torch_tenon.compiler.loops.interchange import interchange
from torch_tenon.compiler.loops.lower import lower
from torch_tenon.compiler.loops.numbers import Numbers, numbers_as_arguments
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.tile import share_out, tile
from torch_tenon.compiler.loops.transpose import transpose_tiles
from torch_tenon.compiler.loops.tree import For, Load, Tree
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Symbol, product, var
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

LONG_ROW = 64  # elements from which a work-group takes a row, and work-items share a column
SHORT_ROW = 8  # elements from which work-items share a row
SIDE = 32  # columns that lie side by side, and the side of a tile
MOST_SCANS = 2  # that local memory has the values of at once
FEW_POSITIONS = 1024  # for a compute unit, of a scatter: then each of its stores is a work-item's
LONG_PIECE = 1024  # elements of a piece of a row that is read in several places at once


class AloneLayout(Layout):
    """A group's loops for work-items that have a processor's vectors each: as on a processor."""

    def is_side_by_side(self, loop: For) -> bool:
        """Long rows that come from memory, too: it is read faster in several places at once."""
        far = size_hint(loop.axis.extent or 0) >= LONG_PIECE * SIDE_BY_SIDE
        return (loop.again or far) and is_short_reduction(loop)


class _Decided(Layout):
    """What does not depend on the processor: which accesses are dense. Short rows stay rows, since
    several work-items share one, and what lies side by side is their neighbours'."""

    writes_out = False

    def of_short_rows(self) -> Symbol | None:
        """None."""
        return None


class GroupLayout:
    """A group's loops for work-items that are many.

    shared  what the work-items of a work-group do together; None where each has a position
    tree    the loops
    """

    def __init__(
        self, group: Group, kept: set[Buffer], shape: Shape, capabilities: Capabilities
    ) -> None:
        decided = _Decided(group, kept)
        self.kind, self.work, self.inner = decided.kind, decided.work, decided.inner
        self.lane, self.across = decided.lane, decided.across
        outer = [*decided.order, *([] if self.lane is None else [self.lane])]
        self.shared = self._shared(group, decided.order, shape)
        tree = lower(group, kept)
        positions = size_hint(product(s.extent for s in group.outer))
        if self.kind == "scatter" and positions < FEW_POSITIONS * shape.units:
            ordered, tree = tree, atomic_stores(tree, capabilities)
            if tree is not ordered:
                # Neighbours read neighbours.
                dense = decided.is_dense_inside()
                outer = [*outer, *self.inner] if dense else [*self.inner, *outer]
                self.inner = []
        if self.shared is None:
            if self.across is not None:
                outer.insert(0, self.across)  # tiles of it do not fit
            tree = share_out(interchange(tree, outer), len(outer))
        else:
            rows = self._rows(decided.rows, shape) if self.kind == "row" else []
            tree = self._in_tiles(tree, outer, rows)
        numbers = Numbers(FAR, SHORT, set(self.inner), (), PLAIN_OPS, self.in_pass)
        tree = numbers_as_arguments(place_values(tree), numbers)
        if self.across is not None and self.lane is not None and self.shared is not None:
            chosen = _has_room(shape.local)
            tree = transpose_tiles(tree, self.across, self.lane, SIDE, chosen, SIDE + 1, "shared")
        self.tree = tree.replacing(self._is_part, lambda loop: [loop.like(kind="group")])

    def in_pass(self, loop: For) -> bool:
        """Whether a loop belongs to a pass over a position."""
        return loop.axis in self.inner

    def _is_part(self, loop: For) -> bool:
        return self.shared is not None and loop.kind != "grid" and loop.axis in self.shared.parts

    def _shared(self, group: Group, order: Sequence[Symbol], shape: Shape) -> Shared | None:
        """What work-items do together: rows, long columns, tiles that are transposed."""
        kinds = [m.node.kind for m in group.members]
        row = size_hint(product(s.extent for s in group.inner))
        if "scatter" in kinds:
            return None
        if self.kind == "row":
            return self._of_rows(min(shape.items, _power(row)), kinds.count("scan"), order, shape)
        if self.lane is None or "scan" in kinds:
            return None
        if self.kind == "column":
            wide = min(SIDE, shape.items, _power(_hint(self.lane)))
            tall = min(shape.items // wide, _power(_hint(self.inner[-1])))
            together = Part(wide, tall)
            parts = {self.lane: Part(1, wide), self.inner[-1]: together}
            return Shared(wide * tall, parts, together, self.lane) if row >= LONG_ROW else None
        if self.across is None or shape.items < SIDE:
            return None
        parts = {self.lane: Part(1, SIDE), self.across: Part(SIDE, shape.items // SIDE)}
        return Shared(shape.items, parts, side=SIDE)

    def _of_rows(
        self, items: int, scans: int, order: Sequence[Symbol], shape: Shape
    ) -> Shared | None:
        """As many work-items for a row: of a long one, a work-group's; of short ones, some."""
        if scans and (scans > MOST_SCANS or len(self.inner) > 1 or items < LONG_ROW):
            return None
        along = items if len(self.inner) == 1 else min(items, _power(_hint(self.inner[-1])))
        parts = {self.inner[-1]: Part(1, along)}
        if along < items:
            parts[self.inner[-2]] = Part(along, items // along)
        together = Part(1, items)
        if items >= LONG_ROW or not order:
            return Shared(items, parts, together)
        if items < SHORT_ROW:
            return None
        parts[order[-1]] = Part(items, shape.items // items)
        return Shared(shape.items, parts, together, order[-1])

    def _in_tiles(self, tree: Tree, outer: Sequence[Symbol], rows: Sequence[Buffer]) -> Tree:
        """The grid, which is over tiles of the loops that a work-group has several positions of;
        these are inside."""
        assert self.shared is not None
        inside = [s for s in (self.across, *outer) if s in self.shared.parts]
        tiles = {s: Symbol(f"{s.name}_tile", s.extent) for s in inside}
        for s, t in tiles.items():
            tree = tile(tree, s, self.shared.side or self.shared.parts[s].count, t)
        around = [s for s in outer if s not in tiles]
        tree = interchange(tree, [*around, *tiles.values(), *inside])
        position = self.shared.position
        if rows and position is not None:
            count, number = self.shared.parts[position].count, var(position) - var(tiles[position])
            tree = keep_rows(tree, rows, self.inner, count, number, "shared")
        else:
            tree = keep_rows(tree, rows, self.inner, space="shared")
        return share_out(tree, len(around) + len(tiles))

    def _rows(self, wanted: list[Buffer], shape: Shape) -> list[Buffer]:
        """Rows that local memory has room for, beside what is put together there."""
        assert self.shared is not None
        position = self.shared.position
        count = 1 if position is None else self.shared.parts[position].count
        free, found = shape.local // 2, []
        for b in wanted:
            length = product(s.extent for s in self.inner)
            nbytes = length * count * b.dtype.itemsize if isinstance(length, int) else free + 1
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
