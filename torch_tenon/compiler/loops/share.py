"""Sharing out the stores of a scatter: two that meet are never at work at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_tenon.compiler.loops.tree import (
    For,
    If,
    Let,
    Statement,
    Tree,
    needed,
)
from torch_tenon.ir.index import Symbol, var


def share_stores(tree: Tree, around: Symbol, coordinate: Symbol, shares: Symbol) -> Tree:
    """A loop over `shares` around the one with the symbol `around`, in each of which is done what
    falls to it by `coordinate`, an indirect index that the stores have in common.

    The number of shares is a power of two.
    """
    return Tree(_inserted(tree.body, around, coordinate, shares), tree.numbers, shares, tree.sets)


def _inserted(
    body: Sequence[Statement], around: Symbol, coordinate: Symbol, shares: Symbol
) -> list[Statement]:
    (loop,) = body
    assert isinstance(loop, For)
    if loop.symbol is not around:
        return [loop.holding(_inserted(loop.body, around, coordinate, shares))]
    share = Symbol("share", var(shares))
    inside = loop.holding(_own(loop.body, coordinate, share, shares))
    return [For(share, "parallel", share, (0,), (var(shares),), [inside])]


def _own(
    body: Sequence[Statement], coordinate: Symbol, share: Symbol, shares: Symbol
) -> list[Statement]:
    """The statements, in an `If` what is of one share alone."""
    if len(body) == 1 and isinstance(body[0], For):
        return [body[0].holding(_own(body[0].body, coordinate, share, shares))]
    own = needed(body, {coordinate})
    mine = Let("bitwise_and", (var(coordinate), var(shares) - 1), torch.int64)
    condition = Let("eq", (mine, var(share)), torch.bool)
    rest = [s for s in body if s not in own]
    return [*(s for s in body if s in own), mine, condition, If(condition, rest)]
