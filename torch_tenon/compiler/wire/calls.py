"""Calls of a window as they are written, and what of their arguments are sizes."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torch_tenon.compiler.wire.archive import (
    CONSTANT_ARGUMENT,
    DTYPES,
    LAYOUTS,
    LIST_ARGUMENT,
    MEMORY_FORMATS,
    NUMBER_PATTERN,
    TENSOR_ARGUMENT,
    Reader,
    WireError,
)
from torch_tenon.compiler.wire.schemas import PerOp, if_given, schema_of
from torch_tenon.ops import manifest

# What of an argument may differ, as `Differing` in csrc/pytorch/record/op_sizes.h has it: nothing,
# the first dimension of a tensor, or all sizes.
NOTHING, BATCH, SIZES = range(3)


class OpArgument(NamedTuple):
    """What is known of one of an op's arguments."""

    differing: int
    named: Sequence[Any] | None  # what its whole numbers are the places of


class Op(NamedTuple):
    """An op by its name with the overload."""

    name: str
    arguments: list[OpArgument]


_NAMED: dict[str, Sequence[Any]] = {
    "ScalarTypeType": DTYPES,
    "MemoryFormatType": MEMORY_FORMATS,
    "LayoutType": LAYOUTS,
}


def _op(name: str, overload: str) -> Op:
    full = f"{name}.{overload}" if overload else name
    entry = manifest.of(full)
    # Not beyond PyTorch's ops and ours: what others' sizes follow from is not known.
    follow = name.startswith(("aten::", "tenon::")) and bool(
        entry.sizes or name.startswith("aten::_foreach_") or _is_pointwise(name, overload)
    )
    return Op(
        full,
        [
            OpArgument(
                _differing(entry, a) if follow else NOTHING,
                _NAMED.get(if_given(a.real_type).kind()),
            )
            for a in schema_of(name, overload).arguments
        ],
    )


def _is_pointwise(name: str, overload: str) -> bool:
    found = torch._C._get_operation_overload(name, overload)
    return found is not None and torch.Tag.pointwise in found[2]


def _differing(entry: manifest.Entry, argument: Any) -> int:
    type = argument.real_type
    while type.kind() in ("OptionalType", "ListType"):
        type = type.getElementType()
    kind = type.kind()
    if kind == "TensorType":
        if entry.sizes != "batch":
            return SIZES
        return NOTHING if argument.name in ("weight", "bias") else BATCH
    if kind in ("IntType", "SymIntType", "NumberType"):
        return SIZES if argument.name in entry.size_arguments else NOTHING
    return NOTHING


OPS = PerOp(_op)


# Calls as they are written

# Dtype, sizes, strides, offset.
Tensor = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
# Which argument it is, or -1; whether it is a list; which tensors of it are there.
Result = tuple[int, int, Sequence[int]]
# Bytes, made in the window, outlives it, written.
Slot = tuple[int, bool, bool, bool]


class Call(NamedTuple):
    """A recorded call."""

    op: Op
    surroundings: int
    arguments: list[Any]  # None for a tensor, else its kind, value and elements
    tensors: list[Tensor]
    results: list[Result]
    fresh: list[Tensor]


_TENSOR = b"\x02\0\0"  # an argument, without a value or elements


def read_arguments(reader: Reader) -> list[Any]:
    """Arguments in the schema's order. Raises WireError, as all that reads."""
    data, size = reader.data, reader.count()
    if size and data.startswith(_TENSOR * size, reader.at):
        reader.at += len(_TENSOR) * size
        return [None] * size
    found: list[Any] = []
    for _ in range(size):
        if data.startswith(_TENSOR, reader.at):
            reader.at += len(_TENSOR)
            found.append(None)
            continue
        kind, value = reader.number(), reader.value()
        elements: list[Any] = []
        if data.startswith(b"\0", reader.at):
            reader.at += 1
        else:
            reader.enter()
            elements = read_arguments(reader)
            reader.leave()
        if not CONSTANT_ARGUMENT <= kind <= LIST_ARGUMENT:
            raise WireError(f"no argument is of kind {kind}")
        found.append(None if kind == TENSOR_ARGUMENT else (kind, value, elements))
    return found


def _tensor_pattern() -> re.Pattern[bytes]:
    """Of tensors with few dimensions."""
    one = NUMBER_PATTERN
    sizes = b"|".join(b"\\x%02x%b\\x%02x%b" % (2 * k, one * k, 2 * k, one * k) for k in range(7))
    return re.compile(b"%b(?:%b)%b" % (one, sizes, one * 4), re.DOTALL)


# What comes again and again is looked up by its bytes.
_TENSOR_PATTERN = _tensor_pattern()
_SLOT_PATTERN = re.compile(NUMBER_PATTERN * 4, re.DOTALL)


def read_tensors(reader: Reader) -> list[Tensor]:
    """The layouts of tensors."""
    found = []
    data, match = reader.data, _TENSOR_PATTERN.match
    for _ in range(reader.count()):
        known = match(data, reader.at)
        if known is None:
            found.append(_read_tensor(reader))
        else:
            reader.at = known.end()
            found.append(_tensor_of(known[0]))
    return found


def _read_tensor(reader: Reader) -> Tensor:
    dtype, sizes, strides = reader.dtype(), reader.numbers(), reader.numbers()
    offset = reader.number()
    for _ in range(3):  # its bytes, whether it has a gradient, and whether it is Python's number
        reader.number()
    return dtype, tuple(sizes), tuple(strides), offset


@functools.lru_cache(1 << 12)
def _tensor_of(data: bytes) -> Tensor:
    return _read_tensor(Reader(data))


def read_slots(reader: Reader) -> list[Slot]:
    """What is known of storages, with examples of their bytes."""
    found = []
    data, match = reader.data, _SLOT_PATTERN.match
    for _ in range(reader.count()):
        known = match(data, reader.at)
        if known is None:
            raise WireError("the data ends early")
        reader.at = known.end()
        found.append(_slot_of(known[0]))
    return found


@functools.lru_cache(1 << 12)
def _slot_of(data: bytes) -> Slot:
    reader = Reader(data)
    return reader.number(), reader.number() != 0, reader.number() != 0, reader.number() != 0


_FRESH = b"\x01\0\x02\x02"  # a result: one tensor that is there


def read_results(reader: Reader) -> list[Result]:
    """What becomes of a call's results."""
    found: list[Result] = []
    for _ in range(reader.count()):
        if reader.data.startswith(_FRESH, reader.at):
            reader.at += len(_FRESH)
            found.append((-1, 0, (1,)))
        else:
            found.append((reader.number(), reader.number(), reader.numbers()))
    return found
