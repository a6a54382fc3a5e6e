"""Sizes of any value: the words of the core's expressions (its `SizeExpression`) as indices, and
back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from torch_tenon.ir.index import Atom, Div, Division, Expr, Index, Symbol, floordiv, mod, var
from torch_tenon.ir.values import set_hint
from torch_tenon.runtime.size_words import (
    ADD,
    CONSTANT,
    DIVIDE,
    EXACTLY,
    MODULO,
    MULTIPLY,
    SYMBOL,
    fold,
)

LEAST = 2  # of a symbol: what 0 and 1 mean to an op is no matter of size


_JOINS: dict[int, Callable[[Index, Index], Index]] = {
    ADD: operator.add,
    MULTIPLY: operator.mul,
    DIVIDE: floordiv,
    MODULO: mod,
    EXACTLY: floordiv,
}


def symbols_of(examples: Sequence[int]) -> list[Symbol]:
    """A symbol for each example of its value."""
    found = []
    for k, example in enumerate(examples):
        symbol = Symbol(f"n{k}", None, LEAST)
        set_hint(symbol, example)
        found.append(symbol)
    return found


def index_of(words: Sequence[int], symbols: Sequence[Symbol]) -> Index:
    """The expression in these symbols. Divisions round down, also those that leave no rest. Raises
    KeyError for words that no index says."""
    return fold(
        words,
        lambda number: number,
        lambda k: var(symbols[k]),
        lambda word, a, b: _JOINS[word](a, b),
    )


def words_of(e: Index, symbols: Sequence[Symbol]) -> list[int]:
    """The words of an index in what a run is given for these symbols. Raises KeyError for one in
    others."""
    places = {s: k for k, s in enumerate(symbols)}

    def write(e: Index) -> list[int]:
        if not isinstance(e, Expr):
            return [CONSTANT, e]
        total: list[int] = []
        for monomial, k in e.terms.items():
            term = [CONSTANT, k]
            for atom in monomial:
                term += [*write_atom(atom), MULTIPLY]
            total = [*total, *term, ADD] if total else term
        return total

    def write_atom(atom: Atom) -> list[int]:
        if isinstance(atom, Symbol):
            factor, offset = atom.given_as
            less = [CONSTANT, -offset, ADD] if offset else []
            return [SYMBOL, places[atom], *less, *([CONSTANT, factor, DIVIDE] * (factor != 1))]
        assert isinstance(atom, Division)
        join = DIVIDE if isinstance(atom, Div) else MODULO
        return [*write(atom.numerator), *write(atom.divisor), join]

    return write(e)
