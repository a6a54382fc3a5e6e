"""What a program's file says of itself, for people: nothing of it is run, and no weight is read."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from torch_tenon.runtime.interface import MAGIC
from torch_tenon.runtime.library import ProgramError
from torch_tenon.runtime.size_words import size_text

_MOST = 1 << 30  # bytes of a head


@dataclass
class TensorFacts:
    """What goes into a method or comes out of it. `sizes` are expressions of the method's symbols,
    in words (docs/plan-file.md), and `shape` is the same for people."""

    name: str
    dtype: int
    sizes: list[list[int]]
    shape: list[str] = field(default_factory=list)


@dataclass
class MethodFacts:
    """A method: its inputs and outputs, and what the exporter wrote of it."""

    name: str
    symbols: list[tuple[str, int, int]] = field(default_factory=list)
    inputs: list[TensorFacts] = field(default_factory=list)
    outputs: list[TensorFacts] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    plan_bytes: int = 0


@dataclass
class Head:
    """What is in a file. `weights` and `states` are names, dtypes and sizes."""

    producer: str
    target: str
    weight_file: str
    weight_bytes: int
    weights: list[tuple[str, int, list[int]]]
    states: list[tuple[str, int, list[int]]]
    codes: list[tuple[str, int]]  # what each is for, and its bytes
    methods: list[MethodFacts]

    @property
    def calls(self) -> list[str]:
        """The ops of PyTorch's that the methods call."""
        return sorted({op for m in self.methods for op in m.facts.get("calls", ())})


class _Fields:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        found = 0
        for shift in range(0, 64, 7):
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found >> 1 ^ -(found & 1)
        raise ValueError("a number is too long")

    def count(self) -> int:
        """Of what takes a byte at least."""
        found = self.number()
        if not 0 <= found <= len(self.data) - self.at:
            raise ValueError("a list is longer than the data")
        return found

    def numbers(self) -> list[int]:
        return [self.number() for _ in range(self.count())]

    def bytes(self) -> bytes:
        count = self.count()
        self.at += count
        return self.data[self.at - count : self.at]

    def text(self) -> str:
        return self.bytes().decode()

    def tensor(self) -> tuple[str, int, list[int]]:
        return self.text(), self.number(), self.numbers()

    def specs(self, symbols: Sequence[str]) -> list[TensorFacts]:
        found = []
        for _ in range(self.count()):
            name, dtype = self.text(), self.number()
            sizes = [self.numbers() for _ in range(self.count())]
            found.append(TensorFacts(name, dtype, sizes, [size_text(e, symbols) for e in sizes]))
        return found


def read_head(path: Path) -> Head:
    """Raises ProgramError for a file that is none of a program, OSError where it cannot be read."""
    with path.open("rb") as file:
        return read_head_of(file, str(path))


def read_head_of(file: BinaryIO, name: str) -> Head:
    """The same of an open file."""
    start = file.read(32)
    if not start.startswith(MAGIC) or len(start) < 32:
        raise ProgramError(
            f"{name} is no program: a program begins with {MAGIC.decode().strip()!r}"
        )
    length = struct.unpack_from("<Q", start, 16)[0]
    if length > _MOST:
        raise ProgramError(f"{name} is damaged: its head would have {length} bytes")
    try:
        return _read(_Fields(file.read(length)))
    except (IndexError, KeyError, ValueError, RecursionError) as error:
        raise ProgramError(f"{name} is damaged: its head is no head ({error})") from error


def _read(f: _Fields) -> Head:
    producer, target, weight_file = f.text(), f.text(), f.text()
    f.number()
    weight_bytes = f.number()
    f.number()
    f.numbers()
    weights, states, codes = [], [], []
    for _ in range(f.count()):
        weights.append(f.tensor())
        f.number()
    for _ in range(f.count()):
        states.append(f.tensor())
        f.number()
    for _ in range(f.count()):
        processor = f.text()
        f.number()
        codes.append((processor, f.number()))
        f.number()
    methods = [_method(f) for _ in range(f.count())]
    return Head(producer, target, weight_file, weight_bytes, weights, states, codes, methods)


def _method(f: _Fields) -> MethodFacts:
    found, symbols = MethodFacts(f.text()), list[str]()
    for _ in range(f.count()):
        name, least, greatest = f.text(), f.number(), f.number()
        symbols.append(name)
        if not f.numbers():  # what is computed of sizes is none that a caller chooses
            found.symbols.append((name, least, greatest))
    found.inputs, found.outputs = f.specs(symbols), f.specs(symbols)
    for _ in range(f.count()):  # inputs of the plan
        f.number(), f.number()
    f.numbers()
    for _ in range(f.count()):  # copies
        f.number(), f.number(), f.number()
    for _ in range(f.count()):  # checks
        f.numbers(), f.number(), f.numbers()
    facts = json.loads(f.text())
    if not isinstance(facts, dict) or not isinstance(facts.get("results"), list):
        raise ValueError(f"{found.name} has no facts")
    calls = facts.get("calls", [])
    if not isinstance(calls, list) or not all(isinstance(op, str) for op in calls):
        raise ValueError(f"{found.name} calls no ops")
    found.facts = facts
    found.plan_bytes = len(f.bytes())
    return found
