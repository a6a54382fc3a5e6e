"""Double buffering: what an iteration copies into a scratchpad is copied while the iteration before
it computes."""

from __future__ import annotations

from dataclasses import replace

import torch

from torch_tenon.compiler.loops.copy import Copy, Moved
from torch_tenon.compiler.loops.tree import (
    Array,
    CopyBlock,
    Declare,
    For,
    If,
    Let,
    Statement,
    Tree,
    Wait,
    changes,
)
from torch_tenon.ir.index import Index, floordiv, less, mod, var


def double_buffer(tree: Tree) -> Tree:
    """Loops that begin with copies into scratch, with two buffers for each. The copies of the next
    iteration are started before what this one computes, and waited for at its end."""
    return tree.replacing(lambda loop: bool(_copies(loop)), _doubled)


def _copies(loop: For) -> list[CopyBlock]:
    """The copies that a loop begins with, each behind its array."""
    found: list[CopyBlock] = []
    if loop.kind == "grid" or len(loop.starts) > 1:
        return found
    for declared, s in zip(loop.body[::2], loop.body[1::2], strict=False):
        if not (isinstance(declared, Declare) and isinstance(s, CopyBlock)):
            break
        if s.memory is not declared.array or s.memory.space != "scratch":
            break
        if s.asynchronous or changes(loop.body, s.source):
            break
        found.append(s)
    return found


def _doubled(loop: For) -> list[Statement]:
    copies = _copies(loop)
    (start,) = loop.starts
    position = var(loop.symbol)
    buffer = mod(floordiv(position - start, loop.step), 2)
    wide = {c.memory: replace(c.memory, length=2 * (c.memory.length or 1)) for c in copies}
    waits: list[Statement] = [Wait(a) for a in wide.values()]

    def half(number: Index) -> dict[Array, Moved]:
        return {a: _at(w, number * (a.length or 1)) for a, w in wide.items()}

    def started(at: Index, number: Index) -> list[Statement]:
        """The copies of the iteration at a position, if there is one, into one of the buffers."""
        copy = Copy(symbols={loop.symbol: at}, arrays=half(number), fresh=False)
        body: list[Statement] = []
        for c in copies:
            made = copy.statement(c)
            assert isinstance(made, CopyBlock)
            body.append(replace(made, asynchronous=True))
        for stop in loop.stops:
            if not less(at, stop):
                there = Let("lt", (at, stop), torch.bool)
                body = [there, If(there, body)]
        return body

    here = Copy(arrays=half(buffer), fresh=False)
    rest = here.body(loop.body[2 * len(copies) :])
    return [
        *(Declare(w) for w in wide.values()),
        *started(start, 0),
        *waits,
        loop.like(kind="serial", body=[*started(position + loop.step, 1 - buffer), *rest, *waits]),
    ]


def _at(array: Array, offset: Index) -> Moved:
    """The elements of an array from an offset on."""
    return lambda index: (array, index + offset)
