"""The bytes of a program's file: docs/program-file.md."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from torch_tenon import _C
from torch_tenon.compiler.backend import KernelFile, PackedCode, PackedKernel
from torch_tenon.compiler.wire.archive import WireError, Writer
from torch_tenon.exporting.errors import ExportError
from torch_tenon.exporting.methods import Method, TensorSpec
from torch_tenon.exporting.weight_file import weights_apart
from torch_tenon.exporting.weights import LINE, Shared
from torch_tenon.runtime.dtypes import NUMBERS
from torch_tenon.runtime.interface import MAGIC

PAGE = 4096
BLOCK = 1 << 20  # bytes of weights that one checksum is of
_START = 32  # where the head begins
_PLACES = np.arange(1, BLOCK // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
# As `Source::Kind` in csrc/runtime/program_file.h has them.
INPUT, WEIGHT, STATE = range(3)


@dataclass
class ProgramFile:
    """What a program's file has. `apart` is the safetensors file of its weights, if they lie there
    and not in the file itself."""

    producer: str
    target: str
    shared: Shared
    codes: list[PackedCode]
    methods: list[tuple[Method, list[PackedKernel]]]
    apart: Path | None = None

    def write(self, path: Path) -> None:
        """Writes it whole or not at all. Raises OSError where that is not possible."""
        if self.apart is None:
            nbytes, begin = self.shared.lay_out(), None
            checks = list(map(block_checksum, _blocks(self.shared, nbytes)))
        else:
            begin, nbytes = weights_apart(self.shared, self.apart)
            checks = list(map(block_checksum, _blocks_of_file(self.apart, begin, nbytes)))
        head, places, weights = self._laid_out(checks, nbytes, begin)
        with _whole(path) as file:
            file.write(MAGIC + struct.pack("<qQ", len(head), _C.checksum(head)) + head)
            for code, at in zip(self.codes, places, strict=True):
                file.write(bytes(at - file.tell()) + code.data)
            if nbytes and self.apart is None:
                file.write(bytes(weights - file.tell()))
                for block in _blocks(self.shared, nbytes):
                    file.write(block)

    def _laid_out(
        self, checks: Sequence[int], nbytes: int, begin: int | None
    ) -> tuple[bytes, list[int], int]:
        """The head, where each code lies, and where the weights begin, if not at `begin` of another
        file. The head says where that is, and its length depends on it."""
        length = 0
        while True:
            at, places = _START + length, []
            for code in self.codes:
                at = _up(at, LINE)
                places.append(at)
                at += len(code.data)
            weights = _up(at, PAGE) if begin is None else begin
            head = self._head(places, weights, checks, nbytes)
            if len(head) == length:
                return head, places, weights
            length = len(head)

    def _head(
        self, places: Sequence[int], weights: int, checks: Sequence[int], nbytes: int
    ) -> bytes:
        out = Writer()
        out.text(self.producer)
        out.text(self.target)
        out.text("" if self.apart is None else self.apart.name)
        for number in (weights, nbytes, BLOCK):
            out.number(number)
        out.numbers(checks)
        out.number(len(self.shared.weights))
        for w in self.shared.weights:
            _put_tensor(out, w.name, w.tensor)
            out.number(w.offset)
        out.number(len(self.shared.states))
        for s in self.shared.states:
            _put_tensor(out, s.name, s.tensor)
            out.number(s.weight)
        out.number(len(self.codes))
        for code, at in zip(self.codes, places, strict=True):
            out.text(code.processor)
            for number in (at, len(code.data), _check(code.data)):
                out.number(number)
        out.number(len(self.methods))
        for method, kernels in self.methods:
            self._put_method(out, method, kernels)
        return bytes(out.bytes)

    def _put_method(self, out: Writer, method: Method, kernels: Sequence[PackedKernel]) -> None:
        out.text(method.name)
        out.number(len(method.symbols))
        for symbol in method.symbols:
            out.text(symbol.name)
            out.number(symbol.least)
            out.number(symbol.greatest)
            out.numbers(symbol.value)
        for specs in (method.inputs, method.outputs):
            out.number(len(specs))
            for spec in specs:
                _put_spec(out, spec)
        out.number(len(method.plan_inputs))
        for is_given, number in method.plan_inputs:
            kind = INPUT
            if not is_given:
                is_state, number = self.shared.place_of(method.held[number])
                kind = STATE if is_state else WEIGHT
            out.number(kind)
            out.number(number)
        out.numbers(method.plan_outputs)
        out.number(0)  # results that are copies of something: the plan makes each of them
        out.number(len(method.checks))
        for left, comparison, right in method.checks:
            out.numbers(left)
            out.number(comparison)
            out.numbers(right)
        out.text(json.dumps(method.facts()))
        files = [KernelFile("" if k.code is None else str(k.code), k.symbol, 0) for k in kernels]
        try:
            out.text(method.plan.sized_bytes(files))
        except WireError as error:  # an argument that no file can hold
            raise ExportError(f"{method.name}: {error}") from error


def _put_tensor(out: Writer, name: str, tensor: torch.Tensor) -> None:
    out.text(name)
    out.number(_dtype(tensor.dtype))
    out.numbers(tensor.shape)


def _put_spec(out: Writer, spec: TensorSpec) -> None:
    out.text(spec.name)
    out.number(_dtype(spec.dtype))
    out.number(len(spec.sizes))
    for words in spec.sizes:
        out.numbers(words)


def _dtype(dtype: torch.dtype) -> int:
    return NUMBERS[str(dtype).removeprefix("torch.")]


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _up(x: int, to: int) -> int:
    return -(-x // to) * to


def _check(data: bytes) -> int:
    return _signed(_C.checksum(data))


def block_checksum(block: bytes) -> int:
    """That of a block of weights, as docs/program-file.md defines it, with the bits of a signed
    number."""
    words = np.frombuffer(block + bytes(-len(block) % 8), "<u8")
    x = words ^ _PLACES[: len(words)]
    x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(29)
    return _signed((len(block) + int(x.sum(dtype=np.uint64))) % (1 << 64))


def _blocks(shared: Shared, nbytes: int) -> Iterator[bytes]:
    """The weights' section, in blocks."""
    block = bytearray()
    at = 0
    for k, weight in enumerate(shared.weights):
        data: Any = weight.tensor.reshape(-1).view(torch.uint8).numpy()
        end = shared.weights[k + 1].offset if k + 1 < len(shared.weights) else nbytes
        first = 0
        while at < end:
            room = min(BLOCK - len(block), end - at)
            part = data[first : first + room]
            block += part.tobytes()
            block += bytes(room - len(part))
            first, at = first + room, at + room
            if len(block) == BLOCK:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)


def _blocks_of_file(path: Path, begin: int, nbytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(begin)
        for at in range(0, nbytes, BLOCK):
            yield file.read(min(BLOCK, nbytes - at))


def refuse_path(path: Path) -> None:
    """Raises OSError where no file can be written at `path`, with what to do. It tries, since a
    folder's permissions do not tell of disks that are mounted to be read."""
    folder = path.parent
    if path.is_dir():
        why = "is a folder: give the path of a file in it"
        raise IsADirectoryError(errno.EISDIR, why, str(path))
    if not folder.exists():
        why = f"there is no folder {folder}: make it first, or give another path"
        raise FileNotFoundError(errno.ENOENT, why, str(path))
    if not folder.is_dir():
        why = f"{folder} is a file and no folder: give another path"
        raise NotADirectoryError(errno.ENOTDIR, why, str(path))
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"no file can be written in {folder} ({error.strerror}): give another path"
        raise type(error)(error.errno, why, str(path)) from error


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which has its name once it is whole."""
    handle, made = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made, 0o666 & ~mask)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
