"""Kernels that somebody wrote by hand: their source, and what a launch of one gets.

A backend turns the source into what its `compile` takes (`Backend.handwritten`); the rest of the
way is that of generated kernels: the kernel is a step of a plan, launched as the others are.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torch_tenon.compiler.kernel import Kernel
from torch_tenon.ir.index import Expr, Index
from torch_tenon.ir.values import Storage, Stored

if TYPE_CHECKING:
    from torch_tenon.compiler.backend import Backend
    from torch_tenon.ir.program import Program


class Next(enum.IntEnum):
    """What comes after a step, as a plan knows it ahead of time: the core's `Next`."""

    NOTHING = 0
    """The last step: what follows is not known."""
    DEVICE = 1
    """Another step of the same target."""
    HOST = 2
    """The host computes with what the target has made."""


class Asked(enum.Enum):
    """A number that is known where a launch stands in its plan."""

    NEXT = "next"


@dataclass(frozen=True)
class Parameter:
    """What a kernel takes in one place: memory of a tensor, or a number by value."""

    dtype: torch.dtype
    is_tensor: bool


@dataclass(frozen=True)
class Code:
    """A kernel's source in a target's language; `entry` is what a launch starts.

    `file` and `line` are where the text is from, for messages. `axes` is how many a launch's grid
    has, and `group` how many runs along each are a group, None where that depends on sizes.
    """

    device: str
    text: str
    entry: str
    parameters: tuple[Parameter, ...]
    file: str = ""
    line: int = 1
    axes: int = 0
    group: tuple[int | None, ...] = ()

    def tensors(self) -> int:
        """How many of the parameters are tensors."""
        return sum(p.is_tensor for p in self.parameters)


@dataclass
class Launch:
    """A call of a kernel: tensors and numbers in the order of the parameters of either kind.

    An absent tensor (of an optional argument) is None, and the kernel gets a null pointer.
    """

    code: Code
    tensors: Sequence[Stored | None]
    numbers: Sequence[Index | float | Asked]
    global_size: Sequence[Index] = ()
    local_size: Sequence[Index] = ()

    def words(self) -> list[Index | Asked]:
        """The numbers that the queue's `launch` gets: each parameter's as 64 bits."""
        dtypes = [p.dtype for p in self.code.parameters if not p.is_tensor]
        return [word(n, dtype) for n, dtype in zip(self.numbers, dtypes, strict=True)]

    def kernel(self, program: Program, backend: Backend, origin: str) -> Kernel:
        """The launch as a kernel of a plan for `program`."""
        storages: list[Storage] = [
            program.storage("unused", 0) if t is None else t.buffer.storage for t in self.tensors
        ]
        kernel = kernel_of(self.code, backend, origin)
        kernel.storages, kernel.sizes = storages, backend.launch_words(self)
        kernel.grid, kernel.group = self.global_size, self.local_size
        kernel.bytes_moved = sum(s.nbytes for s in dict.fromkeys(storages))
        return kernel


def kernel_of(code: Code, backend: Backend, origin: str = "") -> Kernel:
    """A kernel to compile, of no launch yet. Raises NotImplementedError where the backend takes no
    source."""
    source = backend.handwritten(code)
    return Kernel(source, [], [], origin or code.entry, 0, "by hand", 0, [], code=code)


def word(number: Index | float | Asked, dtype: torch.dtype) -> Index | Asked:
    """A number as 64 bits: a float's own bits in the lowest ones, an integer as it is."""
    if isinstance(number, Expr | Asked):
        return number
    if dtype is torch.float64:
        return int(struct.unpack("<q", struct.pack("<d", number))[0])
    if dtype is torch.float32:
        return int(struct.unpack("<i", struct.pack("<f", number))[0])
    return int(number)
