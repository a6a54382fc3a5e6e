"""Several accumulators side by side: an addition may start before the one before is done."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_tenon.compiler.loops.copy import Copy, instead
from torch_tenon.compiler.loops.jam import divides, length_of
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Declare,
    For,
    Let,
    Read,
    Statement,
    Tree,
)
from torch_tenon.ir.index import Symbol, floordiv, var


def side_by_side(tree: Tree, count: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops, which reduce, as `count` pieces of equal length side by side,
    each with accumulators of its own, and a loop over what is left."""
    return tree.replacing(chosen, lambda loop: _side_by_side(loop, count))


def _side_by_side(loop: For, count: int) -> list[Statement]:
    totals = list(dict.fromkeys(s.accumulator for s in loop.body if isinstance(s, Accumulate)))
    made, whole = length_of(loop)
    (start,) = loop.starts
    length = floordiv(whole, count)
    if not isinstance(length, int):
        piece = Symbol("piece")
        made.append(Let("index", (length,), torch.int64, piece))
        length = var(piece)
    k = Symbol("k", loop.axis.extent)
    inside: list[Statement] = []
    after: list[Statement] = []
    copies = []
    for number in range(count):
        own = {a: Accumulator(a.label, a.dtype, None, a.combine) for a in totals}
        position = Symbol(loop.symbol.name, loop.axis.extent)
        at = start + var(k) + length * number
        inside.append(Let("index", (at,), torch.int64, position))
        copy = Copy(
            symbols={loop.symbol: var(position)},
            arrays={a: instead(p) for a, p in own.items()},
        )
        inside += copy.body(loop.body)
        copies.append(copy)
        made += [Declare(p) for p in own.values()]
        after += [Accumulate(a, 0, Read(p, 0, p.dtype)) for a, p in own.items()]
    found = [*made, loop.like(symbol=k, starts=(0,), stops=(length,), body=inside)]
    if not divides(count, loop):
        rest = Copy(arrays=copies[0].arrays).body(loop.body)
        found.append(loop.like(starts=(start + length * count,), body=rest))
    return found + after
