"""Checks out of innermost loops: a branch in each iteration would keep them from being vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Check,
    Constant,
    Declare,
    For,
    If,
    Read,
    Statement,
    Tree,
    is_innermost,
    map_loops,
    walk,
)


def collect_checks(tree: Tree, in_pass: Callable[[For], bool]) -> Tree:
    """Where an innermost loop checks something, the least and the greatest of its values are
    checked instead, after the outermost loop around it of those `in_pass`."""
    if not any(isinstance(s, Check) for s in walk(tree.body)):
        return tree
    return tree.having(_collected(tree.body, in_pass))


def _collected(body: list[Statement], in_pass: Callable[[For], bool]) -> list[Statement]:
    made: list[Statement] = []
    for s in body:
        if isinstance(s, For) and in_pass(s):
            made += _loop(s)
        elif isinstance(s, For):
            made.append(s.holding(_collected(s.body, in_pass)))
        elif isinstance(s, If):
            made.append(If(s.condition, _collected(s.body, in_pass)))
        else:
            made.append(s)
    return made


def _loop(outermost: For) -> list[Statement]:
    before: list[Statement] = []
    after: list[Statement] = []

    def extreme(combine: str, label: str, start: int) -> Accumulator:
        made = Accumulator(label, torch.int64, None, combine)
        before.append(Declare(made, Constant(start, torch.int64)))
        return made

    def change(loop: For) -> list[Statement]:
        if not is_innermost(loop):
            return [loop]
        body: list[Statement] = []
        for s in loop.body:
            if not isinstance(s, Check):
                body.append(s)
                continue
            low, high = extreme("min", "low", 0), extreme("max", "high", -1)
            body += [Accumulate(low, 0, s.low), Accumulate(high, 0, s.high)]
            least, greatest = (Read(a, 0, torch.int64) for a in (low, high))
            after.append(Check(least, greatest, s.size, s.failure))
        return [loop.holding(body)]

    loops = map_loops([outermost], change)
    return [*before, *loops, *after]
