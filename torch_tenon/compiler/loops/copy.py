"""Copies of statements in which other values, symbols and local arrays stand for theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_tenon.compiler.loops.tree import (
    VALUES,
    Array,
    Let,
    Memory,
    Operand,
    Read,
    Role,
    Statement,
)
from torch_tenon.ir.index import Expr, Index, Symbol, substitute, var

#: Where an element of a local array is instead.
Moved = Callable[[Index], tuple[Array, Index]]


class Copy:
    """Makes copies. Values that are computed in a copy are new ones, and are used in what is copied
    later; `values`, `symbols` and `arrays` say what stands for those of outside. Where a copy takes
    the place of what is copied, it need not be `fresh`: a value that stays the same is kept."""

    def __init__(
        self,
        values: Mapping[Operand, Operand] | None = None,
        symbols: Mapping[Symbol, Index] | None = None,
        arrays: Mapping[Array, Moved] | None = None,
        fresh: bool = True,
    ) -> None:
        self.fresh = fresh
        self.values = dict(values or {})
        self.symbols = dict(symbols or {})
        self.arrays = dict(arrays or {})

    def body(self, statements: Sequence[Statement]) -> list[Statement]:
        """A copy of statements."""
        return [self.statement(s) for s in statements]

    def index(self, e: Index) -> Index:
        """An index expression in the new symbols."""
        return substitute(e, self.symbols) if self.symbols and isinstance(e, Expr) else e

    def operand(self, x: Operand) -> Operand:
        """What stands for an operand."""
        if isinstance(x, VALUES):
            return self.values.get(x, x)
        if isinstance(x, Read):
            array, index = self._memory(x.array, x.index)
            assert isinstance(array, Array)
            return Read(array, index, x.dtype)
        return self.index(x) if isinstance(x, Expr) else x

    def statement(self, s: Statement) -> Statement:
        """A copy of one statement; itself where nothing differs, and it need not be fresh."""
        parts: list[Any] = []
        at, element = None, None  # of the memory before: its field, and what is there in the copy
        same = not self.fresh
        for name, role in s.fields:
            old = new = getattr(s, name)
            if role is Role.CHANGED or role is Role.READ:
                at = s.element.get(name)
                new, element = self._memory(old, 0 if at is None else getattr(s, at))
            elif name == at:
                new = element
            elif role is Role.OPERAND:
                new = _each(self.operand, old)
            elif role is Role.INDEX:
                new = _each(self.index, old)
            elif role is Role.BODY:
                new = self.body(old)
            same = same and (new is old or new == old)
            parts.append(new)
        if same:
            return s
        made: Statement = type(s)(*parts)
        if isinstance(s, VALUES):
            self.values[s] = made  # type: ignore[assignment]
        if self.fresh and isinstance(s, Let) and isinstance(made, Let) and s.symbol is not None:
            made.symbol = Symbol(s.symbol.name, s.symbol.extent, scalar=s.symbol.scalar)
            self.symbols[s.symbol] = var(made.symbol)
        return made

    def _memory(self, memory: Memory, index: Index) -> tuple[Memory, Index]:
        """What an element of memory is in the copy."""
        index = self.index(index)
        moved = self.arrays.get(memory) if isinstance(memory, Array) else None
        return (memory, index) if moved is None else moved(index)


def _each(copy: Callable[[Any], Any], x: Any) -> Any:
    """A copy of what a field has: one, several or none."""
    return tuple(map(copy, x)) if type(x) is tuple else None if x is None else copy(x)


def instead(array: Array) -> Moved:
    """Another array at the same index."""
    return lambda index: (array, index)


def in_register(array: Array) -> Moved:
    """An array of one element, whatever the index."""
    return lambda _: (array, 0)
