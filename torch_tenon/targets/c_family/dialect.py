"""A loop tree in a language of C's family: what its dialects have in common. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from torch_tenon.compiler.kernel import CHECKS, STATUS_WORDS, Kernel
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.tree import (
    VALUES,
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
    Space,
    Statement,
    Store,
    TileProduct,
    Tree,
    Wait,
    dtype_of,
    space_of,
    walk,
)
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Index, Symbol, symbols
from torch_tenon.ir.sixteen_bits import ROUNDINGS
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.c_family import scalars as c

# What a copy takes an element for, so that its bits stay and the compiler has vectors of them.
TO_COPY = {torch.bfloat16: "uint16_t", torch.float16: "uint16_t", torch.complex64: "uint64_t"}

TURNED = 64  # elements of a row of what `turn_32` of kernel.h and the like write


def indent(lines: Sequence[str]) -> list[str]:
    """Lines one level further in; pragmas stay at the margin."""
    return [text if text.startswith("#") else "  " + text for text in lines]


@dataclass
class Names:
    """Names that are given from outside: of symbols, and of arrays."""

    symbols: Mapping[Symbol, str] = field(default_factory=dict)
    arrays: Mapping[Array, str] = field(default_factory=dict)


class Writer:
    """Spells the statements of one tree; `given` are names of what the tree does not bind."""

    # What memory is marked with, by where it is: the spaces that the language has.
    spaces: ClassVar[Mapping[Space, str]] = {"global": "", "private": ""}

    def __init__(self, tree: Tree, given: Names | None = None) -> None:
        given = given or Names()
        self.tree = tree
        found = parameters(tree, given.symbols)
        self.arguments, self.storages = found.sizes, found.storages
        self.failures = {f: k for k, f in enumerate(found.failures)}
        self.memory = {pointer: f"x{k}" for k, pointer in enumerate(found.pointers)}
        self.names: dict[Any, str] = {**given.symbols, **given.arrays}
        self.names |= {s: f"n{k}" for k, s in enumerate(self.arguments)}
        if tree.shares is not None:
            self.names[tree.shares] = "shares"
        self.count = 0
        self.in_lanes = False
        self.open: set[str] = set()  # the names of the loops around
        self.copied: dict[Load, str] = {}  # what was loaded, as memory has it

    def made(
        self,
        source: str,
        group: Group,
        kept: set[Buffer],
        numbers: Mapping[Symbol, int],
        layout: str,
        work: Index,
        first: Sequence[Index] = (),
    ) -> Kernel:
        """The kernel of a source that has this writer's names. It is called with the numbers
        `first`, then with its arguments, some of which `numbers` knows."""
        sizes = [*first, *(numbers.get(s, s) for s in self.arguments)]
        kernel = Kernel.of(group, kept, source, self.storages, sizes)
        kernel.layout, kernel.work = layout, work
        kernel.checks = [f.calls for f in self.failures]
        return kernel

    # What stands before the statements

    def pointers(self) -> list[str]:
        """A pointer for each storage and dtype."""
        lines = []
        for (storage, dtype), name in self.memory.items():
            pointer = f"{self.spaces['global']}{c.MEMORY[dtype]} *"
            start = self._start(self.storages.index(storage), pointer)
            lines.append(f"{pointer}const {name} = {start};")
        return lines

    def _start(self, number: int, pointer: str) -> str:
        """Where a storage begins, of the type `pointer`."""
        raise NotImplementedError

    def pointer(self, b: Buffer) -> str:
        """The name of the pointer to a buffer that the statements may not touch."""
        if b.storage not in self.storages:
            self.storages.append(b.storage)
        return self.memory.setdefault((b.storage, b.dtype), f"x{len(self.memory)}")

    def argument(self, e: Index) -> str:
        """A size in C that the statements may not have."""
        for s in sorted(symbols(e), key=lambda s: s.serial):
            if s not in self.names:
                self.names[s] = f"n{len(self.arguments)}"
                self.arguments.append(s)
        return self.index(e)

    # Statements

    def body(self, statements: Sequence[Statement]) -> list[str]:
        """The lines of statements: of a `For` those of `_for`, and so on."""
        lines: list[str] = []
        for s in statements:
            lines += getattr(self, f"_{type(s).__name__.lower()}")(s)
        return lines

    def _for(self, s: For) -> list[str]:
        name = s.symbol.name
        while name in self.open:
            name += "_"
        self.open.add(name)
        starts, stops = list(map(self.index, s.starts)), list(map(self.index, s.stops))
        self.names[s.symbol] = name
        head = self._pragma(s)
        before, self.in_lanes = self.in_lanes, self.in_lanes or s.kind == "lane"
        inside = self._inside(s)
        self.in_lanes = before
        self.open.discard(name)
        start, stop = extreme(starts, ">"), extreme(stops, "<")
        return [*head, f"for ({self._steps(s, name, start, stop)}) {{", *indent(inside), "}"]

    def _steps(self, s: For, name: str, start: str, stop: str) -> str:
        step = f"++{name}" if s.step == 1 else f"{name} += {s.step}"
        return f"int64_t {name} = {start}; {name} < {stop}; {step}"

    def _pragma(self, s: For) -> list[str]:
        """What tells the compiler of a loop's kind."""
        raise NotImplementedError

    def _inside(self, s: For) -> list[str]:
        return self.body(s.body)

    def _if(self, s: If) -> list[str]:
        return [f"if ({self.operand(s.condition)}) {{", *indent(self.body(s.body)), "}"]

    def _let(self, s: Let) -> list[str]:
        return self._name(s, self._value(s))

    def _load(self, s: Load) -> list[str]:
        memory = self._element(s.memory, s.index)
        if _is_copied(s.memory) and s.mask is None:
            # As it lies there, for a store that copies it: nothing is converted, nor a NaN changed.
            bits = self.copied[s] = f"b{self.count}"
            kept = f"const {TO_COPY[s.memory.dtype]} {bits} = {self._bits(s.memory, memory)};"
            here = memory if s.memory.dtype.is_complex else bits
            return [kept, *self._name(s, c.from_memory(here, s.memory.dtype))]
        text = c.from_memory(memory, s.memory.dtype) if _is_packed(s.memory) else memory
        if s.mask is not None and s.other is not None:
            text = f"{self.operand(s.mask)} ? {text} : {self.operand(s.other)}"
        return self._name(s, text)

    def _name(self, s: Let | Load, text: str) -> list[str]:
        name = self._new(s, "t")
        if isinstance(s, Let) and s.symbol is not None:
            self.names[s.symbol] = name
        # gcc has no vectors for a choice by one _Bool for all lanes, but by one int.
        one_for_all = s.dtype is torch.bool and not self.in_lanes
        return [f"const {'int' if one_for_all else c.register_type(s.dtype)} {name} = {text};"]

    def _new(self, x: Any, label: str) -> str:
        name = self.names[x] = f"{label}{self.count}"
        self.count += 1
        return name

    def _declare(self, s: Declare) -> list[str]:
        array = s.array
        name = self._new(array, array.label)
        if array.space not in self.spaces:
            raise NotImplementedError(f"{array.space} memory")
        if not isinstance(array, Accumulator):
            ctype = f"{self.spaces[array.space]}{c.MEMORY[array.dtype]}"
            return [f"{ctype} {name}[{self._room(array.length)}];"]
        ctype = c.accumulator_type(array.dtype)
        if s.initial is None:
            start = c.identity(array.combine, array.dtype)
        else:
            start = self.operand(s.initial)
        if array.length is None:
            return [f"{ctype} {name} = {start};"]
        loop = f"for (int64_t k = 0; k < {array.length}; ++k) {name}[k] = {start};"
        return [f"{ctype} {name}[{self._room(array.length)}];", loop]

    def _room(self, length: int | None) -> int | None:
        """The elements that are declared for an array of that many."""
        return length

    def _accumulate(self, s: Accumulate) -> list[str]:
        a = s.accumulator
        where = self._element(a, s.index)
        text = c.combination(a.combine, where, self.operand(s.value), a.dtype)
        return [f"{where} = {text};"]

    def _store(self, s: Store) -> list[str]:
        where, value = self._element(s.memory, s.index), self.operand(s.value)
        if s.atomic:
            return [self._atomic(s, where, value)]
        packed = _is_packed(s.memory)
        if s.combine != "store":
            there = c.from_memory(where, s.memory.dtype) if packed else where
            value = c.combination(s.combine, there, value, dtype_of(s.value))
        plain = packed and s.combine == "store"
        if plain and self._is_copy(s):
            where = self._bits(s.memory, where)
            value = self.copied[s.value]  # type: ignore[index]
        elif plain and isinstance(s.value, Let) and ROUNDINGS.get(s.value.op) is s.memory.dtype:
            value = c.rounded_to_memory(value, self.operand(s.value.args[0]), s.memory.dtype)
        elif packed:
            value = c.to_memory(value, s.memory.dtype)
        return [f"{where} = {value};"]

    def _atomic(self, s: Store, where: str, value: str) -> str:
        """An atomic store to the element `where`."""
        raise NotImplementedError("atomics")

    def _is_copy(self, s: Store) -> bool:
        """Whether what is stored lies in memory as it is to be."""
        x = s.value
        return (
            isinstance(x, Load)
            and x in self.copied
            and _is_copied(s.memory)
            and x.memory.dtype is s.memory.dtype
        )

    def _bits(self, memory: Memory, element: str) -> str:
        """An element as what a copy takes it for."""
        if not memory.dtype.is_complex:
            return element
        return f"*({self.spaces[space_of(memory)]}{TO_COPY[memory.dtype]} *)&{element}"

    def _check(self, s: Check) -> list[str]:
        low, high, size = self.operand(s.low), self.operand(s.high), self.index(s.size)
        number = STATUS_WORDS * self.failures[s.failure]
        report = f"report(status + {number}, {CHECKS[s.failure.message]}"
        if s.low is s.high:
            return [f"if (!((uint64_t){low} < (uint64_t)({size}))) {report}, {low}, {size});"]
        found = f"{low} < 0 ? {low} : {high}"
        return [f"if ({low} < 0 || {high} >= {size}) {report}, {found}, {size});"]

    def _copyblock(self, s: CopyBlock) -> list[str]:
        (width, across), (along, step) = s.strides, s.source_strides
        if (s.index, width, across, along) != (0, TURNED, 1, 1) or s.asynchronous or s.filled:
            raise NotImplementedError("a copy that exchanges no rows and columns")
        rows, columns = (extreme(list(map(self.index, e)), "<") for e in (s.rows, s.columns))
        space = self.spaces[space_of(s.source)]
        source = f"({space}const void *)&{self._element(s.source, s.source_index)}"
        bits = 8 * s.source.dtype.itemsize
        where = f"{self.names[s.memory]}, {source}, {self.index(step)}"
        return [f"turn_{bits}({where}, {columns}, {rows});"]

    def _wait(self, s: Wait) -> list[str]:
        raise NotImplementedError("asynchronous copies")

    def _tileproduct(self, s: TileProduct) -> list[str]:
        raise NotImplementedError("products of tiles")

    def _draw(self, s: Draw) -> list[str]:
        count = extreme(list(map(self.index, s.counts)), "<")
        where = f"{self.operand(s.seed)}, {self.operand(s.offset)}, {self.index(s.first)}"
        return [f"{c.filling(s.op, s.array.dtype)}({self.names[s.array]}, {where}, {count});"]

    def _barrier(self, s: Barrier) -> list[str]:
        raise NotImplementedError

    def reduced(self, s: For) -> list[Accumulator]:
        """Accumulators in registers that come from outside of a loop and change inside of it."""
        inside = {t.array for t in walk(s.body) if isinstance(t, Declare)}
        found = dict.fromkeys(t.accumulator for t in walk(s.body) if isinstance(t, Accumulate))
        return [a for a in found if a.length is None and a not in inside]

    # Values

    def index(self, e: Index) -> str:
        """An index expression."""
        return c.spell(e, self.names.__getitem__)

    def operand(self, x: Operand) -> str:
        """A value by its name, a number as it is."""
        if isinstance(x, VALUES):
            return self.names[x]
        if isinstance(x, Constant):
            return c.literal(x.value, x.dtype)
        if isinstance(x, Read):
            text = self._element(x.array, x.index)
            if _is_packed(x.array):
                text = c.from_memory(text, x.array.dtype)
                return f"({text})" if x.dtype is torch.bool else text
            return text if x.dtype is x.array.dtype else f"({c.register_type(x.dtype)}){text}"
        text = self.index(x)
        return f"({text})" if " " in text else text

    def _element(self, memory: Memory, index: Index) -> str:
        if isinstance(memory, Buffer):
            return f"{self.memory[memory.storage, memory.dtype]}[{self.index(index)}]"
        name = self.names[memory]
        return name if memory.length is None else f"{name}[{self.index(index)}]"

    def _value(self, s: Let) -> str:
        if s.op == "index":
            (e,) = s.args
            return f"({c.register_type(s.dtype)})({self.index(e)})"  # type: ignore[arg-type]
        args = [self.operand(a) for a in s.args]
        if s.op == "copy":
            return args[0]
        if s.op == "within":
            return f"((uint64_t){args[0]} < (uint64_t)({args[1]})) ? {args[0]} : 0"
        if s.op == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if s.op == "to":
            return c.convert(args[0], s.dtype, dtype_of(s.args[0]))
        if s.op == "bitcast":
            return c.bitcast(args[0], s.dtype, dtype_of(s.args[0]))
        return c.operation(s.op, args, s.dtype, dtype_of(s.args[0]))


def _is_packed(memory: Memory) -> bool:
    """Whether elements are as memory has them: numbers in registers are not."""
    return not isinstance(memory, Accumulator)


def _is_copied(memory: Memory) -> bool:
    """Whether copies have another type for elements of it."""
    known = _is_packed(memory) and memory.dtype in TO_COPY
    return known and (isinstance(memory, Buffer) or not memory.dtype.is_complex)


def extreme(bounds: list[str], sign: str) -> str:
    """The greatest or the least of bounds."""
    text = bounds[0]
    for other in bounds[1:]:
        text = f"({text} {sign} {other} ? {text} : {other})"
    return text
