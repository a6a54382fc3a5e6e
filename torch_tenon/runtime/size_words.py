"""Expressions of sizes in words (docs/plan-file.md), as files and the core have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

# As `SizeExpression::Word` in csrc/runtime/size_expression.h has them.
CONSTANT, SYMBOL, ADD, MULTIPLY, DIVIDE, MODULO, EXACTLY = range(7)
_SIGNS = {ADD: ("+", 0), MULTIPLY: ("*", 1), DIVIDE: ("//", 1), MODULO: ("%", 1)}
_SIGNS[EXACTLY] = _SIGNS[DIVIDE]
_T = TypeVar("_T")


def fold(
    words: Sequence[int],
    constant: Callable[[int], _T],
    symbol: Callable[[int], _T],
    join: Callable[[int, _T, _T], _T],
) -> _T:
    """Computes an expression with values of any type. Raises ValueError or IndexError for words
    that are none."""
    stack: list[_T] = []
    left = iter(words)
    for word in left:
        if word in (CONSTANT, SYMBOL):
            number = next(left, None)
            if number is None:
                raise ValueError("an expression ends early")
            stack.append((constant if word == CONSTANT else symbol)(number))
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(join(word, a, b))
    (found,) = stack
    return found


def size_text(words: Sequence[int], symbols: Sequence[str]) -> str:
    """An expression for people. Raises ValueError, IndexError or KeyError for none."""

    def join(word: int, a: tuple[str, int], b: tuple[str, int]) -> tuple[str, int]:
        sign, binding = _SIGNS[word]
        if word == MULTIPLY and a[0] == "1":
            return b
        left = f"({a[0]})" if a[1] < binding else a[0]
        right = f"({b[0]})" if b[1] < binding or (b[1] == binding and sign != "+") else b[0]
        return f"{left} {sign} {right}", binding

    return fold(words, lambda n: (str(n), 2), lambda k: (symbols[k], 2), join)[0]


def size_value(words: Sequence[int], values: Sequence[int]) -> int:
    """An expression for these values of the symbols."""

    def join(word: int, a: int, b: int) -> int:
        if word == ADD:
            return a + b
        if word == MULTIPLY:
            return a * b
        return a % b if word == MODULO else a // b

    return fold(words, int, lambda k: values[k], join)
