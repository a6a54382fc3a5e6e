"""Sizes that a program computes of those of its inputs before it runs: the less of two, what is
left of a division of a negative number, a size times 1.7."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy  # type: ignore[import-untyped]
from torch.utils._sympy.functions import ToFloat

from torch_tenon.runtime.size_words import (
    ADD,
    CONSTANT,
    DIVIDE,
    MAXIMUM,
    MINIMUM,
    MODULO,
    MULTIPLY,
    SCALE,
    bits_of,
)

_JOINS = {
    "Add": ADD,
    "Mul": MULTIPLY,
    "Min": MINIMUM,
    "Max": MAXIMUM,
    "FloorDiv": DIVIDE,
    "CleanDiv": DIVIDE,
    "PythonMod": MODULO,
    "Mod": MODULO,
}
_ROUNDED_TO_ZERO = ("TruncToInt", "FloorToInt")


class NoWords(Exception):
    """A program has no words for an expression of sizes."""


def computed_words(
    e: sympy.Expr,
    words: Callable[[sympy.Symbol], list[int]],
    never_negative: Callable[[sympy.Expr], bool],
) -> list[int]:
    """The words of an expression; `words` has those of its symbols. Raises NoWords."""
    if e.is_Integer:
        return [CONSTANT, int(e)]
    if isinstance(e, sympy.Symbol):
        return words(e)

    def of(e: sympy.Expr) -> list[int]:
        return computed_words(e, words, never_negative)

    name = type(e).__name__
    if name in _ROUNDED_TO_ZERO:
        factor, size = _scaled(e.args[0])
        if name == "FloorToInt" and not (factor >= 0 and never_negative(size)):
            raise NoWords
        return [*of(size), CONSTANT, bits_of(factor), SCALE]
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        join, parts = MULTIPLY, [of(e.base)] * int(e.exp)
    elif name in _JOINS:
        join, parts = _JOINS[name], [of(x) for x in e.args]
    else:
        raise NoWords
    return reduce(lambda a, b: [*a, *b, join], parts)


def _scaled(e: sympy.Expr) -> tuple[float, Any]:
    """A size times a number as both. Raises NoWords for another expression."""
    if isinstance(e, sympy.Mul) and len(e.args) == 2:
        factor, size = e.args
        if isinstance(factor, ToFloat):
            factor, size = size, factor
        if isinstance(size, ToFloat) and factor.is_Float:
            return float(factor), size.args[0]
    raise NoWords
