"""Staging what loops read: blocks of it are copied into memory near to where it is used, before the
loops. A work-group reads such a block once for all its iterations; a scratchpad has nothing that
nobody copied there.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    NESTS,
    Array,
    CopyBlock,
    Declare,
    For,
    If,
    Let,
    Load,
    Space,
    Statement,
    Tree,
    changes,
    kind_of_pieces,
    walk,
)
from torch_tenon.compiler.memory import ALIGNMENT, aligned
from torch_tenon.ir.index import Index, Symbol, substitute, symbols, var
from torch_tenon.ir.values import Buffer


def stage(tree: Tree, space: Space, room: int) -> Tree:
    """What loops read in blocks, from arrays in `space`, of which a loop has `room` bytes at most.

    A block is what a load reads in a loop, and a rectangle in memory. The outermost loop takes the
    blocks of all that it holds, if one iteration's have room: it becomes one over tiles of as many
    iterations as have. Of the grid, a step takes its own; in a group or in lanes nothing is copied.
    Loads stay that have a mask or stand in an `If`, whose index depends on a value of the innermost
    loop, or whose memory that changes.
    """
    return tree.having(_staged(tree.body, space, room))


def _staged(body: Sequence[Statement], space: Space, room: int) -> list[Statement]:
    made: list[Statement] = []
    for s in body:
        if isinstance(s, For):
            made += _Stage(s, space, room).run()
        elif isinstance(s, If):
            made.append(If(s.condition, _staged(s.body, space, room)))
        else:
            made.append(s)
    return made


@dataclass
class _Block:
    """What a load reads in the loops of `dims`, each with its step in memory: rows and columns, or
    columns alone. Equal ones have equal keys."""

    load: Load
    dims: list[tuple[For, Index]]

    @property
    def key(self) -> Hashable:
        ends = (end for loop, _ in self.dims for end in (loop.symbol, loop.starts, loop.stops))
        return (self.load.memory, self.load.index, *ends)

    def nbytes(self, tiled: For, unknown: int) -> int:
        """Its bytes at most, for each iteration of one loop; `unknown` where nobody knows."""
        counts = [_most(loop) for loop, _ in self.dims if loop is not tiled]
        known = [n for n in counts if n is not None]
        if len(known) < len(counts):
            return unknown
        return math.prod(known, start=self.load.memory.dtype.itemsize)


class _Stage(Copy):
    """What stands for one loop."""

    def __init__(self, loop: For, space: Space, room: int) -> None:
        super().__init__(fresh=False)
        self.loop, self.space, self.room = loop, space, room
        self.made: dict[Hashable, Array] = {}  # by the block that is copied there
        self.elements: dict[Load, Load] = {}  # those of arrays, for those of memory

    def run(self) -> list[Statement]:
        """The loop, or one over tiles around it, that reads arrays; itself where it can not."""
        loop = self.loop
        if loop.kind in ("group", "unrolled"):
            return [loop]
        blocks = self._blocks()
        varying = [b for b in blocks if any(x is loop for x, _ in b.dims)]
        fixed = [b for b in blocks if b not in varying]
        width = self._width(varying, fixed) if blocks else 0
        if width == 0:
            if loop.kind == "lane":
                return [loop]
            return [loop.holding(_staged(loop.body, self.space, self.room))]
        if loop.kind == "grid":
            before = self._copies(blocks, loop)
            return [loop.holding([*before, *self.body(loop.body)])]
        inside, around = loop, None
        extent = _most(loop)
        if varying and (extent is None or width < extent):
            around = Symbol(f"{loop.symbol.name}_tile", loop.axis.extent)
            start = var(around)
            inside = loop.like(starts=(start,), stops=(start + width, *loop.stops))
        # What is one for all tiles is copied before them.
        before, here = self._copies(fixed, inside), self._copies(varying, inside)
        here.append(inside.holding(self.body(loop.body)))
        if around is None:
            return [*before, *here]
        tiles = loop.like(kind=kind_of_pieces(loop), symbol=around, step=width, body=here)
        return [*before, tiles]

    def statement(self, s: Statement) -> Statement:
        if isinstance(s, Load) and s in self.elements:
            self.values[s] = self.elements[s]
            return self.elements[s]
        return super().statement(s)

    def _blocks(self) -> list[_Block]:
        """Blocks of all loads that can be staged anywhere inside, or nothing."""
        found: list[_Block] = []
        if self.loop.kind == "grid" and any(
            isinstance(s, For) and s.kind == "grid" for s in self.loop.body
        ):
            return found
        for load, around in _loads(self.loop.body, (self.loop,)):
            loop = around[-1]
            if not isinstance(loop, For) or _block(load, [loop]) is None:
                continue  # it stays, wherever
            loops = [s for s in around if isinstance(s, For)]
            block = _block(load, loops) if len(loops) == len(around) else None
            if block is None:
                return []
            found.append(block)
        return found

    def _width(self, varying: list[_Block], fixed: list[_Block]) -> int:
        """How many iterations have room for their blocks; 0 for none."""
        each, once = self._nbytes(varying), self._nbytes(fixed)
        left = self.room - sum(map(aligned, once)) - ALIGNMENT * len(each)
        return max(0, left // max(1, sum(each)))

    def _nbytes(self, blocks: list[_Block]) -> list[int]:
        """The bytes of each block for an iteration, once for equal ones."""
        equal = {b.key: b for b in blocks}
        return [b.nbytes(self.loop, self.room + 1) for b in equal.values()]

    def _copies(self, blocks: list[_Block], inside: For) -> list[Statement]:
        """The arrays of blocks and the copies into them, with the loop at hand as `inside`."""
        made: list[Statement] = []
        for b in blocks:
            dims = [(inside if x is self.loop else x, step) for x, step in b.dims]
            # A block of columns alone has one row.
            height, width = [1, *(_most(x) or 0 for x, _ in dims)][-2:]
            if b.key not in self.made:
                memory, index = b.load.memory, b.load.index
                array = Array("staged", memory.dtype, height * width, space=self.space)
                index = substitute(index, {x.symbol: x.starts[0] for x, _ in dims})
                down, across = [0, *(step for _, step in dims)][-2:]
                counts = (tuple(e - x.starts[0] for e in x.stops) for x, _ in dims)
                rows, columns = [(1,), *counts][-2:]
                source = memory, index, (down, across)
                made += [Declare(array), CopyBlock(array, 0, (width, 1), *source, rows, columns)]
                self.made[b.key] = array
            row, column = [0, *(var(x.symbol) - x.starts[0] for x, _ in dims)][-2:]
            element = row * width + column
            self.elements[b.load] = Load(self.made[b.key], element, b.load.dtype)
        return made


def _loads(
    body: Sequence[Statement], around: tuple[For | If, ...]
) -> Iterator[tuple[Load, tuple[For | If, ...]]]:
    """The loads from buffers without a mask, each with what stands around it."""
    for s in body:
        if isinstance(s, NESTS):
            yield from _loads(s.body, (*around, s))
        elif isinstance(s, Load) and isinstance(s.memory, Buffer) and s.mask is None:
            yield s, around


def _block(load: Load, loops: Sequence[For]) -> _Block | None:
    """What a load reads in all of these loops, from the outermost; None for no rectangle that is
    known before them."""
    outer = loops[0]
    used, loops = symbols(load.index), [s for s in loops if s.kind != "grid"]
    unknown = {s.symbol for s in walk(outer.body) if isinstance(s, Let)}
    if not unknown.isdisjoint(used) or changes(outer.body, load.memory):
        return None
    unknown |= {s.symbol for s in loops}
    dims: list[tuple[For, Index]] = []
    for loop in (s for s in loops if s.symbol in used):
        step = substitute(load.index, {loop.symbol: var(loop.symbol) + 1}) - load.index
        known = set().union(*map(symbols, (step, *loop.starts, *loop.stops)))
        if len(loop.starts) > 1 or loop.step != 1 or not unknown.isdisjoint(known):
            return None
        dims.append((loop, step))
    if len(dims) not in (1, 2):
        return None
    # Columns are what memory is dense along.
    dims.sort(key=lambda dim: (dim[1] == 1, loops.index(dim[0])))
    return _Block(load, dims)


def _most(loop: For) -> int | None:
    """How many iterations a loop has at most, if that is a number; 1 for one that never runs, which
    has an array all the same."""
    counts = [e - loop.starts[0] for e in loop.stops]
    known = [max(n, 1) for n in counts if isinstance(n, int)]
    return min(known, default=None)
