"""Windows from bytes: what the core writes of a window, as frontends/eager.py describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torch_tenon.compiler.wire.archive import (
    CONSTANT_ARGUMENT,
    NUMBER_ARGUMENT,
    HostNumber,
    Reader,
    WireError,
    dtype_of,
)
from torch_tenon.compiler.wire.calls import (
    BATCH,
    NOTHING,
    OPS,
    SIZES,
    Call,
    Op,
    OpArgument,
    Result,
    Tensor,
    read_arguments,
    read_results,
    read_slots,
    read_tensors,
)
from torch_tenon.ir.index import Index, Symbol
from torch_tenon.ir.size_words import index_of, symbols_of
from torch_tenon.runtime.size_words import CONSTANT


@dataclass(frozen=True)
class ReadWindow:
    """A window of recorded calls."""

    description: tuple[int, list[Any], list[Any]]  # see frontends/eager.py
    symbols: list[Symbol]  # its sizes of any value, with examples
    default_dtype: torch.dtype  # under which its calls were made
    threads: int  # that loops are shared between
    foreign_ops: list[str]  # what `builder/foreign_ops.py` tells of ops of other packages

    @property
    def calls(self) -> int:
        """How many."""
        return len(self.description[1])


def window_of(structure: bytes, number: int = -1) -> ReadWindow:
    """The window of what `Window.structure` gives; `number` is its own in this process.

    Its ops have to be there: see `foreign_ops_of`. Raises WireError for bytes that are no window.
    """
    key, example = _parts(structure)
    try:
        return _WindowReader(key, example).read(number)
    except WireError:
        raise
    except _OF_BAD_DATA as error:
        raise WireError(f"no window: {type(error).__name__}: {error}") from error


# What looking into damaged data raises.
_OF_BAD_DATA: tuple[type[Exception], ...] = (
    *(LookupError, ArithmeticError, TypeError, ValueError, RuntimeError, StopIteration),
)


def foreign_ops_of(structure: bytes) -> list[str]:
    """What has to be defined before the window of a structure can be read. Raises WireError for
    bytes that are no window."""
    key, example = _parts(structure)
    return Reader(_calls_of(key, example)[1]).texts()


def _parts(structure: bytes) -> tuple[bytes, bytes]:
    reader = Reader(structure)
    return reader.raw(), reader.raw()


def _calls_of(key: bytes, example: bytes) -> tuple[list[int], bytes]:
    """An example of all sizes, none where they are no symbols, and the calls with these."""
    if not example:
        return [], key
    reader = Reader(example)
    return reader.numbers(), reader.raw()


class _WindowReader:
    """Reads the calls, and then says what each is given and makes."""

    def __init__(self, key: bytes, example: bytes) -> None:
        self.key = key
        self.has_claim = bool(example)
        self.seen, self.text = _calls_of(key, example)
        self.op = OPS.now()
        self.ops: dict[bytes, Op] = {}  # by their texts

    def read(self, number: int) -> ReadWindow:
        reader = Reader(self.text)
        foreign, threads = reader.texts(), reader.number()
        calls = [self._read_call(reader) for _ in range(reader.count())]
        slots_of_calls = reader.numbers()
        slots: list[Any] = read_slots(reader)
        self.numbers: list[Index] = []
        self.sized = [-1] * len(calls)
        self.resized: list[list[int]] = [[]] * len(calls)
        self.symbols: list[Symbol] = []
        if self.has_claim:
            threads = self._read_claim(len(calls))
        if slots_of_calls and not 0 <= min(slots_of_calls) <= max(slots_of_calls) < len(slots):
            raise WireError("a tensor lies in no slot")
        self.slots, self.next_slot = slots_of_calls, 0
        self.next_number = self.next_size = 0
        described: list[Any] = [self._call(k, call) for k, call in enumerate(calls)]
        if self.has_claim:
            bytes_of_slots = self.numbers[self.next_size : self.next_size + len(slots)]
            slots = [
                (nbytes, *facts) for nbytes, (_, *facts) in zip(bytes_of_slots, slots, strict=True)
            ]
        return ReadWindow(
            (number, described, slots),
            self.symbols,
            dtype_of(calls[0].surroundings & 0xFF),
            threads,
            foreign,
        )

    def _read_call(self, reader: Reader) -> Call:
        text = reader.raw()
        op = self.ops.get(text)
        if op is None:
            name, _, overload = text.decode().partition("\n")
            op = self.ops[text] = self.op(name, overload)
        surroundings = reader.number()
        arguments, tensors = read_arguments(reader), read_tensors(reader)
        if len(arguments) != len(op.arguments):
            raise WireError(f"{op.name} does not take {len(arguments)} arguments")
        reader.skip_numbers()  # which tensors are written: the schema says so
        return Call(
            op, surroundings, arguments, tensors, read_results(reader), read_tensors(reader)
        )

    def _read_claim(self, calls: int) -> int:
        """What is claimed of the sizes; gives the threads."""
        reader = Reader(self.key)
        places = reader.numbers()
        if min(places, default=0) < 0:
            raise WireError("a symbol of no size")
        self.symbols = symbols_of([self.seen[k] for k in places])
        known: dict[bytes, Index] = {}
        for _ in range(reader.count()):
            start = reader.at
            reader.skip_numbers()
            data = reader.data[start : reader.at]
            found = known.get(data)
            if found is None:
                words = Reader(data).numbers()
                constant = len(words) == 2 and words[0] == CONSTANT
                found = words[1] if constant else index_of(words, self.symbols)
                known[data] = found
            self.numbers.append(found)
        reader.texts()  # as the example has them
        self.sized, threads = reader.numbers(), reader.number()
        if len(self.sized) != calls:
            raise WireError("a claim of other calls")
        self.resized = []
        for sized in self.sized:
            reader.raw()
            read_results(reader)
            self.resized.append(reader.numbers())
            if sized >= 0:
                reader.skip_numbers()  # the key
            else:
                reader.number()
                read_arguments(reader)
                read_tensors(reader)
                reader.skip_numbers()
                read_tensors(reader)
        return threads

    # Calls as they are described. A claim has the sizes that a call is given, then those of what it
    # makes.

    def _call(self, k: int, call: Call) -> tuple[str, int, list[Any], list[Any]]:
        sized, self.is_made = self.sized[k], self.resized[k]
        self.is_sized = sized >= 0
        self.next_given, self.next_made = self.next_size, self.next_size + max(sized, 0)
        self.tensors, self.place = call.tensors, 0
        self.fresh = iter(call.fresh)
        arguments = [
            self._argument(x, facts)
            for x, facts in zip(call.arguments, call.op.arguments, strict=True)
        ]
        results = [self._result(x) for x in call.results]
        self.next_size = self.next_made
        return call.op.name, 0, arguments, results

    def _argument(self, x: Any, facts: OpArgument) -> tuple[Any, ...]:
        if x is None:
            return self._given_tensor(facts.differing)
        kind, value, elements = x
        if kind == CONSTANT_ARGUMENT:
            if facts.differing == SIZES:
                return "constant", self._size(value)
            return "constant", _constant(value, facts.named)
        if kind == NUMBER_ARGUMENT:
            place, self.next_number = self.next_number, self.next_number + 1
            if isinstance(value, int):  # a number for an op that takes it as such
                return "number", place, torch.int64, True, False
            if not isinstance(value, HostNumber):
                return "number", place, torch.float64, True, True
            return "number", place, value.dtype, value.wrapped, value.dtype.is_floating_point
        if not self.is_sized and elements and not any(elements):
            return "list", self._given_tensors(len(elements))
        return "list", [self._argument(y, facts) for y in elements]

    def _given_tensors(self, count: int) -> list[tuple[Any, ...]]:
        """Several, where sizes are no symbols."""
        slot, place = self.next_slot, self.place
        self.next_slot, self.place = slot + count, place + count
        slots, tensors = self.slots[slot : slot + count], self.tensors[place : place + count]
        if len(slots) < count:
            raise WireError("a tensor lies in no slot")
        return [
            ("tensor", slot, dtype, sizes, strides, offset)
            for slot, (dtype, sizes, strides, offset) in zip(slots, tensors, strict=True)
        ]

    def _given_tensor(self, differing: int) -> tuple[Any, ...]:
        place, self.place = self.place, self.place + 1
        dtype, sizes, strides, offset = self.tensors[place]
        if place in self.is_made:
            return self._made_tensor(self.tensors[place])
        slot = self.slots[self.next_slot]
        self.next_slot += 1
        if not self.is_sized:
            return "tensor", slot, dtype, sizes, strides, offset
        found: list[Index] = list(sizes)
        open_sizes = {NOTHING: 0, BATCH: 1, SIZES: len(sizes)}[differing]
        for d in range(min(open_sizes, len(sizes))):
            found[d] = self._given(sizes[d])
        return (
            "tensor",
            slot,
            dtype,
            tuple(found),
            tuple(map(self._given, strides) if differing == SIZES else strides),
            offset if differing == NOTHING else self._given(offset),
        )

    def _made_tensor(self, t: Tensor) -> tuple[Any, ...]:
        dtype, sizes, strides, offset = t
        slot = self.slots[self.next_slot]
        self.next_slot += 1
        if not self.is_sized:
            return "tensor", slot, dtype, sizes, strides, offset
        made, first, between = self.numbers, self.next_made, self.next_made + len(sizes)
        self.next_made = end = between + len(strides)
        if end > len(made):
            raise WireError("a claim of fewer sizes")
        return "tensor", slot, dtype, tuple(made[first:between]), tuple(made[between:end]), offset

    def _given(self, example: int) -> Index:
        """A size that the call is given. What 0 and 1 mean to it is no matter of size."""
        if example < 2:
            return example
        place, self.next_given = self.next_given, self.next_given + 1
        return self.numbers[place]

    def _size(self, value: object) -> object:
        """An argument that is a size, a list of these, or none."""
        if isinstance(value, bool) or not isinstance(value, int | list):
            return _plain(value)
        if not self.is_sized:
            return value
        return [self._given(x) for x in value] if isinstance(value, list) else self._given(value)

    def _result(self, x: Result) -> Any:
        argument, is_list, defined = x
        if argument >= 0:
            return "argument", argument
        found = [self._made_tensor(next(self.fresh)) if there else None for there in defined]
        return ("list", found) if is_list else found[0]


def _constant(value: object, named: Sequence[Any] | None) -> object:
    """A constant as Python code would pass it."""
    if named is None or type(value) is not int:
        return _plain(value)
    if not 0 <= value < len(named):
        raise WireError(f"no dtype, memory format or layout has the number {value}")
    return named[value]


def _plain(value: object) -> object:
    """A value as PyTorch gives it to Python."""
    if isinstance(value, HostNumber):
        # A Python number reaches an op that takes tensors as a tensor that says so.
        return value.value if value.wrapped else value.tensor()
    return [_plain(x) for x in value] if isinstance(value, tuple) else value
