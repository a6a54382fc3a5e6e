"""Plain data as bytes and back: how fields are written (docs/plan-file.md)."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from torch_tenon import _C
from torch_tenon.runtime.dtypes import NAMES, NUMBERS


class WireError(ValueError):
    """Bytes that end early or are no such data, or data that cannot be written."""


# As `Value::Kind` in csrc/runtime/value.h has them.
NOTHING, INTEGER, REAL, TRUTH, TEXT, LIST, UNDEFINED, NUMBER, DEVICE, COMPLEX = range(10)
# As `Argument::Kind` in csrc/runtime/value.h has them.
CONSTANT_ARGUMENT, TENSOR_ARGUMENT, NUMBER_ARGUMENT, LIST_ARGUMENT = range(4)
# What the elements of lists are, by the numbers that stand for it.
ELEMENT_TYPES = tuple(_C.element_types())
INTS, TENSORS, OPTIONAL_TENSORS = map(ELEMENT_TYPES.index, ("int", "Tensor", "Optional[Tensor]"))

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in NAMES)
NO_DTYPE = len(DTYPES)  # of a complex number that is no tensor
ITEM_BYTES = {name: getattr(torch, name).itemsize for name in NAMES}
# As `c10::MemoryFormat` and `c10::Layout` have them.
MEMORY_FORMATS = (
    *(torch.contiguous_format, torch.preserve_format),
    *(torch.channels_last, torch.channels_last_3d),
)
LAYOUTS: tuple[torch.layout, ...] = tuple(
    getattr(torch, name)
    for name in (
        *("strided", "sparse_coo", "sparse_csr", "_mkldnn"),
        *("sparse_csc", "sparse_bsr", "sparse_bsc", "jagged"),
    )
)
# The number of a dtype, a memory format or a layout, by its name in `torch`.
TORCH_NUMBERS: dict[str, int] = {
    **NUMBERS,
    **{
        str(x).removeprefix("torch."): number
        for all in (MEMORY_FORMATS, LAYOUTS)
        for number, x in enumerate(all)
    },
}

# Real numbers whose bits are those of a double, and whole ones, as a host tensor holds them.
_REAL_NUMBERS = frozenset(NUMBERS[n] for n in ("float16", "float32", "float64", "bfloat16"))
_WHOLE_NUMBERS = frozenset(
    NUMBERS[n] for n in ("uint8", "int8", "int16", "int32", "int64", "bool", "uint16", "uint32")
)
_COMPLEX_NUMBERS = frozenset(NUMBERS[n] for n in ("complex64", "complex128"))

_DOUBLE, _WORD = struct.Struct("<d"), struct.Struct("<q")
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
DEEPEST = 16  # that lists lie within one another

# The byte of a small number; -64 to -1 are the last of them. The longer ones come again and again.
_BYTES = bytes([2 * x for x in range(64)] + [-2 * x - 1 for x in range(-64, 0)])
# The small number of a byte below 128.
SMALL = [byte >> 1 ^ -(byte & 1) for byte in range(128)]


# The bytes of a number, for patterns of what is written often.
NUMBER_PATTERN = rb"[\x80-\xff]*[\x00-\x7f]"
_MORE = bytes(range(0x80, 0x100))  # what no number ends with


@functools.lru_cache(1 << 14)
def _long(x: int) -> bytes:
    if not _LEAST <= x <= _MOST:
        raise WireError(f"{x} takes more than 64 bits")
    found = bytearray()
    left = x << 1 ^ x >> 63
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def bits_of(x: float) -> int:
    """The bits of a double as a signed number."""
    found: int = _WORD.unpack(_DOUBLE.pack(x))[0]
    return found


def double_of(bits: int) -> float:
    """The double with these bits."""
    found: float = _DOUBLE.unpack(_WORD.pack(bits))[0]
    return found


class HostNumber(NamedTuple):
    """A host tensor without dimensions; `wrapped`: it came from a Python number."""

    dtype: torch.dtype
    value: complex  # or a bool, an int or a float
    wrapped: bool

    def tensor(self) -> torch.Tensor:
        """A host tensor with the value."""
        return torch.tensor(self.value, dtype=self.dtype, device="cpu")


class Writer:
    """Adds fields to `bytes`. Raises WireError for a number that takes more than 64 bits."""

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = bytearray()

    def number(self, x: int) -> None:
        """A whole number."""
        if -64 <= x < 64:
            self.bytes.append(_BYTES[x])
        else:
            self.bytes += _long(x)

    def numbers(self, all: Sequence[int]) -> None:
        """A list of whole numbers."""
        out = self.bytes
        size = len(all)
        if size < 64:
            out.append(2 * size)
        else:
            out += _long(size)
        for x in all:
            if -64 <= x < 64:
                out.append(_BYTES[x])
            else:
                out += _long(x)

    def real(self, x: float) -> None:
        """A double."""
        self.bytes += _DOUBLE.pack(x)

    def text(self, x: str | bytes | bytearray) -> None:
        """A text, in UTF-8 where it is no bytes."""
        data = x.encode() if isinstance(x, str) else x
        size = len(data)
        self.bytes += _long(size) if size > 63 else _BYTES[size : size + 1]
        self.bytes += data

    def texts(self, all: Iterable[str]) -> None:
        """A list of texts."""
        found = list(all)
        self.number(len(found))
        for x in found:
            self.text(x)


class Reader:
    """Takes fields from the front of `data`. Raises WireError where that ends early, or has no such
    field."""

    __slots__ = ("at", "data", "depth")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data, self.at, self.depth = bytes(data), 0, 0

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.at == len(self.data)

    def number(self) -> int:
        """A whole number."""
        try:
            byte = self.data[self.at]
        except IndexError:
            raise _early() from None
        self.at += 1
        return SMALL[byte] if byte < 0x80 else self._long(byte)

    def _long(self, byte: int) -> int:
        """A number of several bytes; the first was read."""
        data, at, found, shift = self.data, self.at, byte & 0x7F, 7
        while True:
            try:
                byte = data[at]
            except IndexError:
                raise _early() from None
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise WireError("a number is too long")
        if found > 0xFFFFFFFFFFFFFFFF:
            raise WireError("a number is too large")
        self.at = at
        return found >> 1 ^ -(found & 1)

    def count(self) -> int:
        """The length of a list or a text, each element of which takes a byte at least."""
        try:
            byte = self.data[self.at]
        except IndexError:
            raise _early() from None
        self.at += 1
        found = SMALL[byte] if byte < 0x80 else self._long(byte)
        if not 0 <= found <= len(self.data) - self.at:
            raise WireError("a list is longer than the data")
        return found

    def numbers(self) -> list[int]:
        """A list of whole numbers."""
        size = self.count()
        if size == 0:
            return []
        part = self.data[self.at : self.at + size]
        if part.isascii():  # each of one byte
            self.at += size
            return [SMALL[byte] for byte in part]
        found, data, at = [], self.data, self.at
        try:
            for _ in range(size):
                byte = data[at]
                at += 1
                if byte < 0x80:
                    found.append(SMALL[byte])
                elif (second := data[at]) < 0x80:
                    at += 1
                    x = byte & 0x7F | second << 7
                    found.append(x >> 1 ^ -(x & 1))
                else:
                    self.at = at
                    found.append(self._long(byte))
                    at = self.at
        except IndexError:
            raise _early() from None
        self.at = at
        return found

    def skip_numbers(self) -> None:
        """Goes past a list of whole numbers, without a look at them."""
        left = self.count()
        while left:
            part = self.data[self.at : self.at + left]
            if not part:
                raise _early()
            left -= len(part.translate(None, _MORE))
            self.at += len(part)

    def real(self) -> float:
        """A double."""
        found: float = _DOUBLE.unpack(self.taken(8))[0]
        return found

    def raw(self) -> bytes:
        """A text as bytes."""
        return self.taken(self.count())

    def text(self) -> str:
        """A text."""
        try:
            return self.raw().decode()
        except UnicodeDecodeError as error:
            raise WireError(f"a text is no UTF-8: {error}") from None

    def texts(self) -> list[str]:
        """A list of texts."""
        return [self.text() for _ in range(self.count())]

    def dtype(self) -> torch.dtype:
        """A dtype."""
        return dtype_of(self.number())

    def taken(self, size: int) -> bytes:
        """So many bytes."""
        end = self.at + size
        if end > len(self.data):
            raise _early()
        found = self.data[self.at : end]
        self.at = end
        return found

    def value(self) -> object:
        """A value: None (also for an undefined tensor), a bool, an int, a float, a complex, a str,
        a torch.device, a HostNumber, a list for one of ints, and a tuple for one of others."""
        kind = self.number()
        if kind in (NOTHING, UNDEFINED):
            return None
        if kind == INTEGER:
            return self.number()
        if kind == TRUTH:
            return self.number() != 0
        if kind == REAL:
            return self.real()
        if kind == LIST:
            return self._list()
        if kind == NUMBER:
            return self._host_number()
        if kind == COMPLEX:
            return self._complex()
        if kind == TEXT:
            return self.text()
        if kind == DEVICE:
            name = self.text()
            try:
                return torch.device(name)
            except RuntimeError:
                raise WireError(f"{name!r} is no device") from None
        raise WireError(f"no value is of kind {kind}")

    def enter(self) -> None:
        """Is called before what lies within a list. Raises WireError where that is too deep."""
        if self.depth == DEEPEST:
            raise WireError("lists lie too deep within one another")
        self.depth += 1

    def leave(self) -> None:
        """Is called after it."""
        self.depth -= 1

    def _list(self) -> list[int] | tuple[object, ...]:
        type, size = self.number(), self.count()
        if not 0 <= type < len(ELEMENT_TYPES):
            raise WireError(f"no type of elements is {type}")
        self.enter()
        found = [self.value() for _ in range(size)]
        self.leave()
        if type != INTS:
            return tuple(found)
        ints = [x for x in found if isinstance(x, int) and not isinstance(x, bool)]
        if len(ints) != size:
            raise WireError("a list of numbers has others")
        return ints

    def _host_number(self) -> HostNumber:
        dtype, bits, wrapped = self.number(), self.number(), self.number() != 0
        if dtype in _REAL_NUMBERS:
            return HostNumber(DTYPES[dtype], double_of(bits), wrapped)
        if dtype not in _WHOLE_NUMBERS:
            raise WireError("a number of no dtype that numbers have")
        return HostNumber(DTYPES[dtype], bool(bits) if dtype == _BOOL else bits, wrapped)

    def _complex(self) -> complex | HostNumber:
        dtype, value = self.number(), complex(self.real(), self.real())
        wrapped = self.number() != 0
        if dtype == NO_DTYPE:
            return value
        if dtype not in _COMPLEX_NUMBERS:
            raise WireError("a complex number of another dtype")
        return HostNumber(DTYPES[dtype], value, wrapped)


_BOOL = NUMBERS["bool"]


def dtype_of(number: int) -> torch.dtype:
    """The dtype of PyTorch's number for it. Raises WireError for no such number."""
    if not 0 <= number < len(DTYPES):
        raise WireError(f"no dtype has the number {number}")
    return DTYPES[number]


def _early() -> WireError:
    return WireError("the data ends early")
