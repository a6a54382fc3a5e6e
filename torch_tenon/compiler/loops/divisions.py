"""Divisions by run-time sizes before the loops that they do not depend on: a compiler leaves
them in there, and makes no vectors around them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import For, Let, Statement, Tree, is_innermost
from torch_tenon.ir.index import (
    Division,
    Expr,
    Index,
    Monomial,
    Symbol,
    bounds,
    nonnegative,
    substitute,
    symbols,
    var,
)


def divisions_before(tree: Tree) -> Tree:
    """Divisions in the indices of innermost loops as values before these, where no symbol that is
    bound inside is part of them. `place_values` moves them further out."""
    return tree.replacing(is_innermost, _without_divisions)


def _without_divisions(loop: For) -> list[Statement]:
    inside = {loop.symbol, *(s.symbol for s in loop.body if isinstance(s, Let) and s.symbol)}
    copy = _Apart(inside)
    body = copy.body(loop.body)
    return [*copy.made.values(), loop.like(body=body)] if copy.made else [loop]


class _Apart(Copy):
    """Copies statements, with a value for each division that can be computed outside."""

    def __init__(self, inside: Collection[Symbol]) -> None:
        super().__init__(fresh=False)
        self.inside = inside
        self.made: dict[Division, Let] = {}

    def index(self, e: Index) -> Index:
        if isinstance(e, int):
            return e
        values = {a: var(self._symbol(a)) for a in self._outside(e)}
        return substitute(e, values) if values else e

    def _outside(self, e: Index) -> Iterator[Division]:
        """The largest divisions in an expression that can be computed outside."""
        divisions = (a for m in _monomials(e) for a in m if isinstance(a, Division))
        for a in divisions:
            if self._is_outside(a):
                yield a
            else:
                yield from self._outside(a.numerator)

    def _is_outside(self, division: Division) -> bool:
        """Whether it takes long, may be computed before the loop, and never fails there."""
        by = division.divisor
        positive = isinstance(by, Expr) and nonnegative(by - 1)
        return positive and not symbols(var(division)) & set(self.inside)

    def _symbol(self, division: Division) -> Symbol:
        if division not in self.made:
            low, high = bounds(var(division))
            symbol = Symbol("quotient", lower=-(2**62) if low is None else low)
            symbol.greatest = high
            value = Let("index", (var(division),), torch.int64, symbol)
            self.made[division] = value
        found = self.made[division].symbol
        assert found is not None
        return found


def _monomials(e: Index) -> Iterable[Monomial]:
    return e.terms if isinstance(e, Expr) else ()
