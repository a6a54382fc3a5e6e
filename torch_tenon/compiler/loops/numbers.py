"""Numbers that other shapes could have become arguments, so that those run the same code."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    Array,
    Check,
    Constant,
    For,
    Let,
    Memory,
    Operand,
    Statement,
    Tree,
    walk,
)
from torch_tenon.ir.index import Expr, Index, Monomial, Symbol, strides, symbols, var


@dataclass
class Numbers:
    """Which numbers stay in the code.

    far     steps, offsets and sizes up to this
    short   extents of loops below this
    inner   loops over what is reduced: their extents, and steps along them
    lanes   loops of which a long step is an argument in any case
    plain   ops that are no faster with a number that is known
    within  loops in which these ops keep their numbers
    around  whether the extent of a loop over what is reduced is an argument where lanes are inside
    """

    far: int
    short: int
    inner: Collection[Symbol]
    lanes: Collection[Symbol]
    plain: Collection[str]
    within: Callable[[For], bool]
    around: bool = False


def numbers_as_arguments(tree: Tree, which: Numbers) -> Tree:
    """Extents of loops over results, steps in memory and offsets, and sizes that are compared with,
    as arguments of the kernel where they are large."""
    arguments = Arguments(which)
    body = arguments.body(tree.body)
    return Tree(body, {**tree.numbers, **arguments.numbers}, tree.shares, tree.sets)


class Arguments(Copy):
    """Copies statements with arguments for their numbers."""

    def __init__(self, which: Numbers) -> None:
        super().__init__(fresh=False)
        self.which = which
        self.numbers: dict[Symbol, int] = {}
        self._known: dict[int, Symbol] = {}
        self._ends: dict[tuple[Symbol, int], Symbol] = {}
        self._inside = False

    def number(self, n: Index) -> Index:
        """A number, or the argument for it."""
        if not isinstance(n, int) or abs(n) <= self.which.far:
            return n
        if n not in self._known:
            self._known[n] = self._argument(n)
        return var(self._known[n])

    def address(self, e: Index) -> Index:
        """An index into memory. Steps along what is reduced stay numbers, since short loops there
        are unrolled; but a long one of a lane does not."""
        if isinstance(e, int):
            return self.number(e)
        steps = strides(e) or {}
        for s in self.which.lanes:
            step = steps.get(s, 0)
            if isinstance(step, int) and abs(step) > self.which.far:
                rest = e - step * var(s)
                start = self.address(rest) if rest != 0 else 0
                return start + var(s) * self.number(step)
        terms: dict[Monomial, int] = {}
        for monomial, k in sorted(e.terms.items(), key=lambda t: not t[0]):
            n = abs(k)
            reduced = any(s in self.which.inner for s in symbols(Expr({monomial: 1})))
            if n > self.which.far and not reduced:
                factor = self.number(n)
                assert isinstance(factor, Expr)
                ((argument,),) = factor.terms
                monomial, n = (*monomial, argument), 1
            terms[monomial] = n if k > 0 else -n
        return Expr(terms)

    def statement(self, s: Statement) -> Statement:
        if isinstance(s, For):
            return self._loop(s)
        if isinstance(s, Check):
            low, high = self.operand(s.low), self.operand(s.high)
            return Check(low, high, self.number(s.size), s.failure)
        if isinstance(s, Let):
            args = self._numbers_of(s)
            if args != s.args:
                made = Let(s.op, tuple(map(self.operand, args)), s.dtype, s.symbol)
                self.values[s] = made
                return made
        return super().statement(s)

    def _memory(self, memory: Memory, index: Index) -> tuple[Memory, Index]:
        return (memory, index) if isinstance(memory, Array) else (memory, self.address(index))

    def _numbers_of(self, s: Let) -> tuple[Operand, ...]:
        """The operands of a value, with arguments for numbers."""
        if s.op == "within":
            value, size = s.args
            assert isinstance(size, Expr | int)
            return value, self.number(size)
        if s.op in self.which.plain and not self._inside:
            return tuple(self._compared(a) for a in s.args)
        return s.args

    def _compared(self, x: Operand) -> Operand:
        """The argument for a number that is likely to come from a shape, as where the pieces of a
        concatenation end."""
        if isinstance(x, Constant) and x.dtype is torch.int64 and x.value > self.which.far:
            return self.number(x.value)
        return x

    def _loop(self, s: For) -> For:
        inside, self._inside = self._inside, self._inside or self.which.within(s)
        stops = s.stops
        if s.axis not in self.which.inner or (self.which.around and _holds_lanes(s)):
            stops = tuple(self._end(s.axis, e) for e in stops)
        made = s.like(stops=stops, body=self.body(s.body))
        self._inside = inside
        return made

    def _end(self, axis: Symbol, e: Index) -> Index:
        if not isinstance(e, int) or e < self.which.short:
            return e
        if (axis, e) not in self._ends:  # a part of an axis ends before it
            self._ends[axis, e] = self._argument(e)
        return var(self._ends[axis, e])

    def _argument(self, n: int) -> Symbol:
        made = Symbol(f"n{len(self.numbers)}", lower=min(n, 0))
        self.numbers[made] = n
        return made


def _holds_lanes(loop: For) -> bool:
    """Whether lanes run inside a loop: how often they do so changes nothing in their code."""
    return any(isinstance(s, For) and s.kind == "lane" for s in walk(loop.body))
