"""Loops whose loads depend on a condition that does not change inside, as a row's in a padded image
or a stencil: one loop for either answer (loop unswitching).

A compiler makes no vectors of loads that it may not make everywhere. With the answer known they are
made always, or never.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    Constant,
    For,
    If,
    Let,
    Load,
    Operand,
    Statement,
    Tree,
)


def unswitch(tree: Tree, chosen: Callable[[For], bool], most: int) -> Tree:
    """The chosen innermost loops, for either answer of the condition of outside that most of their
    loads depend on, and again for the next one, where all copies of the loop are `most` statements
    at most then; one without such loads stays."""
    return tree.replacing(chosen, lambda loop: _either(loop, most))


def _either(loop: For, most: int) -> list[Statement]:
    inside = set(loop.body)
    found = Counter(
        condition
        for s in loop.body
        if isinstance(s, Load) and s.mask is not None
        for condition in set(_conditions(s.mask, inside))
    )
    if not found:
        return [loop]
    ((condition, _),) = found.most_common(1)
    other = Let("logical_not", (condition,), torch.bool)
    copies: list[list[Any]] = [[_with(loop, condition, answer)] for answer in (True, False)]
    if 4 * len(loop.body) <= most:
        copies = [_either(copy, most // 2) for (copy,) in copies]
    return [If(condition, copies[0]), other, If(other, copies[1])]


def _conditions(mask: Operand, inside: set[Statement]) -> Iterator[Let]:
    """The conditions of outside without which a mask does not hold."""
    if not isinstance(mask, Let):
        return
    if mask not in inside:
        yield mask
    elif mask.op == "logical_and":
        for operand in mask.args:
            yield from _conditions(operand, inside)


def _with(loop: For, condition: Let, answer: bool) -> For:
    """The loop where the answer is known."""
    known = Let("copy", (Constant(answer, torch.bool),), torch.bool)
    copy = Copy({condition: known})
    return loop.like(body=[known, *copy.body(loop.body)])
