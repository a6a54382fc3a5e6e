"""The cpu target's part of the compiler: C with OpenMP, by the system's compiler."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_tenon.compiler.backend import KernelFile, PackedCode, PackedKernel
from torch_tenon.targets.c_family.backend import MANY_ELEMENTS, PIECE, CFamilyBackend
from torch_tenon.targets.cpu.library import LIBRARY

if TYPE_CHECKING:
    from torch_tenon.compiler.bounded import CacheCounts
    from torch_tenon.compiler.handwritten import Code
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.plan import Plan
    from torch_tenon.compiler.schedule import Group, Schedule
    from torch_tenon.ir.values import Buffer
    from torch_tenon.targets.cpu.autotune import Tuner
    from torch_tenon.targets.cpu.compiler import CpuCompiler

FEW_ROWS = 32  # too few to share out between threads
MANY_COLUMNS = 1024  # enough for each thread to have lanes of its own


class CpuBackend(CFamilyBackend):
    """Kernels in C for the host; see `generate.py` and `products.py`.

    `compiler` is the one of the settings where none is given.
    """

    name = "cpu"
    library = LIBRARY
    multiplies_windows = True
    narrow_rows = 8

    def __init__(self, compiler: CpuCompiler | None = None) -> None:
        self._compiler = compiler
        self._in_background = False

    @property
    def compiler(self) -> CpuCompiler:
        """What compiles the kernels."""
        from torch_tenon.targets.cpu.compiler import default_compiler

        return self._compiler or default_compiler()

    @functools.cached_property
    def tuner(self) -> Tuner:
        """What chooses among the ways to multiply; the kernels ask it from now on."""
        from torch_tenon.targets.cpu.autotune import Tuner

        return Tuner(self.compiler).install()

    @functools.cached_property
    def four_bit_block(self) -> int:  # type: ignore[override]
        """As PyTorch's kernels for this processor pack them."""
        import torch

        return {"AVX512": 64, "AVX2": 32}.get(torch.backends.cpu.get_cpu_capability(), 0)

    def piece_length(self, rows: int, length: int, rows_lie_dense: bool) -> int:
        """Pieces where threads or lanes would have too little to share out between them."""
        few_columns = rows_lie_dense and rows < MANY_COLUMNS and rows * PIECE <= length * 4
        if length < MANY_ELEMENTS or not (rows < FEW_ROWS or few_columns):
            return 0
        return PIECE

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """A function in C."""
        from torch_tenon.targets.cpu.generate import generate
        from torch_tenon.targets.cpu.products import generate_product

        products = [m.node.buffer.dtype for m in group.members if m.node.kind == "matmul"]
        for dtype in products:
            if dtype not in self.product_dtypes:
                raise NotImplementedError(f"the target {self.name!r} has no product of {dtype}")
        return (generate_product if products else generate)(group, kept)

    def batches(
        self, order: Schedule, kernels: Sequence[Kernel | None]
    ) -> list[tuple[Group, Kernel | None]]:
        """Equal small kernels as one, whose threads share out the tensors."""
        from torch_tenon.compiler.batch import batches

        return batches(order, kernels)

    def compile(self, kernels: Sequence[Kernel]) -> list[int]:
        """Addresses of functions of this process."""
        from torch_tenon.targets.cpu.handwritten import ENTRY
        from torch_tenon.targets.cpu.products import WINDOWS
        from torch_tenon.targets.target import CompileError

        generated = [k.source for k in kernels if k.code is None]
        found = iter(self.compiler.functions(generated))
        if any(k.layout == "matmul" for k in kernels):
            _ = self.tuner
        if any(WINDOWS in k.source for k in kernels) and not self.tuner.driver():
            raise CompileError("a product of windows without the driver of matrix products")
        return [
            next(found) if k.code is None else self.compiler.function(k.source, ENTRY)
            for k in kernels
        ]

    def handwritten(self, code: Code) -> str:
        """C, with a function around it that takes pointers and numbers."""
        from torch_tenon.targets.cpu.handwritten import with_launch

        return with_launch(code)

    def tune(self, plan: Plan) -> bytes:
        """Runs each product once, so that it finds its fastest way; gives what was chosen."""
        import torch

        from torch_tenon import _C

        products = [s for s in plan.steps if s.kernel is not None and s.kernel.layout == "matmul"]
        if not products:
            return b""

        def run() -> None:
            # What is no index or has no memory is told by the run that matters.
            with contextlib.suppress(IndexError, RuntimeError):
                plan.run_alone(products)

        if not self._in_background:
            return _C.noted_matmul_choices(run, len(plan.kernels))
        # Beside programs that use all processors, threads wait for one another without end: the
        # ways are timed on one thread, and their order is taken for that of several.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        _C.set_threads_of_choices(threads)
        try:
            return _C.noted_matmul_choices(run, len(plan.kernels))
        finally:
            _C.set_threads_of_choices(0)
            torch.set_num_threads(threads)

    def work_in_background(self) -> None:
        """One run of the C compiler less at once than there are processors. Nearly every program
        multiplies matrices."""
        self._in_background = True
        self.compiler.most_at_once = max(1, self.compiler.most_at_once - 1)
        self.tuner.begin()

    def set_up(self) -> list[str]:
        """The driver of products, which nearly every program needs and which takes a second and a
        half to compile."""
        from torch_tenon.targets.cpu.autotune import DRIVER
        from torch_tenon.targets.cpu.compiler import set_up

        return [f"the driver of matrix products, in {set_up([DRIVER], self.compiler.toolchain)}"]

    def files(self, kernels: Sequence[Kernel]) -> list[KernelFile] | None:
        """Shared objects; what multiplies comes last, if there is a product."""
        from torch_tenon.targets.cpu.autotune import DRIVER
        from torch_tenon.targets.cpu.handwritten import ENTRY

        compiler = self.compiler
        names = [
            compiler.symbol(k.source) if k.code is None else compiler.name_by_hand(k.source, ENTRY)
            for k in kernels
        ]
        if any(k.layout == "matmul" for k in kernels) and self.tuner.driver():
            names.append(compiler.symbol(DRIVER))
        return compiler.files(names)

    def pack(
        self, kernels: Sequence[Kernel], processors: Sequence[str], machine: str | None
    ) -> tuple[list[PackedCode], list[PackedKernel]]:
        """A shared object for each processor; none of them needs another library than C's."""
        from torch_tenon.targets.cpu.packing import pack

        return pack(kernels, processors, machine, self.compiler.toolchain)

    def open_files(self) -> bool:
        """By the system's loader."""
        from torch_tenon import _C

        _C.use_kernel_files()
        return True

    def identity(self) -> str:
        """The compiler, its flags, the processor, the runtime of its threads and how PyTorch packs
        weights."""
        return f"{self.compiler.toolchain.identity}\n{self.four_bit_block}"

    def caches(self) -> list[CacheCounts]:
        """The ways that were chosen for products."""
        from torch_tenon import _C
        from torch_tenon.compiler.bounded import CacheCounts

        return [CacheCounts("ways to multiply", *_C.matmul_choices())]

    def stop(self) -> None:
        """Ends the compilers that run."""
        from torch_tenon.targets.cpu import toolchain

        toolchain.stop()


@functools.cache
def cpu_backend() -> CpuBackend:
    """The one of this process: the tuner that kernels ask is the process's too."""
    return CpuBackend()
