"""Copies of statements in which other values, symbols and local arrays stand for theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch_tenon.compiler.loops.tree import (
    VALUES,
    Accumulate,
    Accumulator,
    Array,
    Barrier,
    Check,
    Declare,
    Draw,
    For,
    If,
    Let,
    Load,
    Memory,
    Operand,
    Read,
    Statement,
    Store,
    Transpose,
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
            array, index = self._local(x.array, x.index)
            return Read(array, index, x.dtype)
        return self.index(x) if isinstance(x, Expr) else x

    def statement(self, s: Statement) -> Statement:
        """A copy of one statement."""
        return self._copies[type(s)](self, s)

    def _let(self, s: Let) -> Let:
        args = tuple([self.operand(a) for a in s.args])
        if not self.fresh and args == s.args:
            return s
        made = Let(s.op, args, s.dtype)
        if not self.fresh:
            made.symbol = s.symbol
        elif s.symbol is not None:
            made.symbol = Symbol(s.symbol.name, s.symbol.extent, scalar=s.symbol.scalar)
            self.symbols[s.symbol] = var(made.symbol)
        self.values[s] = made
        return made

    def _load(self, s: Load) -> Load:
        memory, index = self._memory(s.memory, s.index)
        mask = None if s.mask is None else self.operand(s.mask)
        other = None if s.other is None else self.operand(s.other)
        if not self.fresh and (memory, index, mask, other) == (s.memory, s.index, s.mask, s.other):
            return s
        made = self.values[s] = Load(memory, index, s.dtype, mask, other)
        return made

    def _declare(self, s: Declare) -> Declare:
        array, _ = self._local(s.array, 0)
        return Declare(array, None if s.initial is None else self.operand(s.initial))

    def _accumulate(self, s: Accumulate) -> Accumulate:
        accumulator, index = self._local(s.accumulator, s.index)
        assert isinstance(accumulator, Accumulator)
        return Accumulate(accumulator, index, self.operand(s.value))

    def _store(self, s: Store) -> Store:
        memory, index = self._memory(s.memory, s.index)
        return Store(memory, index, self.operand(s.value), s.combine)

    def _check(self, s: Check) -> Check:
        low, high = self.operand(s.low), self.operand(s.high)
        return Check(low, high, self.index(s.size), s.failure)

    def _transpose(self, s: Transpose) -> Transpose:
        array, _ = self._local(s.array, 0)
        index, step = self.index(s.index), self.index(s.step)
        rows, columns = (tuple(map(self.index, es)) for es in (s.rows, s.columns))
        return Transpose(array, s.width, s.memory, index, step, rows, columns)

    def _draw(self, s: Draw) -> Draw:
        array, _ = self._local(s.array, 0)
        seed, offset, first = self.operand(s.seed), self.operand(s.offset), self.index(s.first)
        return Draw(array, s.op, seed, offset, first, tuple(map(self.index, s.counts)))

    def _if(self, s: If) -> If:
        return If(self.operand(s.condition), self.body(s.body))

    def _for(self, s: For) -> For:
        if not self.symbols:
            return s.holding(self.body(s.body))
        starts, stops = (tuple(map(self.index, es)) for es in (s.starts, s.stops))
        return s.like(starts=starts, stops=stops, body=self.body(s.body))

    def _barrier(self, s: Barrier) -> Barrier:
        return s

    _copies: ClassVar[Mapping[type, Callable[[Any, Any], Any]]] = {
        Let: _let,
        Load: _load,
        Declare: _declare,
        Accumulate: _accumulate,
        Store: _store,
        Check: _check,
        Transpose: _transpose,
        Draw: _draw,
        If: _if,
        For: _for,
        Barrier: _barrier,
    }

    def _memory(self, memory: Memory, index: Index) -> tuple[Memory, Index]:
        if isinstance(memory, Array):
            return self._local(memory, index)
        return memory, self.index(index)

    def _local(self, array: Array, index: Index) -> tuple[Array, Index]:
        index = self.index(index)
        moved = self.arrays.get(array)
        return (array, index) if moved is None else moved(index)


def instead(array: Array) -> Moved:
    """Another array at the same index."""
    return lambda index: (array, index)


def in_register(array: Array) -> Moved:
    """An array of one element, whatever the index."""
    return lambda _: (array, 0)
