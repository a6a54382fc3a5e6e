"""Placing each value in the outermost loop that it depends on, once for equal ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from torch_tenon.compiler.loops.copy import Copy
from torch_tenon.compiler.loops.tree import (
    VALUES,
    Check,
    Constant,
    Declare,
    Failure,
    For,
    If,
    Let,
    Memory,
    Read,
    Statement,
    Tree,
    Value,
    changed,
    indices,
    operands,
    read,
)
from torch_tenon.ir.index import symbols, var


def place_values(tree: Tree) -> Tree:
    """Moves values and checks out of the loops that they do not depend on, and makes one of those
    that are equal. Nothing comes to stand between the loops of the grid, and nothing that may fail
    leaves an `If`."""
    return tree.having(_Placement().run(tree.body))


def place_inside(tree: Tree, chosen: Callable[[For], bool]) -> Tree:
    """The same inside of the chosen loops, which nothing leaves."""
    return tree.replacing(chosen, lambda loop: [loop.holding(_Placement().run(loop.body))])


@dataclass
class _Body:
    """A body in the making. Where it is not open, it has to stay nothing but a loop."""

    open: bool = True
    out: list[Statement] = field(default_factory=list)
    declared: list[Statement] = field(default_factory=list)  # and not yet in `out`
    known: dict[Hashable, Any] = field(default_factory=dict)
    changed: dict[Memory, None] = field(default_factory=dict)

    def add(self, s: Statement) -> None:
        """Appends a statement that stays where it is."""
        if self.declared:
            self.out += self.declared
            self.declared = []
        self.out.append(s)


class _Placement:
    def __init__(self) -> None:
        self.bodies: list[_Body] = []
        self.depth: dict[Any, int] = {}  # of values and symbols: the number of open loops
        self.changed: dict[Memory, int] = {}  # where memory was last changed
        self.guards: list[int] = []  # the depths of open `If`s
        self.copy = Copy(fresh=False)  # with those that stand for equal ones

    def run(self, statements: list[Statement]) -> list[Statement]:
        return self._body(statements, _Body())

    def _body(self, statements: list[Statement], body: _Body) -> list[Statement]:
        self.bodies.append(body)
        for s in statements:
            self._statement(s, body)
        self.bodies.pop()
        for memory in body.changed:
            self._change(memory)
        return body.out + body.declared

    def _statement(self, s: Statement, body: _Body) -> None:
        if isinstance(s, VALUES):
            self._value(s)
        elif type(s) is Check:
            self._check(s)
        elif type(s) is For:
            self._for(s, body)
        elif isinstance(s, If):
            condition = self.copy.operand(s.condition)
            self.guards.append(len(self.bodies))
            body.add(If(condition, self._body(s.body, _Body())))
            self.guards.pop()
        else:
            for memory in changed(s):
                self._change(memory)
            if isinstance(s, Declare):
                # Values that move out of the next loop need not wait for it.
                body.declared.append(self.copy.statement(s))
            else:
                body.add(self.copy.statement(s))

    def _for(self, s: For, body: _Body) -> None:
        inner = s.body[0] if s.kind == "grid" and len(s.body) == 1 else None
        self.depth[s.symbol] = len(self.bodies)
        is_open = not (isinstance(inner, For) and inner.kind == "grid")
        made = s.holding(self._body(s.body, _Body(is_open)))
        if self.copy.symbols:
            index = self.copy.index
            made.starts, made.stops = tuple(map(index, s.starts)), tuple(map(index, s.stops))
        body.add(made)

    def _change(self, memory: Memory) -> None:
        """Notes that memory is changed in the innermost open body: what reads it stays there."""
        if self.bodies:
            self.bodies[-1].changed[memory] = None
            self.changed[memory] = len(self.bodies) - 1

    def _depth(self, s: Statement) -> int:
        """How deep a statement has to stand for all that it uses."""
        depth = 0
        for x in operands(s):
            if isinstance(x, VALUES):
                depth = max(depth, self.depth[x])
            elif isinstance(x, Read):
                depth = max(depth, self.changed.get(x.array, 0))
        for e in indices(s):
            for symbol in symbols(e):
                depth = max(depth, self.depth.get(symbol, 0))
        for memory in read(s):
            depth = max(depth, self.changed.get(memory, 0))
        if self.guards and not isinstance(s, Let):
            depth = max(depth, self.guards[-1])
        while not self.bodies[depth].open:
            depth += 1
        return depth

    def _value(self, s: Value) -> None:
        made = self.copy.statement(s)
        parts = (getattr(made, name) for name, _ in made.fields if name != "symbol")
        found = self._put(made, (type(s), *map(_key, parts)))
        self.copy.values[s] = found
        if isinstance(s, Let) and s.symbol is not None and s.symbol is not found.symbol:
            if found.symbol is None:
                found.symbol = s.symbol
            else:
                self.copy.symbols[s.symbol] = var(found.symbol)

    def _check(self, s: Check) -> None:
        low, high = self.copy.operand(s.low), self.copy.operand(s.high)
        size = self.copy.index(s.size)
        made = Check(low, high, size, Failure(s.failure.message, list(s.failure.calls)))
        key = ("check", _key(low), _key(high), size, s.failure.message)
        calls = self._put(made, key).failure.calls
        calls += [k for k in s.failure.calls if k not in calls]

    def _put(self, made: Any, key: Hashable) -> Any:
        """The statement where it belongs, or an equal one that stands there."""
        depth = self._depth(made)
        body = self.bodies[depth]
        found = body.known.get(key)
        if found is None:
            found = body.known[key] = made
            self.depth[made] = depth
            if isinstance(made, Let) and made.symbol is not None:
                self.depth[made.symbol] = depth
            if depth == len(self.bodies) - 1:
                body.add(made)
            else:
                body.out.append(made)
        return found


def _key(x: Any) -> Hashable:
    """Equal for fields of equal values: operands that are the same number."""
    if isinstance(x, tuple):
        return tuple(map(_key, x))
    if isinstance(x, Constant):
        return ("constant", repr(x.value), x.dtype)
    if isinstance(x, Read):
        return ("read", x.array, x.index, x.dtype)
    return x
