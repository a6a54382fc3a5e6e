"""A vector machine with a scratchpad of 64 KiB that a DMA engine fills, and its generator.

    TENON_TARGET=examples/scratchpad/scratchpad.py:Scratchpad python script.py

The vector unit reads the scratchpad. So a kernel copies what its loops read there, in tiles, and
starts the copy of a tile before it computes the one before. machine.c counts the cycles; README.md
has figures.
"""

from __future__ import annotations

import ctypes
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torch_tenon import config
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.kernel import origin_of
from torch_tenon.compiler.loops.double_buffer import double_buffer
from torch_tenon.compiler.loops.lower import axes, lower, read_later
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.stage import stage
from torch_tenon.compiler.loops.tile import as_lanes
from torch_tenon.compiler.loops.tree import (
    Array,
    Check,
    CopyBlock,
    Declare,
    For,
    If,
    Load,
    Statement,
    Store,
    Tree,
    Wait,
)
from torch_tenon.compiler.memory import aligned
from torch_tenon.ir.index import product
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import extreme
from torch_tenon.targets.cpu import CpuTarget
from torch_tenon.targets.cpu.compiler import default_compiler
from torch_tenon.targets.cpu.dialect import CWriter
from torch_tenon.targets.target import CompilerMissing

if TYPE_CHECKING:
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.schedule import Group

SOURCE = Path(__file__).with_name("machine.c")
# What machine.c has for kernels.
DECLARED = [
    "extern char machine_scratch[];",
    "void machine_spend(int64_t, int64_t, int64_t, int64_t);",
    "void machine_wait(void *);",
    "void machine_start(void *, void *, int64_t, int64_t, const void *, int64_t, int64_t, int64_t,"
    " int64_t, int64_t);",
]


class VectorWriter(CWriter):
    """C for the machine: `offsets` says where arrays lie in the scratchpad."""

    spaces = {"global": "", "private": "", "scratch": ""}  # noqa: RUF012

    def __init__(self, tree: Tree, offsets: dict[Array, int]) -> None:
        super().__init__(tree, 0)
        self.offsets = offsets

    def sizes(self) -> list[str]:
        """The machine's functions as well."""
        return [*DECLARED, *super().sizes()]

    def body(self, statements: Sequence[Statement]) -> list[str]:
        """What stands outside of lanes is counted here, a statement for each number."""
        lines = super().body(statements)
        return lines if self.in_lanes else [*_spent("1", statements), *lines]

    def _for(self, s: For) -> list[str]:
        if s.kind != "lane":
            return super()._for(s)
        start, stop = (
            extreme(list(map(self.index, e)), sign) for e, sign in ((s.starts, ">"), (s.stops, "<"))
        )
        return [*_spent(f"{stop} - {start}", s.body), *super()._for(s)]

    def _declare(self, s: Declare) -> list[str]:
        if s.array.space != "scratch":
            return super()._declare(s)
        ctype, name = c.MEMORY[s.array.dtype], self._new(s.array, s.array.label)
        return [f"{ctype} *const {name} = ({ctype} *)(machine_scratch + {self.offsets[s.array]});"]

    def _copyblock(self, s: CopyBlock) -> list[str]:
        numbers = [
            f"&{self._element(s.memory, s.index)}",
            *map(self.index, s.strides),
            f"&{self._element(s.source, s.source_index)}",
            *map(self.index, s.source_strides),
            *(extreme(list(map(self.index, e)), "<") for e in (s.rows, s.columns)),
            str(s.source.dtype.itemsize),
        ]
        started = f"machine_start({self.names[s.memory]}, {', '.join(numbers)});"
        return [started] if s.asynchronous else [started, *self._wait(Wait(s.memory))]

    def _wait(self, s: Wait) -> list[str]:
        return [f"machine_wait({self.names[s.memory]});"]


def _spent(count: str, statements: Sequence[Statement]) -> list[str]:
    """What plain statements take for so many numbers."""
    plain = [s for s in statements if not isinstance(s, For | If | Declare | CopyBlock | Wait)]
    alone = sum(isinstance(s, Load) and isinstance(s.memory, Buffer) for s in plain)
    stores = [s.memory for s in plain if isinstance(s, Store) and isinstance(s.memory, Buffer)]
    written = sum(memory.dtype.itemsize for memory in stores)
    return [f"machine_spend({count}, {len(plain)}, {alone}, {written});"] if plain else []


class VectorBackend(Backend):
    """Kernels of the vector unit; products of matrices are the host's."""

    name = "scratchpad"
    capabilities = Capabilities(spaces={"scratch": 1 << 16})

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """Loops over tiles, the next of which is copied while one is computed."""
        capacity = self.capabilities.spaces["scratch"]
        rows, left = self._rows(group, kept, capacity // 4)
        inner = [axes(group)[s] for s in group.inner]
        tree = place_values(keep_rows(lower(group, kept), rows, inner, space="scratch"))
        tree = double_buffer(stage(tree, "scratch", (capacity - capacity // 4 + left) // 2))
        tree = as_lanes(tree, lambda loop: not any(isinstance(s, Check) for s in loop.body))
        writer = VectorWriter(tree, self.capabilities.addresses(tree, "scratch"))
        work = product(s.extent for s in group.symbols())
        source = writer.function(origin_of(group.members))
        return writer.made(source, group, kept, {}, "tiles", work)

    def _rows(self, group: Group, kept: set[Buffer], room: int) -> tuple[list[Buffer], int]:
        """Rows that one pass writes and the next reads, as far as there is room for them; and what
        is left of that."""
        length, found = product(s.extent for s in group.inner), []
        for b in read_later(group):
            nbytes = aligned(length * b.dtype.itemsize) if isinstance(length, int) else room + 1
            if b not in kept and nbytes <= room:
                found.append(b)
                room -= nbytes
        return found, room

    def compile(self, kernels: Sequence[Kernel]) -> list[int]:
        """Functions of this process, which call the machine's."""
        return list(default_compiler().functions([k.source for k in kernels]))


class Counters(ctypes.Structure):
    """What the machine has counted; machine.c says what each is."""

    _fields_ = [
        (name, ctypes.c_int64) for name in ("cycles", "waiting", "copying", "copies", "alone")
    ]


class Scratchpad(CpuTarget):
    """One simulated machine on the host's memory. Raises CompilerMissing without a C compiler."""

    name = "scratchpad"

    def __init__(self) -> None:
        super().__init__()
        self.backend = VectorBackend()
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "machine.so"
            command = [*shlex.split(config.CC.read() or "cc"), "-O2", "-shared", "-fPIC"]
            try:
                subprocess.run([*command, "-o", str(made), str(SOURCE)], check=True)
            except FileNotFoundError:
                raise CompilerMissing(
                    "the machine is simulated in C: apt-get install gcc"
                ) from None
            # Kernels find its functions by name.
            self._machine = ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)

    def counted(self) -> Counters:
        """The counters since they were asked for, when all that was asked for has run."""
        torch.accelerator.synchronize()
        found = Counters()
        self._machine.machine_counted(ctypes.byref(found))
        return found
