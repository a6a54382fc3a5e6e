"""A machine with a scratchpad of 64 KiB that a DMA engine fills, and its generator.

    TENON_TARGET=examples/scratchpad/scratchpad.py:Scratchpad python script.py

A vector unit and a matrix unit read the scratchpad. So a kernel copies what its loops read there,
in tiles, and starts the copy of a tile before it computes the one before. machine.c counts the
cycles; README.md has figures.
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
from torch_tenon.compiler.capabilities import Capabilities, Tiles
from torch_tenon.compiler.kernel import operand_bytes, origin_of
from torch_tenon.compiler.loops.double_buffer import double_buffer
from torch_tenon.compiler.loops.lower import axes, lower, read_later
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.stage import stage
from torch_tenon.compiler.loops.tile import as_lanes
from torch_tenon.compiler.loops.tile_product import pieces, tile_product, tiles_for
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
    TileProduct,
    Tree,
    Wait,
)
from torch_tenon.compiler.memory import aligned
from torch_tenon.ir.index import product
from torch_tenon.ir.program import Matmul
from torch_tenon.ir.values import Buffer, size_hint
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import extreme
from torch_tenon.targets.c_family.fusion import epilogue_problem
from torch_tenon.targets.cpu import CpuTarget
from torch_tenon.targets.cpu.compiler import default_compiler
from torch_tenon.targets.cpu.dialect import CWriter
from torch_tenon.targets.target import CompilerMissing

if TYPE_CHECKING:
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.schedule import Group, Member
    from torch_tenon.ir.program import Loop

SOURCE = Path(__file__).with_name("machine.c")
# What machine.c has for kernels.
DECLARED = [
    "extern char machine_scratch[], machine_sums[];",
    "void machine_spend(int64_t, int64_t, int64_t, int64_t);",
    "void machine_wait(void *);",
    "void machine_start(void *, void *, int64_t, int64_t, const void *, int64_t, int64_t, int64_t,"
    " int64_t, int64_t, int64_t, int64_t);",
    "void machine_multiply(void *, int64_t, int64_t, const void *, int64_t, int64_t, const void *,"
    " int64_t, int64_t, int64_t, int64_t, int64_t);",
]
SIDE = 16  # of the matrix unit's tiles of sums
# Memory of the machine's own, by its space.
MEMORY = {"scratch": "machine_scratch", "accumulator": "machine_sums"}


class VectorWriter(CWriter):
    """C for the machine: `offsets` says where arrays lie in the scratchpad."""

    spaces = dict.fromkeys(("global", "private", *MEMORY), "")

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
        if s.array.space not in MEMORY:
            return super()._declare(s)
        ctype, name = c.MEMORY[s.array.dtype], self._new(s.array, s.array.label)
        place = f"{MEMORY[s.array.space]} + {self.offsets[s.array]}"
        return [f"{ctype} *const {name} = ({ctype} *)({place});"]

    def _copyblock(self, s: CopyBlock) -> list[str]:
        numbers = [
            f"&{self._element(s.memory, s.index)}",
            *map(self.index, s.strides),
            f"&{self._element(s.source, s.source_index)}",
            *map(self.index, s.source_strides),
            *(extreme(list(map(self.index, e)), "<") for e in (s.rows, s.columns)),
            str(s.source.dtype.itemsize),
            *map(self.index, s.filled or (0, 0)),
        ]
        started = f"machine_start({self.names[s.memory]}, {', '.join(numbers)});"
        return [started] if s.asynchronous else [started, *self._wait(Wait(s.memory))]

    def _wait(self, s: Wait) -> list[str]:
        return [f"machine_wait({self.names[s.memory]});"]

    def _tileproduct(self, s: TileProduct) -> list[str]:
        numbers = [
            f"&{self._element(s.memory, s.index)}",
            *map(self.index, s.strides),
            f"&{self._element(s.left, s.left_index)}",
            *map(self.index, s.left_strides),
            f"&{self._element(s.right, s.right_index)}",
            *map(self.index, s.right_strides),
            self.index(s.before),
            str(s.sizes[2]),
            str(s.left.dtype.itemsize),
        ]
        return [f"machine_multiply({', '.join(numbers)});"]


# What takes no cycles, or takes them by itself.
COUNTED = (For, If, Declare, CopyBlock, Wait, TileProduct)


def _spent(count: str, statements: Sequence[Statement]) -> list[str]:
    """What plain statements take for so many numbers."""
    plain = [s for s in statements if not isinstance(s, COUNTED)]
    alone = sum(isinstance(s, Load) and isinstance(s.memory, Buffer) for s in plain)
    stores = [s.memory for s in plain if isinstance(s, Store) and isinstance(s.memory, Buffer)]
    written = sum(memory.dtype.itemsize for memory in stores)
    return [f"machine_spend({count}, {len(plain)}, {alone}, {written});"] if plain else []


class ScratchpadBackend(Backend):
    """Kernels of the vector unit, and of the matrix unit with what is fused with its products."""

    name = "scratchpad"
    capabilities = Capabilities(
        spaces={"scratch": 1 << 16, "accumulator": 1 << 16},
        tiles=(
            Tiles(SIDE, SIDE, 16, torch.float32, torch.float32),
            Tiles(SIDE, SIDE, 16, torch.bfloat16, torch.float32),
            Tiles(SIDE, SIDE, 64, torch.int8, torch.int32),
        ),
    )
    product_dtypes = frozenset(t.operands for t in capabilities.tiles)

    def fusion_problem(self, members: Sequence[Member]) -> str | None:
        """What cannot be computed of a piece of a product."""
        return epilogue_problem(members)

    def prologue_problem(self, loop: Loop, product: Matmul) -> str | None:
        """What would be computed so often that its memory costs less."""
        tiles = tiles_for(product, self.capabilities)
        if tiles is None:
            return "no product of the matrix unit"
        piece = next(pieces(product, [loop], tiles, self.capabilities), None)
        if piece is None:
            return "an operand that has no room beside what it is computed of"
        *_, m, n = product.out.sizes
        often = 0
        if product.left.buffer is loop.buffer:
            often += -(-size_hint(n) // piece.columns)
        if product.right.buffer is loop.buffer:
            often += -(-size_hint(m) // piece.rows)
        # A vector's statements, or these once, and bytes that cross the bus to memory and back.
        statements, nbytes = len(loop.trace) + 1, loop.buffer.dtype.itemsize
        more = often * statements - (statements + 2 * nbytes)
        return "an operand that takes longer to compute each time" if more > 0 else None

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """Loops over tiles, the next of which is copied while one is computed."""
        products = [m.node for m in group.members if isinstance(m.node, Matmul)]
        tree = (self._products if products else self._loops)(group, kept)
        tree = as_lanes(tree, lambda loop: not any(isinstance(s, Check) for s in loop.body))
        offsets = {a: n for s in MEMORY for a, n in self.capabilities.addresses(tree, s).items()}
        writer = VectorWriter(tree, offsets)
        work = product(s.extent for s in group.symbols())
        source = writer.function(origin_of(group.members))
        made = writer.made(source, group, kept, {}, "tiles", work)
        made.bytes_moved += sum(operand_bytes(node, group.prologue) for node in products)
        return made

    def _products(self, group: Group, kept: set[Buffer]) -> Tree:
        return tile_product(group, kept, self.capabilities, double_buffer)

    def _loops(self, group: Group, kept: set[Buffer]) -> Tree:
        capacity = self.capabilities.spaces["scratch"]
        rows, left = self._rows(group, kept, capacity // 4)
        inner = [axes(group)[s] for s in group.inner]
        tree = place_values(keep_rows(lower(group, kept), rows, inner, space="scratch"))
        return double_buffer(stage(tree, "scratch", (capacity - capacity // 4 + left) // 2))

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


COUNTERS = ("cycles", "waiting", "copying", "copies", "alone", "multiplying")


class Counters(ctypes.Structure):
    """What the machine has counted; machine.c says what each is."""

    _fields_ = [(name, ctypes.c_int64) for name in COUNTERS]


class Scratchpad(CpuTarget):
    """One simulated machine on the host's memory. Raises CompilerMissing without a C compiler."""

    name = "scratchpad"

    def __init__(self) -> None:
        super().__init__()
        self.backend = ScratchpadBackend()
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
