"""A systolic-array accelerator as a target: products on the array, loops on its host core.

    TENON_TARGET=examples/gemmini/gemmini.py:Gemmini TENON_EXECUTE=compiled python script.py

The machine is simulated by a library (gemmini.cpp), which is built when it is first needed.
README.md has the design and its figures.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import torch_tenon
from torch_tenon import _C
from torch_tenon.compiler.backend import KernelFile, PackedCode, PackedKernel
from torch_tenon.compiler.kernel import origin_of
from torch_tenon.ir.index import product
from torch_tenon.targets.c_family.generate import loop_tree
from torch_tenon.targets.c_family.layout import Layout
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import headers
from torch_tenon.targets.cpu.dialect import CWriter
from torch_tenon.targets.cpu.handwritten import ENTRY
from torch_tenon.targets.cpu.products import CProduct
from torch_tenon.targets.library import LibraryTarget
from torch_tenon.targets.target import CompileError, TargetError

if TYPE_CHECKING:
    from torch_tenon.compiler.handwritten import Asked, Code, Launch
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.plan import Plan
    from torch_tenon.compiler.schedule import Group, Schedule
    from torch_tenon.ir.index import Index
    from torch_tenon.ir.values import Buffer

HERE = Path(__file__).resolve().parent
TEMPLATES = Path(torch_tenon.__file__).parent / "targets" / "cpu" / "templates"
PEAK = 16 * 16  # multiplications a cycle


def build() -> Path:
    """The simulator's library, in a temporary directory of the user's, made anew where a source
    has changed. Raises TargetError without g++."""
    sources = [*(HERE / n for n in ("gemmini.cpp", "sequencer.h", "machine.h"))]
    headers = [HERE.parents[1] / "include" / "tenon.h", TEMPLATES / "matmul.h"]
    text = b"".join(path.read_bytes() for path in [*sources, *headers])
    folder = Path(tempfile.gettempdir()) / f"gemmini-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise TargetError(f"{folder} belongs to somebody else")
    made = folder / f"{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not made.exists():
        new = made.with_suffix(f".{os.getpid()}")
        command = ["g++", "-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(new)]
        command += [f"-I{path.parent}" for path in headers]
        try:
            subprocess.run([*command, str(sources[0])], check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise TargetError("the simulator needs g++ to be built") from None
        except subprocess.CalledProcessError as error:
            raise TargetError(f"g++ does not build the simulator:\n{error.stderr}") from None
        new.rename(made)
    return made


class Multiply(CProduct):
    """A product by the array: the number before those of the kernel is its port."""

    declared, driver = "", "((void *const *)s[-1])[0]"


# A kernel of one of the array's own functions, for custom ops.
INT8_PRODUCT = """#include <stdint.h>
void @NAME@(void *const *a, const int64_t *s, int64_t *status) {
  ((void (*)(void *const *, const int64_t *, int64_t *))((void *const *)s[-1])[1])(a, s, status);
}
"""


class Backend(CpuBackend):
    """C for the host core, one thread of it, which asks the array for products."""

    name = "gemmini"
    library = frozenset()
    narrow_rows = 0
    four_bit_block = 0

    def __init__(self, native: _C.TargetLibrary) -> None:
        super().__init__()
        self.native = native

    @functools.cached_property
    def product_dtypes(self) -> frozenset[torch.dtype]:  # type: ignore[override]
        """The array has no 16-bit numbers."""
        return frozenset((torch.float32,))

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """A function in C, with the core's operations and bytes before its numbers."""
        members = [m for m in group.members if m.node.kind != "matmul"]
        if len(members) < len(group.members):
            made = Multiply(group, kept).kernel()
            work = sum(len(m.node.trace) for m in members) * product(
                s.extent for s in group.symbols()
            )
            costs = [work, made.bytes_moved if members else 0]
        else:
            layout = Layout(group, kept)
            tree = loop_tree(group, kept, layout)
            writer = CWriter(tree, 0)
            source = writer.function(origin_of(members))
            made = writer.made(source, group, kept, tree.numbers, layout.kind, layout.work)
            costs = [layout.work, made.bytes_moved]
        made.sizes = [*costs, *made.sizes]
        return made

    def batches(
        self, order: Schedule, kernels: Sequence[Kernel | None]
    ) -> list[tuple[Group, Kernel | None]]:
        """One core gains nothing from several kernels at once."""
        return list(zip(order.groups, kernels, strict=True))

    def handwritten(self, code: Code) -> str:
        """C for the host core, or the array's product of bytes by its name."""
        return INT8_PRODUCT if code.text == "int8_product" else super().handwritten(code)

    def launch_words(self, launch: Launch) -> list[Index | Asked]:
        """Nobody knows the costs of what somebody wrote."""
        return [0, 0, *super().launch_words(launch)]

    def compile(self, kernels: Sequence[Kernel]) -> list[int]:
        """Functions of this process: the host core is this one's."""
        found = iter(self.compiler.functions([k.source for k in kernels if _is_ours(k)]))
        return [
            next(found) if _is_ours(k) else self.compiler.function(k.source, ENTRY) for k in kernels
        ]

    def files(self, kernels: Sequence[Kernel]) -> list[KernelFile] | None:
        """Shared objects."""
        return self.compiler.files([self._name(k) for k in kernels])

    def pack(
        self, kernels: Sequence[Kernel], processors: Sequence[str], machine: str | None
    ) -> tuple[list[PackedCode], list[PackedKernel]]:
        """One shared object, for the simulator's library to load on this machine."""
        if processors or machine is not None:
            raise ValueError("the host core of the simulated machine is this processor")
        if not all(map(_is_ours, kernels)):
            raise NotImplementedError("kernels written by hand in a program for gemmini")
        names = [self.compiler.symbol(k.source) for k in kernels]
        sources = {n: k.source.replace("@NAME@", n) for n, k in zip(names, kernels, strict=True)}
        bodies = list(sources.values())
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / "unit.c"
            unit.write_text("\n".join([*headers("".join(bodies)), *bodies]))
            made = unit.with_suffix(".so")
            process = self.compiler.toolchain.compile(unit, made, len(sources), False)
            errors = process.communicate()[1].decode(errors="replace")
            if process.returncode != 0:
                raise CompileError(f"the C compiler failed:\n{errors}")
            code = PackedCode("source", made.read_bytes())
        return [code], [PackedKernel(None, name) for name in names]

    def open_files(self) -> bool:
        """By the simulator's library."""
        _C.use_library_kernel_files(self.native)
        return True

    def identity(self) -> str:
        """The host core's compiler."""
        return f"gemmini\n{super().identity()}"

    def tune(self, plan: Plan) -> bytes:
        """There is one way to multiply."""
        return b""

    def work_in_background(self) -> None:
        """Nothing is begun."""

    def set_up(self) -> list[str]:
        """Nothing is needed by many programs."""
        return []

    def _name(self, kernel: Kernel) -> str:
        if _is_ours(kernel):
            return self.compiler.symbol(kernel.source)
        return self.compiler.name_by_hand(kernel.source, ENTRY)


def _is_ours(kernel: Kernel) -> bool:
    """Whether nobody else wrote the source, which is compiled with others then."""
    return kernel.code is None or kernel.source is INT8_PRODUCT


def int_mm(a: torch.Tensor, b: torch.Tensor) -> Any:
    """The product of two matrices of bytes, in 32 bits, as `aten::_int_mm` is."""
    if a.dtype is not torch.int8 or b.dtype is not torch.int8 or a.dim() != 2 or b.dim() != 2:
        return NotImplemented
    if a.shape[1] != b.shape[0]:
        return NotImplemented  # the host's kernel has the words
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=torch.int32, device=a.device)
    kernel = torch_tenon.target().int8_product.address()
    torch_tenon.launch(kernel, [out, a, b], [0, 0, m, n, k, *a.stride(), *b.stride()])
    return out


class Counters(ctypes.Structure):
    """What the machine has counted; machine.h says what each is."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("cycles", "load", "execute", "store", "multiplications", "products", "host")
    ] + [("calls", ctypes.c_int64)]

    @property
    def utilization(self) -> float:
        """The products' part of the array's peak."""
        return self.multiplications / PEAK / self.cycles if self.cycles else 0.0


class Gemmini(LibraryTarget):
    """One simulated machine. Raises TargetError where the simulator is not built."""

    library = {"aten::_int_mm": int_mm}  # noqa: RUF012

    def __init__(self) -> None:
        self.path = path = build()
        super().__init__(path)
        self.int8_product = self.native.load(b"", "int8_product")
        self.backend = Backend(self.native)
        self._counters = ctypes.CDLL(str(path)).gemmini_counters

    def counted(self, reset: bool = True) -> Counters:
        """The counters since they were reset, when all that was asked for has run."""
        torch.accelerator.synchronize()
        found = Counters()
        self._counters(ctypes.byref(found), int(reset))
        return found
