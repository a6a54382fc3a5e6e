"""Splitting a reduction: each run of a loop has a partial result, and these go into the total.

The greatest of float32 is found among whole numbers in the same order. A compiler combines the
lanes of these in registers; those of floats, among which a NaN is the greatest and the least, it
combines one by one, which takes longer than a short row.
"""

from __future__ import annotations

import torch

from torch_tenon.compiler.loops.copy import Copy, instead
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Array,
    Constant,
    Declare,
    For,
    Let,
    Operand,
    Read,
    Statement,
    Tree,
    walk,
)
from torch_tenon.ir.index import Index, Symbol, var

_INFINITY, _NAN = 0x7F800000, 0x7FC00000  # their bits; those of negative ones in order: `~`


def split_reductions(tree: Tree, symbol: Symbol, block: int, alone: bool = False) -> Tree:
    """Partial results for the loops with this symbol. Sums of float32 are added up in blocks of
    that many iterations, and their totals in float64: a long row loses no more than a short one.
    `alone`: nothing else is reduced around these loops, so of a single block there is no total."""
    totals: dict[Array, Accumulator] = {}

    def change(loop: For) -> list[Statement]:
        reduced = {
            s.accumulator: None
            for s in walk(loop.body)
            if isinstance(s, Accumulate) and not s.accumulator.running
        }
        extent = loop.axis.extent
        if alone and isinstance(extent, int) and extent <= block and all(map(_is_wide, reduced)):
            return [loop]
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
    deeper = {
        s.accumulator for s in walk(loop.body) if isinstance(s, Accumulate) and s not in loop.body
    }
    ordered = {a for a in reduced if _is_ordered(a) and a not in deeper}
    partials = {
        a: Accumulator("partial", torch.int32 if a in ordered else a.dtype, a.length, a.combine)
        for a in reduced
    }
    copy = Copy(arrays={a: instead(p) for a, p in partials.items()}, fresh=False)
    loop = loop.holding(_in_order(loop.body, ordered))
    extent = loop.axis.extent
    declared: list[Statement] = [_declare(a, p) for a, p in partials.items()]
    taken = [s for a, p in partials.items() for s in _take(a, p)]
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


def _is_ordered(a: Accumulator) -> bool:
    """Whether partial results may be whole numbers in the order of floats."""
    return a.dtype is torch.float32 and a.combine in ("max", "min") and a.length is None


def _declare(total: Accumulator, partial: Accumulator) -> Statement:
    if partial.dtype is total.dtype:
        return Declare(partial)
    first = ~_INFINITY if total.combine == "max" else _INFINITY
    return Declare(partial, Constant(first, torch.int32))


def _in_order(body: list[Statement], ordered: set[Accumulator]) -> list[Statement]:
    made: list[Statement] = []
    for s in body:
        if isinstance(s, Accumulate) and s.accumulator in ordered:
            number = _turned(made, _let(made, "bitcast", torch.int32, s.value))
            is_number = _let(made, "eq", torch.bool, s.value, s.value)
            nan = Constant(_NAN if s.accumulator.combine == "max" else ~_NAN, torch.int32)
            number = _let(made, "where", torch.int32, is_number, number, nan)
            s = Accumulate(s.accumulator, s.index, number)
        made.append(s)
    return made


def _turned(made: list[Statement], bits: Operand) -> Operand:
    """Of the bits of a float32 a whole number in the same order, and back: the greater a negative
    one, the less are its bits."""
    sign = _let(made, "rshift", torch.int32, bits, Constant(31, torch.int32))
    rest = _let(made, "bitwise_and", torch.int32, sign, Constant(0x7FFFFFFF, torch.int32))
    return _let(made, "bitwise_xor", torch.int32, bits, rest)


def _let(made: list[Statement], op: str, dtype: torch.dtype, *args: Operand) -> Let:
    value = Let(op, args, dtype)
    made.append(value)
    return value


def _take(total: Accumulator, partial: Accumulator) -> list[Statement]:
    """Combines a partial result into its total."""
    if partial.dtype is torch.int32 and total.dtype is torch.float32:
        made: list[Statement] = []
        bits = _turned(made, Read(partial, 0, torch.int32))
        value = _let(made, "bitcast", torch.float32, bits)
        return [*made, Accumulate(total, 0, value)]
    if partial.length is None:
        return [Accumulate(total, 0, Read(partial, 0, partial.dtype))]
    k = Symbol("k", partial.length)
    body: list[Statement] = [Accumulate(total, var(k), Read(partial, var(k), partial.dtype))]
    return [For(k, "parallel", k, (0,), (partial.length,), body)]
