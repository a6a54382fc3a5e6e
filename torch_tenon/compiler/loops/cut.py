"""Cutting a loop where a condition changes, as where the parts of a concatenation end: each piece
computes its own, and not all of them everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import Constant, For, Let, Statement, Tree
from torch_tenon.ir.index import Symbol, strides, var


@dataclass(frozen=True)
class Change:
    """Where along a loop a condition changes: it is `first` before `at`, and not from there."""

    at: int
    first: bool


def cut_where_conditions_change(tree: Tree, most: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops in pieces, fewer than `most`, in each of which the comparisons of
    the position in the loop with a number are known."""
    return tree.replacing(chosen, lambda loop: pieces(loop, most))


def pieces(loop: For, most: int) -> list[Statement]:
    """The loop cut where its conditions change."""
    changes = {
        s: change
        for s in loop.body
        if isinstance(s, Let) and (change := change_of(s, loop.symbol)) is not None
    }
    cuts = sorted({c.at for c in changes.values() if c.at > 0})
    if not cuts or len(cuts) >= most:
        return [loop]
    found: list[Statement] = []
    for low, high in itertools.pairwise([None, *cuts, None]):
        starts = loop.starts if low is None else (*(e for e in loop.starts if e != 0), low)
        stops = loop.stops if high is None else (*loop.stops, high)
        copy = Copy()
        body: list[Statement] = []
        for s in loop.body:
            if isinstance(s, Let) and (change := changes.get(s)) is not None:
                holds = change.first is (change.at > (low or 0))
                known = Let("copy", (Constant(holds, torch.bool),), torch.bool)
                copy.values[s] = known
                body.append(known)
            else:
                body.append(copy.statement(s))
        found.append(loop.like(starts=starts, stops=stops, body=body))
    return found


def change_of(s: Let, symbol: Symbol) -> Change | None:
    """Where a comparison changes, if it is of the position in the loop `symbol` with a number."""
    if s.op not in ("lt", "le", "gt", "ge"):
        return None
    left, right = s.args
    if not (isinstance(left, Let) and left.op == "index" and isinstance(right, Constant)):
        return None
    (e,) = left.args
    offset = e - var(symbol)  # type: ignore[operator]
    # In a narrower dtype the position begins again, and a condition changes more than once.
    is_whole = left.dtype is torch.int64
    if not is_whole or strides(e) != {symbol: 1} or not isinstance(offset, int):  # type: ignore[arg-type]
        return None
    return Change(int(right.value) - offset + (s.op in ("le", "gt")), s.op in ("lt", "le"))
