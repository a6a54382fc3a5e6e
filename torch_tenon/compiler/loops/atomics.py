"""Scatters whose stores may meet at any time, since each of them is one step of the hardware's."""

from __future__ import annotations

from collections.abc import Sequence

from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.loops.tree import (
    Barrier,
    For,
    If,
    Load,
    Statement,
    Store,
    Tree,
    dtype_of,
    walk,
)
from torch_tenon.ir.values import Buffer


def atomic_stores(tree: Tree, capabilities: Capabilities) -> Tree:
    """The tree of a scatter with independent iterations and atomic stores, where there are atomics
    for all of its stores. Any other tree as it is.

    Its serial loops become parallel, so that `share_out` may take them as well.
    """
    if not _may_meet(list(walk(tree.body)), capabilities):
        return tree
    return tree.having(_independent(tree.body))


def _may_meet(inside: Sequence[Statement], capabilities: Capabilities) -> bool:
    stores = [s for s in inside if isinstance(s, Store)]
    if not any(isinstance(s, For) and s.kind == "serial" for s in inside):
        return False
    if any(isinstance(s, Barrier) for s in inside):
        return False  # what one pass stores the next one reads
    for s in stores:
        known = capabilities.atomics.get(s.memory.dtype, frozenset())
        # What is added in another dtype is rounded in between.
        if s.combine not in known or dtype_of(s.value) is not s.memory.dtype:
            return False
    written = {s.memory.storage for s in stores if isinstance(s.memory, Buffer)}
    loads = [s.memory for s in inside if isinstance(s, Load)]
    # What is read there would be what others have stored, or not yet.
    return not any(isinstance(m, Buffer) and m.storage in written for m in loads)


def _independent(body: Sequence[Statement]) -> list[Statement]:
    made: list[Statement] = []
    for s in body:
        if isinstance(s, For):
            kind = "parallel" if s.kind == "serial" else s.kind
            made.append(s.like(kind=kind, body=_independent(s.body)))
        elif isinstance(s, If):
            made.append(If(s.condition, _independent(s.body)))
        elif isinstance(s, Store):
            made.append(Store(s.memory, s.index, s.value, s.combine, atomic=True))
        else:
            made.append(s)
    return made
