"""Cutting a loop where a condition changes, as where the parts of a concatenation end: each piece
computes its own, and not all of them everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.groups import chooses_in_groups
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Constant,
    For,
    Let,
    Load,
    Operand,
    Statement,
    Tree,
)
from torch_tenon.ir.index import Index, floordiv, nonnegative, strides, symbols, var

MOST_BOUNDS = 3  # that are no numbers, of a loop that chooses among neighbours in memory


@dataclass(frozen=True)
class Change:
    """Where along a loop a condition changes: it is `first` before `at`, and not from there."""

    at: Index
    first: bool


def cut_where_conditions_change(tree: Tree, most: int, chosen: Callable[[For], bool]) -> Tree:
    """The chosen innermost loops in pieces, fewer than `most`, in each of which the comparisons of
    the position in the loop with a number are known.

    A loop that loads by such a comparison, or reduces, is also cut where a bound says that is no
    number, if there is one such bound: a load that depends on a condition takes several times as
    long as one that does not. One that chooses among neighbours in memory is cut at a few: it is
    made vectors of only then."""
    return tree.replacing(chosen, lambda loop: pieces(loop, most))


def pieces(loop: For, most: int) -> list[Statement]:
    """The loop cut where its conditions change."""
    changes = {
        s: change
        for s in loop.body
        if isinstance(s, Let) and (change := change_of(s, loop)) is not None
    }
    bounds = list(dict.fromkeys(c.at for c in changes.values() if not isinstance(c.at, int)))
    if (len(bounds) == 1 and _is_slow_by(changes, loop)) or _is_worth(loop, bounds):
        at = bounds[0]
        earlier = {s: c.first for s, c in changes.items() if nonnegative(c.at - at)}
        later = {s: not c.first for s, c in changes.items() if nonnegative(at - c.at)}
        before, after = _piece(loop, earlier, stop=at), _piece(loop, later, start=at)
        return [*pieces(before, most), *pieces(after, most)]
    changes = {s: c for s, c in changes.items() if isinstance(c.at, int)}
    cuts = sorted({c.at for c in changes.values() if isinstance(c.at, int) and c.at > 0})
    if not cuts or len(cuts) >= most:
        return [loop]
    found: list[Statement] = []
    for low, high in itertools.pairwise([None, *cuts, None]):
        known = {s: c.first is (c.at > (low or 0)) for s, c in changes.items()}  # type: ignore[operator]
        found.append(_piece(loop, known, low, high))
    return found


def _piece(
    loop: For, known: dict[Let, bool], start: Index | None = None, stop: Index | None = None
) -> For:
    """The loop from and up to there, where conditions are known."""
    starts = loop.starts if start is None else (*(e for e in loop.starts if e != 0), start)
    if start is not None and not isinstance(start, int):
        starts = (*loop.starts, start)  # it may be less than 0
    stops = loop.stops if stop is None else (*loop.stops, stop)
    copy = Copy()
    body: list[Statement] = []
    for s in loop.body:
        if isinstance(s, Let) and s in known:
            value = Let("copy", (Constant(known[s], torch.bool),), torch.bool)
            copy.values[s] = value
            body.append(value)
        else:
            body.append(copy.statement(s))
    return loop.like(starts=starts, stops=stops, body=body)


def _is_worth(loop: For, bounds: Sequence[Index]) -> bool:
    """Whether a loop is cut at bounds whose order may not be known: each may double the pieces."""
    return 0 < len(bounds) <= MOST_BOUNDS and chooses_in_groups(loop)


def _is_slow_by(conditions: Collection[Let], loop: For) -> bool:
    """Whether a loop reduces, or loads by one of the conditions or its opposite, and is none that
    is written out: that has a known number of rounds."""
    if loop.kind == "unrolled":
        return False
    masks = [s.mask for s in loop.body if isinstance(s, Load)]
    masks += [m.args[0] for m in masks if isinstance(m, Let) and m.op == "logical_not"]
    return any(m in conditions for m in masks) or any(isinstance(s, Accumulate) for s in loop.body)


def change_of(s: Let, loop: For) -> Change | None:
    """Where a comparison in a loop changes, if it is of the position in it with a number, or with
    an index that is one for all of it."""
    if s.op not in ("lt", "le", "gt", "ge"):
        return None
    left, right = s.args
    if not (isinstance(left, Let) and left.op == "index"):
        return None
    bound = _bound(right)
    # In a narrower dtype the position begins again, and a condition changes more than once.
    if bound is None or left.dtype is not torch.int64:
        return None
    (e,) = left.args
    step = (strides(e) or {}).get(loop.symbol, 1)  # type: ignore[arg-type]
    if not isinstance(step, int) or step < 1:
        return None
    offset = e - var(loop.symbol) * step  # type: ignore[operator]
    inside = {loop.symbol, *(t.symbol for t in loop.body if isinstance(t, Let))}
    if (symbols(offset) | symbols(bound)) & inside:
        return None
    at = bound - offset + (s.op in ("le", "gt"))
    return Change(floordiv(at + (step - 1), step), s.op in ("lt", "le"))


def _bound(right: Operand) -> Index | None:
    if isinstance(right, Constant):
        return int(right.value)
    if isinstance(right, Let) and right.op == "index" and right.dtype is torch.int64:
        (e,) = right.args
        return e  # type: ignore[return-value]
    return None
