"""Places temporaries in one arena, by size and live range."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

ALIGNMENT = 64  # bytes: a cache line, of which memory is a multiple everywhere


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to whole cache lines (at least one), or what else memory comes in."""
    return max(-(-nbytes // alignment), 1) * alignment


def place(
    blocks: Sequence[tuple[int, int, int]], alignment: int = ALIGNMENT
) -> tuple[list[int], int]:
    """Offsets for blocks of `(bytes, first step, last step)`, and the arena's size in bytes.

    Blocks whose steps overlap (both ends included) do not overlap in memory. Taken in the order of
    their first step, each goes into the smallest free piece that holds it. Each offset is a
    multiple of `alignment`.
    """
    offsets = [0] * len(blocks)
    order = sorted(range(len(blocks)), key=lambda k: (blocks[k][1], -blocks[k][0]))
    ends: list[tuple[int, int, int]] = []  # (last step, offset, bytes), sorted
    free: list[tuple[int, int]] = []  # (offset, bytes), sorted, never adjacent
    top = 0
    for k in order:
        nbytes, first, last = aligned(blocks[k][0], alignment), blocks[k][1], blocks[k][2]
        while ends and ends[0][0] < first:
            _, offset, size = ends.pop(0)
            _release(free, offset, size)
        best = -1
        for j, (_, size) in enumerate(free):
            if size >= nbytes and (best < 0 or size < free[best][1]):
                best = j
        if best >= 0:
            offset, size = free.pop(best)
            if size > nbytes:
                bisect.insort(free, (offset + nbytes, size - nbytes))
        elif free and free[-1][0] + free[-1][1] == top:
            offset, _ = free.pop()  # the last free piece reaches the end: grow it
            top = offset + nbytes
        else:
            offset, top = top, top + nbytes
        offsets[k] = offset
        bisect.insort(ends, (last, offset, nbytes))
    return offsets, top


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    at = bisect.bisect(free, (offset, size))
    if at < len(free) and offset + size == free[at][0]:
        size += free.pop(at)[1]
    if at > 0 and free[at - 1][0] + free[at - 1][1] == offset:
        offset, before = free.pop(at - 1)
        size += before
        at -= 1
    free.insert(at, (offset, size))
