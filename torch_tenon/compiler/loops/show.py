"""A loop tree as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch_tenon.compiler.loops.tree import (
    VALUES,
    Accumulate,
    Accumulator,
    Array,
    Check,
    Constant,
    CopyBlock,
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
    TileProduct,
    Tree,
    changed,
    indices,
    operands,
    read,
)
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Division, Index, Symbol


def show(tree: Tree) -> str:
    """The tree, one statement in a line; values are t0, t1, ... in their order."""
    return "\n".join(_Printer().body(tree.body)) + "\n"


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Any, str] = {}  # of values, arrays and symbols
        self.values = 0
        self.counts: dict[str, int] = {}

    def body(self, statements: Sequence[Statement]) -> list[str]:
        lines: list[str] = []
        for s in statements:
            lines += self.statement(s)
        return lines

    def _inside(self, head: str, statements: Sequence[Statement]) -> list[str]:
        return [f"{head}:", *("  " + text for text in self.body(statements))]

    def statement(self, s: Statement) -> list[str]:
        if isinstance(s, For):
            return self._inside(self._loop(s), s.body)
        if isinstance(s, If):
            return self._inside(f"if {self.operand(s.condition)}", s.body)
        return [self._line(s)]

    def _loop(self, s: For) -> str:
        name = self._name(s.symbol)
        start = self._bound("max", s.starts)
        step = "" if s.step == 1 else f" by {s.step}"
        again = " again" if s.again else ""
        return f"{s.kind} {name} from {start} to {self._bound('min', s.stops)}{step}{again}"

    def _bound(self, which: str, es: Sequence[Index]) -> str:
        texts = [self.index(e) for e in es]
        return texts[0] if len(texts) == 1 else f"{which}({', '.join(texts)})"

    def _line(self, s: Statement) -> str:
        if isinstance(s, VALUES):
            text = self._let(s) if isinstance(s, Let) else self._load(s)
            name = self.names[s] = f"t{self.values}"
            self.values += 1
            if isinstance(s, Let) and s.symbol is not None:
                self.names[s.symbol] = name
            return f"{name}: {TABLE[s.dtype].short} = {text}"
        if isinstance(s, Declare):
            return self._declare(s)
        if isinstance(s, Accumulate):
            where = self._element(s.accumulator, s.index)
            return f"{where} {s.accumulator.combine}= {self.operand(s.value)}"
        if isinstance(s, Store):
            sign = "" if s.combine == "store" else s.combine
            text = f"{self._element(s.memory, s.index)} {sign}= {self.operand(s.value)}"
            return text + (", atomic" if s.atomic else "")
        if isinstance(s, Check):
            calls = ", ".join(map(str, s.failure.calls))
            ends = dict.fromkeys((self.operand(s.low), self.operand(s.high)))
            size = self.index(s.size)
            return f"check {' to '.join(ends)} in {size} ({s.failure.message} of {calls})"
        if isinstance(s, CopyBlock):
            block = " by ".join(self._bound("min", e) for e in (s.rows, s.columns))
            to = self._block(s.memory, s.index, s.strides)
            source = self._block(s.source, s.source_index, s.source_strides)
            filled = f", 0 up to {' by '.join(map(self.index, s.filled))}" if s.filled else ""
            text = f"{to} = {block} of {source}{filled}"
            return text + (", asynchronous" if s.asynchronous else "")
        if isinstance(s, TileProduct):
            return self._tile_product(s)
        if isinstance(s, Draw):
            state = f"{self.operand(s.seed)}, {self.operand(s.offset)}"
            count = self._bound("min", s.counts)
            return f"{self._name(s.array)} = {count} of {s.op}({state}, {self.index(s.first)} on)"
        # What has no form of its own here: its name, and what it uses.
        uses = [*map(self.operand, operands(s)), *map(self.index, indices(s))]
        memory = [self._memory(m) for m in (*changed(s), *read(s))]
        return " ".join([type(s).__name__.lower(), *uses, *memory])

    def _block(self, memory: Memory, index: Index, strides: Sequence[Index]) -> str:
        return f"{self._element(memory, index)} by {', '.join(map(self.index, strides))}"

    def _tile_product(self, s: TileProduct) -> str:
        to = self._block(s.memory, s.index, s.strides)
        left = self._block(s.left, s.left_index, s.left_strides)
        right = self._block(s.right, s.right_index, s.right_strides)
        rows, columns, depth = s.sizes
        sizes = f"{rows} by {depth} times {depth} by {columns}"
        return f"{to} += {sizes} of {left} times {right}, after {self.index(s.before)}"

    def _declare(self, s: Declare) -> str:
        a = s.array
        length = "" if a.length is None else f"[{a.length}]"
        space = "" if a.space == "private" else f" {a.space}"
        text = f"{self._name(a)}:{space} {TABLE[a.dtype].short}{length}"
        if s.initial is not None:
            return f"{text} = {self.operand(s.initial)}"
        return f"{text} of {a.combine}" if isinstance(a, Accumulator) else text

    def _let(self, s: Let) -> str:
        return f"{s.op}({', '.join(map(self.operand, s.args))})"

    def _load(self, s: Load) -> str:
        text = self._element(s.memory, s.index)
        if s.mask is None or s.other is None:
            return text
        return f"{text} if {self.operand(s.mask)} else {self.operand(s.other)}"

    def _element(self, memory: Memory, index: Index) -> str:
        if isinstance(memory, Array) and memory.length is None:
            return self._name(memory)
        return f"{self._memory(memory)}[{self.index(index)}]"

    def _memory(self, memory: Memory) -> str:
        return self._name(memory) if isinstance(memory, Array) else memory.name

    def _name(self, x: Array | Symbol) -> str:
        """The name of an array or a loop variable: its label, with a number from the second on."""
        if x not in self.names:
            label = x.label if isinstance(x, Array) else x.name
            number = self.counts[label] = self.counts.get(label, -1) + 1
            self.names[x] = label if number == 0 else f"{label}_{number}"
        return self.names[x]

    def operand(self, x: Operand) -> str:
        if isinstance(x, Constant):
            return repr(x.value)
        if isinstance(x, Read):
            return self._element(x.array, x.index)
        return self.names[x] if isinstance(x, VALUES) else self.index(x)

    def index(self, e: Index) -> str:
        if isinstance(e, int):
            return str(e)
        parts: list[str] = []
        for monomial, k in e.terms.items():
            factors = [self._atom(a) for a in monomial]
            if abs(k) != 1 or not factors:
                factors.insert(0, str(abs(k)))
            sign = "-" if k < 0 else "+" if parts else ""
            parts.append(
                f"{sign} {'*'.join(factors)}".strip() if parts or sign else "*".join(factors)
            )
        return " ".join(parts)

    def _atom(self, a: Any) -> str:
        if isinstance(a, Symbol):
            return self._name(a)
        assert isinstance(a, Division)
        return f"(({self.index(a.numerator)}) {a.sign} ({self.index(a.divisor)}))"
