"""What the kernel of a loop tree is called with."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import torch

from torch_tenon.compiler.loops.tree import (
    Check,
    Failure,
    For,
    Let,
    Tree,
    changed,
    indices,
    read,
    walk,
)
from torch_tenon.ir.index import Division, Expr, Index, Symbol
from torch_tenon.ir.values import Buffer, Storage


@dataclass(slots=True)
class Parameters:
    """What a kernel is called with, each in the order of its arguments.

    storages  what one run is given memory for
    pointers  each storage with the dtypes that its elements are taken for
    sizes     symbols that are bound outside of the tree
    failures  what checks of one run report
    """

    storages: list[Storage]
    pointers: list[tuple[Storage, torch.dtype]]
    sizes: list[Symbol]
    failures: list[Failure]


def parameters(tree: Tree, given: Collection[Symbol] = ()) -> Parameters:
    """The parameters of a tree, whose symbols `given` are known otherwise."""
    bound: set[Symbol | None] = {tree.shares, tree.sets, *given}
    pointers: dict[tuple[Storage, torch.dtype], None] = {}
    sizes: dict[Symbol, None] = {}
    failures: dict[Failure, None] = {}
    seen: set[Expr] = set()
    for s in walk(tree.body):
        if isinstance(s, For | Let):
            bound.add(s.symbol)
        elif isinstance(s, Check):
            failures[s.failure] = None
        for memory in (*read(s), *changed(s)):
            if isinstance(memory, Buffer):
                pointers[memory.storage, memory.dtype] = None
        for e in indices(s):
            if e not in seen:
                seen.add(e)
                sizes |= dict.fromkeys(_symbols_in_order(e))
    return Parameters(
        list(dict.fromkeys(storage for storage, _ in pointers)),
        list(pointers),
        [s for s in sizes if s not in bound],
        list(failures),
    )


def _symbols_in_order(e: Index) -> Iterator[Symbol]:
    if isinstance(e, Expr):
        for monomial in e.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    yield atom
                else:
                    assert isinstance(atom, Division)
                    yield from _symbols_in_order(atom.numerator)
                    yield from _symbols_in_order(atom.divisor)
