"""Neighbouring iterations of a loop at once, so that what several of them read is loaded once."""

from __future__ import annotations

from collections.abc import Callable

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.jam import divides, length_of
from torch_tenon.compiler.loops.tree import For, Let, Load, Memory, Statement, Store, Tree
from torch_tenon.ir.index import Index, Symbol, floordiv, substitute, var
from torch_tenon.ir.values import Buffer


def neighbours(tree: Tree, count: Callable[[For], int]) -> Tree:
    """Loops around a loop over lanes, in steps of as many iterations as `count` says where these
    are several. The lanes then compute all of a step. What is left goes one by one."""
    return tree.replacing(lambda loop: count(loop) > 1, lambda loop: _together(loop, count(loop)))


def lanes_of(loop: For) -> For | None:
    """The loop over lanes that is all that a loop holds, where its iterations only load, compute
    and store, and store nothing that they load; None where they do more."""
    lanes = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(lanes, For) or lanes.step != 1 or loop.step != 1 or len(loop.starts) != 1:
        return None
    if not all(isinstance(s, Load | Let | Store) for s in lanes.body):
        return None
    plain = all(s.mask is None for s in lanes.body if isinstance(s, Load))
    plain = plain and all(s.symbol is None for s in lanes.body if isinstance(s, Let))
    plain = plain and all(s.combine == "store" for s in lanes.body if isinstance(s, Store))
    loaded = {_whole(s.memory) for s in lanes.body if isinstance(s, Load)}
    stored = {_whole(s.memory) for s in lanes.body if isinstance(s, Store)}
    return lanes if plain and loaded.isdisjoint(stored) else None


def _whole(memory: Memory) -> object:
    return memory.storage if isinstance(memory, Buffer) else memory


def loads_together(loop: For, lanes: For, count: int) -> int:
    """How many elements a lane loads for `count` iterations."""
    found = set()
    for number in range(count):
        there = {loop.symbol: var(loop.symbol) + number}
        found |= {
            (s.memory, substitute(s.index, there), s.dtype)
            for s in lanes.body
            if isinstance(s, Load)
        }
    return len(found)


def _together(loop: For, count: int) -> list[Statement]:
    lanes = lanes_of(loop)
    assert lanes is not None
    steps = Symbol(f"{loop.symbol.name}_several", loop.axis.extent)
    known: dict[tuple[Memory, Index, object], Load] = {}
    body: list[Statement] = []
    stores: list[Statement] = []
    for number in range(count):
        copy = Copy(symbols={loop.symbol: var(steps) + number})
        for s in lanes.body:
            made = copy.statement(s)
            if isinstance(s, Load) and isinstance(made, Load):
                first = known.setdefault((made.memory, made.index, made.dtype), made)
                copy.values[s] = first
                if first is not made:
                    continue
            (stores if isinstance(s, Store) else body).append(made)
    stops = tuple(e - (count - 1) for e in loop.stops)
    several = lanes.holding([*body, *stores])
    found: list[Statement] = [loop.like(symbol=steps, stops=stops, step=count, body=[several])]
    if not divides(count, loop):
        before, length = length_of(loop)
        start = loop.starts[0] + floordiv(length, count) * count
        found += [*before, loop.like(starts=(start,), body=Copy().body([lanes]))]
    return found
