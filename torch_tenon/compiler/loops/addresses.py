"""Where the arrays of a memory space lie that has addresses of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch_tenon.compiler.loops.tree import (
    NESTS,
    Array,
    Declare,
    Read,
    Space,
    Statement,
    Tree,
    changed,
    operands,
    read,
)
from torch_tenon.compiler.memory import place


def addresses(tree: Tree, space: Space) -> tuple[dict[Array, int], int]:
    """The offset of each array in bytes, and how many bytes there are in all. Arrays lie on each
    other where none is used any more when the next begins."""
    lives: dict[Array, list[int]] = {}  # the first statement and the last

    def visit(body: Sequence[Statement], number: int) -> int:
        own: list[Array] = []
        for s in body:
            first, number = number, number + 1
            if isinstance(s, Declare):
                own.append(s.array)
                lives.setdefault(s.array, [first, first])
            if isinstance(s, NESTS):
                number = visit(s.body, number)
            # What a loop uses of outside is there until it ends.
            for a in own:
                if a in _arrays(s):
                    lives[a][1] = number - 1
        return number

    visit(tree.body, 0)
    arrays = [a for a in lives if a.space == space]
    blocks = [((a.length or 1) * a.dtype.itemsize, *lives[a]) for a in arrays]
    offsets, nbytes = place([(size, first, last) for size, first, last in blocks])
    return dict(zip(arrays, offsets, strict=True)), nbytes


def _arrays(s: Statement) -> set[object]:
    """The arrays that a statement, or what is inside of it, uses."""
    found: set[object] = {*changed(s), *read(s)}
    found |= {x.array for x in operands(s) if isinstance(x, Read)}
    return found.union(*map(_arrays, s.body)) if isinstance(s, NESTS) else found
