"""Splitting a reduction: each run of a loop has a partial result, and these go into the total."""

from __future__ import annotations

import torch

from torch_tenon.compiler.loops.copy import Copy, instead
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Array,
    Declare,
    For,
    Read,
    Statement,
    Tree,
    walk,
)
from torch_tenon.ir.index import Index, Symbol, var


def split_reductions(tree: Tree, symbol: Symbol, block: int) -> Tree:
    """Partial results for the loops with this symbol. Sums of float32 are added up in blocks of
    that many iterations, and their totals in float64: a long row loses no more than a short one."""
    totals: dict[Array, Accumulator] = {}

    def change(loop: For) -> list[Statement]:
        reduced = {
            s.accumulator: None
            for s in walk(loop.body)
            if isinstance(s, Accumulate) and not s.accumulator.running
        }
        for a in reduced:
            if _is_wide(a) and a not in totals:
                totals[a] = Accumulator(a.label, torch.float64, a.length, a.combine)
        return _split(loop, list(reduced), block) if reduced else [loop]

    made = tree.replacing(lambda loop: loop.symbol is symbol, change)
    moved = {a: instead(t) for a, t in totals.items()}
    return made.having(Copy(arrays=moved, fresh=False).body(made.body)) if totals else made


def _is_wide(a: Accumulator) -> bool:
    """Whether partial sums are float32 and the total float64."""
    return a.dtype is torch.float32 and a.combine == "sum"


def _split(loop: For, reduced: list[Accumulator], block: int) -> list[Statement]:
    partials = {a: Accumulator("partial", a.dtype, a.length, a.combine) for a in reduced}
    copy = Copy(arrays={a: instead(p) for a, p in partials.items()}, fresh=False)
    extent = loop.axis.extent
    declared: list[Statement] = [Declare(p) for p in partials.values()]
    taken = [_take(a, p) for a, p in partials.items()]
    short = isinstance(extent, int) and extent <= block
    if short or not any(_is_wide(a) for a in reduced):
        return [*declared, loop.holding(copy.body(loop.body)), *taken]
    blocks = Symbol(f"{loop.symbol.name}_block", extent)
    stops: tuple[Index, ...] = (var(blocks) + block, *loop.stops)
    if isinstance(extent, int) and extent % block == 0:
        stops = stops[:1]
    inside = loop.like(starts=(var(blocks),), stops=stops, body=copy.body(loop.body))
    # One block of a reduction after the other, so that the totals can be taken.
    around = loop.like(symbol=blocks, kind="reduce", step=block, body=[*declared, inside, *taken])
    return [around]


def _take(total: Accumulator, partial: Accumulator) -> Statement:
    """Combines a partial result into its total."""
    if partial.length is None:
        return Accumulate(total, 0, Read(partial, 0, partial.dtype))
    k = Symbol("k", partial.length)
    body: list[Statement] = [Accumulate(total, var(k), Read(partial, var(k), partial.dtype))]
    return For(k, "parallel", k, (0,), (partial.length,), body)
