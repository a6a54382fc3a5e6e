"""The order of loops: of those over results, and of one of them and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeGuard

from torch_tenon.compiler.loops.copy import Copy, Moved
from torch_tenon.compiler.loops.tree import (
    VALUES,
    Array,
    Barrier,
    Check,
    Declare,
    For,
    If,
    Let,
    Load,
    Read,
    Statement,
    Store,
    Tree,
    Value,
    changed,
    indices,
    operands,
    used,
    walk,
)
from torch_tenon.ir.index import Index, Symbol, symbols, var
from torch_tenon.ir.values import Buffer


def interchange(tree: Tree, order: Sequence[Symbol]) -> Tree:
    """The loops with these symbols, which hold nothing but one another, in this order."""
    found: dict[Symbol, For] = {}
    body = tree.body
    while len(found) < len(order):
        (loop,) = body
        assert isinstance(loop, For) and loop.symbol in order, f"{order} are not the outer loops"
        found[loop.symbol] = loop
        body = loop.body
    for symbol in reversed(order):
        body = [found[symbol].holding(body)]
    return tree.having(body)


def sink(tree: Tree, symbol: Symbol, width: int) -> Tree:
    """The loop with this symbol inside of the loops that it holds, around their statements.

    Local arrays get an element for each of its iterations, `width` at most, and so do values that
    are used after the loops in which they are computed. What is only loaded, from memory that
    nothing inside changes, is loaded again instead. A value that stands in indices gets a symbol in
    each loop that uses it. It has to hold iterations that do not depend on each other.
    """
    return tree.replacing(lambda loop: loop.symbol is symbol, lambda loop: _Sink(loop, width).run())


class _Sink:
    def __init__(self, loop: For, width: int) -> None:
        self.loop, self.width = loop, width
        self.position: Index = var(loop.symbol) - loop.starts[0]
        self.copy = Copy()
        self.varying: set[object] = {loop.symbol}
        self.home: dict[Value, int] = {}  # the run of statements that computes a value
        self.across: dict[Value, Array] = {}  # values that other runs need
        self.again: dict[Load, set[int]] = {}  # those that they load for themselves
        inside = list(walk(loop.body))
        # Of all versions of their contents: one is stored where another was.
        written = (memory for s in inside for memory in changed(s))
        self.changed = {memory.storage for memory in written if isinstance(memory, Buffer)}
        self.named = {s.symbol: s for s in inside if isinstance(s, Let) and s.symbol is not None}
        self.renamed: dict[Let, set[int]] = {}  # the runs that need another's symbol
        self.runs = 0

    def run(self) -> list[Statement]:
        """What stands for the loop."""
        self._find_varying(self.loop.body)
        self._visit(self.loop.body, self._note_uses)
        self.runs = 0
        before: list[Statement] = [Declare(a) for a in self.across.values()]
        return before + self._visit(self.loop.body, self._around)

    def _find_varying(self, body: Sequence[Statement]) -> None:
        for s in body:
            if isinstance(s, Declare):
                self._widen(s.array)
            if isinstance(s, Let | Load | Check):
                local = isinstance(s, Load) and isinstance(s.memory, Array)
                if local or not self.varying.isdisjoint(used(s)):
                    self.varying.add(s)
                    if isinstance(s, Let) and s.symbol is not None:
                        self.varying.add(s.symbol)
            elif isinstance(s, For | If):
                self._find_varying(s.body)
            else:
                self.varying.add(s)

    def _widen(self, array: Array) -> None:
        """Gives a local array one element, or row, for each iteration."""
        length = self.width * (1 if array.length is None else array.length)
        wide = replace(array, length=length)
        self.varying.add(array)
        self.copy.arrays[array] = self._moved(wide)

    def _moved(self, wide: Array) -> Moved:
        return lambda index: (wide, self.copy.index(index) * self.width + self.position)

    def _visit(
        self, body: Sequence[Statement], handle: Callable[[list[Statement]], list[Statement]]
    ) -> list[Statement]:
        """The statements, with `handle` of each run of them that varies along the loop."""
        made: list[Statement] = []
        run: list[Statement] = []

        def end() -> None:
            if run:
                made.extend(handle(run))
                self.runs += 1
                run.clear()

        for s in body:
            if isinstance(s, For):
                end()
                made.append(s.holding(self._visit(s.body, handle)))
            elif isinstance(s, If) and s.condition not in self.varying:
                end()
                condition = self.copy.operand(s.condition)
                made.append(If(condition, self._visit(s.body, handle)))
            elif isinstance(s, Barrier):
                end()
                made.append(s)
            elif isinstance(s, Declare):
                end()
                made.append(self.copy.statement(s))
            elif s not in self.varying:
                made.append(self.copy.statement(s))
            else:
                total = isinstance(s, Store) and isinstance(s.value, Read)
                if total:  # each total is stored in a loop of its own
                    end()
                run.append(s)
                if total:
                    end()
        end()
        return made

    def _note_uses(self, run: list[Statement]) -> list[Statement]:
        for s in run:
            if isinstance(s, VALUES):
                self.home[s] = self.runs
            for x in operands(s):
                if isinstance(x, VALUES) and self.home.get(x, self.runs) != self.runs:
                    if self._is_loaded_again(x):
                        self.again.setdefault(x, set()).add(self.runs)
                    else:
                        self._keep(x)
            for name in set().union(*map(symbols, indices(s))):
                named = self.named.get(name)
                if named is not None and self.home.get(named, self.runs) != self.runs:
                    self._keep(named)
                    self.renamed.setdefault(named, set()).add(self.runs)
        return []

    def _keep(self, x: Value) -> None:
        self.across.setdefault(x, Array("lane", x.dtype, self.width))

    def _is_loaded_again(self, x: Value) -> TypeGuard[Load]:
        return (
            isinstance(x, Load)
            and isinstance(x.memory, Buffer)
            and x.memory.storage not in self.changed
            and x.mask is None
            and symbols(x.index).isdisjoint(self.named)
        )

    def _around(self, run: list[Statement]) -> list[Statement]:
        for x, array in self.across.items():
            if self.home[x] != self.runs:
                self.copy.values[x] = Read(array, self.position, x.dtype)
        if all(s in self.again for s in run):
            return []
        again = [x for x, runs in self.again.items() if self.runs in runs]
        names = [self._renamed(x) for x, runs in self.renamed.items() if self.runs in runs]
        inside = [*names, *self.copy.body([*again, *run])]
        for x, array in self.across.items():
            if self.home[x] == self.runs:
                inside.append(Store(array, self.position, self.copy.values[x]))
        return [self.loop.holding(inside)]

    def _renamed(self, x: Let) -> Statement:
        """A value of another run, which a symbol of this run's own stands for."""
        old = x.symbol
        assert old is not None
        new = Symbol(old.name, old.extent, scalar=old.scalar)
        self.copy.symbols[old] = var(new)
        return Let("copy", (Read(self.across[x], self.position, x.dtype),), x.dtype, new)
