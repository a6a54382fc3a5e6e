"""Expressions of sizes in words (docs/plan-file.md), as files and the core have them."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

# As `SizeExpression::Word` in csrc/runtime/size_expression.h has them.
CONSTANT, SYMBOL, ADD, MULTIPLY, DIVIDE, MODULO, EXACTLY, MINIMUM, MAXIMUM, SCALE = range(10)
_SIGNS = {ADD: ("+", 0), MULTIPLY: ("*", 1), DIVIDE: ("//", 1), MODULO: ("%", 1)}
_SIGNS[EXACTLY] = _SIGNS[DIVIDE]
_FUNCTIONS = {MINIMUM: "min", MAXIMUM: "max"}
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
        if word in _FUNCTIONS:
            return f"{_FUNCTIONS[word]}({a[0]}, {b[0]})", 2
        if word == SCALE:
            left = f"({a[0]})" if a[1] < 1 else a[0]
            return f"int({left} * {real_of(int(b[0]))})", 2
        sign, binding = _SIGNS[word]
        if word == MULTIPLY and a[0] == "1":
            return b
        left = f"({a[0]})" if a[1] < binding else a[0]
        right = f"({b[0]})" if b[1] < binding or (b[1] == binding and sign != "+") else b[0]
        return f"{left} {sign} {right}", binding

    return fold(words, lambda n: (str(n), 2), lambda k: (symbols[k], 2), join)[0]


def bits_of(number: float) -> int:
    """A constant that SCALE takes for this number."""
    found: int = struct.unpack("<q", struct.pack("<d", number))[0]
    return found


def real_of(bits: int) -> float:
    """The number that such a constant stands for."""
    found: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return found


_COMPUTED: dict[int, Callable[[int, int], int]] = {
    ADD: operator.add,
    MULTIPLY: operator.mul,
    DIVIDE: operator.floordiv,
    MODULO: operator.mod,
    EXACTLY: operator.floordiv,
    MINIMUM: min,
    MAXIMUM: max,
    SCALE: lambda a, bits: int(a * real_of(bits)),
}


def size_value(words: Sequence[int], values: Sequence[int]) -> int:
    """An expression for these values of the symbols. Raises ValueError, IndexError or KeyError for
    none."""
    return fold(words, int, lambda k: values[k], lambda word, a, b: _COMPUTED[word](a, b))
