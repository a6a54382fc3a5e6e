"""Runs a loop tree, one iteration after the other: the oracle for rewrites and for printers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Array,
    Barrier,
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
    Wait,
)
from torch_tenon.ir.index import Index, Symbol, evaluate
from torch_tenon.ir.scalar_ops import RANDOM_NUMBERS
from torch_tenon.ir.values import neutral

Number = torch.Tensor  # of no dimensions

# What PyTorch calls otherwise than `ir.scalar_ops.OPS`.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x | y if x.dtype is torch.bool else x + y,
    "floor_div": torch.floor_divide,
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "multiply_add": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
    "round_bf16": lambda x: x.bfloat16(),
    "round_plain_bf16": lambda x: x.bfloat16(),
    "round_f16": lambda x: x.half(),
    "lshift": torch.bitwise_left_shift,
    "rshift": torch.bitwise_right_shift,
    "bitcast": lambda x: x,
    "copy": lambda x: x,
    "to": lambda x: x,
    "where": torch.where,
    "pair": torch.complex,
    "mantissa": lambda x: torch.frexp(x).mantissa,
    "exponent": lambda x: torch.where(x.isfinite(), torch.frexp(x).exponent, 0),
    "random_below": lambda x, y: torch.tensor((int(x) % 2**64) * int(y) >> 64),
    "random_exp": torch.exp,
    "special_polygamma": lambda n, x: torch.polygamma(int(n), x),
}
COMBINATIONS: dict[str, Callable[..., Any]] = {
    "sum": OPERATIONS["add"],
    "prod": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
    "any": torch.bitwise_or,
    "all": torch.bitwise_and,
    "xor": torch.bitwise_xor,
    "logaddexp": torch.logaddexp,
    "store": lambda _, x: x,
}


def _of_pytorch(op: str) -> Callable[..., Number]:
    name = op.removeprefix("special_")
    found = getattr(torch.special, name, None) or getattr(torch, name)
    assert callable(found)
    return found


def stand_in(op: str, seed: int, offset: int, element: int) -> float:
    """For random numbers of any kind: which element of which stream is asked for is what counts."""
    return (seed * 31 + offset + element * 367) % 1009


def run(
    tree: Tree,
    arrays: Sequence[torch.Tensor],
    sizes: Sequence[int],
    status: list[tuple[int, int, int]],
    shares: int = 4,
    draw: Callable[[str, int, int, int], float] = stand_in,
) -> None:
    """Runs a tree on the bytes of its storages (1-d, uint8) with these sizes, each in the order of
    `parameters(tree)`. What its checks find is added to `status`: number, value, size."""
    _Run(tree, arrays, sizes, status, shares, draw).body(tree.body)


class _Run:
    def __init__(
        self,
        tree: Tree,
        arrays: Sequence[torch.Tensor],
        sizes: Sequence[int],
        status: list[tuple[int, int, int]],
        shares: int,
        draw: Callable[[str, int, int, int], float],
    ) -> None:
        self.tree, self.arrays, self.status, self.draw = tree, arrays, status, draw
        found = parameters(tree)
        self.storages, self.failures = found.storages, found.failures
        self.symbols: dict[Symbol, int] = dict(zip(found.sizes, sizes, strict=True))
        if tree.shares is not None:
            self.symbols[tree.shares] = shares
        self.values: dict[Let | Load, Number] = {}
        self.local: dict[Array, torch.Tensor] = {}
        self.started: dict[Array, list[tuple[torch.Tensor, ...]]] = {}  # copies

    def body(self, statements: Sequence[Statement]) -> None:
        for s in statements:
            if isinstance(s, For):
                self._loop(s)
            elif isinstance(s, If):
                if self._operand(s.condition):
                    self.body(s.body)
            elif isinstance(s, Let):
                self.values[s] = self._let(s)
                if s.symbol is not None:
                    self.symbols[s.symbol] = int(self.values[s])
            elif isinstance(s, Load):
                held = s.mask is None or bool(self._operand(s.mask))
                if held:
                    place = self._index(s.index)
                    self.values[s] = self._elements(s.memory)[place].to(s.dtype).clone()
                else:
                    self.values[s] = self._operand(s.other)
            else:
                self._effect(s)

    def _effect(self, s: Statement) -> None:
        if isinstance(s, Declare):
            self._declare(s)
        elif isinstance(s, Accumulate):
            memory, place = self.local[s.accumulator], self._index(s.index)
            value = self._operand(s.value).to(memory.dtype)
            memory[place] = COMBINATIONS[s.accumulator.combine](memory[place], value)
        elif isinstance(s, Store):
            memory, place = self._elements(s.memory), self._index(s.index)
            value = self._operand(s.value)
            before = memory[place].to(value.dtype)
            memory[place] = COMBINATIONS[s.combine](before, value).to(memory.dtype)
        elif isinstance(s, Check):
            low, high = int(self._operand(s.low)), int(self._operand(s.high))
            size = self._index(s.size)
            if low < 0 or high >= size:
                number = self._run() * len(self.failures) + self.failures.index(s.failure)
                self.status.append((number, low if low < 0 else high, size))
        elif isinstance(s, CopyBlock):
            self._copy(s)
        elif isinstance(s, Wait):
            for to, places, values in self.started.pop(s.memory, []):
                to[places] = values
        elif isinstance(s, TileProduct):
            self._multiply(s)
        elif isinstance(s, Draw):
            state = s.op, int(self._operand(s.seed)), int(self._operand(s.offset))
            for k in range(min(map(self._index, s.counts))):
                self.local[s.array][k] = self.draw(*state, self._index(s.first) + k)
        else:
            assert isinstance(s, Barrier)

    def _copy(self, s: CopyBlock) -> None:
        """Copies; where that is only started, there is nothing of use before the wait."""
        counts = [max(0, min(map(self._index, e))) for e in (s.rows, s.columns)]
        source = self._places(s.source_index, s.source_strides, counts)
        filled = [max(n, self._index(e)) for n, e in zip(counts, s.filled or counts, strict=True)]
        values = torch.zeros(filled, dtype=s.memory.dtype)
        values[: counts[0], : counts[1]] = self._elements(s.source)[source]
        to, where = self.local[s.memory], self._places(s.index, s.strides, filled)
        if s.asynchronous:
            self.started.setdefault(s.memory, []).append((to, where, values))
            values = values.logical_not().to(values.dtype)
        to[where] = values

    def _places(
        self, index: Index, strides: Sequence[Index], counts: Sequence[int]
    ) -> torch.Tensor:
        """Where the elements of a block are."""
        row, column = (
            torch.arange(n) * self._index(e) for n, e in zip(counts, strides, strict=True)
        )
        return self._index(index) + row[:, None] + column

    def _multiply(self, s: TileProduct) -> None:
        """Each operand's tile as numbers of the sums' dtype, whatever is beyond the edge."""
        rows, columns, depth = s.sizes
        left = self._places(s.left_index, s.left_strides, (rows, depth))
        right = self._places(s.right_index, s.right_strides, (depth, columns))
        to, where = self.local[s.memory], self._places(s.index, s.strides, (rows, columns))
        found = self._elements(s.left)[left].to(to.dtype) @ self._elements(s.right)[right].to(
            to.dtype
        )
        to[where] = found + to[where] if self._index(s.before) else found

    def _loop(self, s: For) -> None:
        start, stop = max(map(self._index, s.starts)), min(map(self._index, s.stops))
        for k in range(start, stop, s.step):
            self.symbols[s.symbol] = k
            self.body(s.body)

    def _declare(self, s: Declare) -> None:
        a = s.array
        # What nobody has written is no number.
        length = 1 if a.length is None else a.length
        self.local[a] = torch.full((length * a.dtype.itemsize,), 255, dtype=torch.uint8)
        self.local[a] = self.local[a].view(a.dtype)
        if s.initial is not None:
            self.local[a].fill_(self._operand(s.initial))
        elif isinstance(a, Accumulator):
            identity = -1 if a.combine == "all" else neutral(a.combine, a.dtype)
            self.local[a].fill_(identity)

    def _elements(self, memory: Memory) -> torch.Tensor:
        """The elements of an array, or of a buffer in the run at hand."""
        if isinstance(memory, Array):
            return self.local[memory]
        number = self._run() * len(self.storages) + self.storages.index(memory.storage)
        return self.arrays[number].view(memory.dtype)

    def _run(self) -> int:
        return 0 if self.tree.sets is None else self.symbols[self.tree.sets]

    def _index(self, e: Index) -> int:
        return evaluate(e, self.symbols)

    def _operand(self, x: Operand | None) -> Number:
        assert x is not None
        if isinstance(x, Let | Load):
            return self.values[x]
        if isinstance(x, Constant):
            return torch.tensor(x.value, dtype=x.dtype)
        if isinstance(x, Read):
            return self.local[x.array][self._index(x.index)].to(x.dtype).clone()
        return torch.tensor(self._index(x))

    def _let(self, s: Let) -> Number:
        args = [self._operand(a) for a in s.args]
        if s.op == "within":
            inside = 0 <= int(args[0]) < int(args[1])
            return args[0] if inside else torch.tensor(0)
        if s.op == "bitcast":
            return args[0].view(s.dtype)
        if s.op == "to" and s.dtype is torch.bool:
            return args[0] != 0
        if s.op == "index":
            return args[0].to(s.dtype)
        if s.op in RANDOM_NUMBERS:
            return torch.tensor(self.draw(s.op, *map(int, args))).to(s.dtype)
        operation = OPERATIONS.get(s.op) or _of_pytorch(s.op)
        return operation(*args).to(s.dtype)
