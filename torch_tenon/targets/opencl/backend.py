"""The opencl target's part of the compiler: OpenCL C, built by the driver."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_tenon.compiler.backend import KernelFile, PackedCode, PackedKernel
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.targets.c_family.backend import MANY_ELEMENTS, PIECE, CFamilyBackend
from torch_tenon.targets.opencl.device import Shape, atomics_of

if TYPE_CHECKING:
    from torch_tenon import _C
    from torch_tenon.compiler.handwritten import Asked, Code, Launch
    from torch_tenon.compiler.kernel import Kernel
    from torch_tenon.compiler.schedule import Group
    from torch_tenon.ir.index import Index
    from torch_tenon.ir.values import Buffer
    from torch_tenon.targets.opencl.compiler import OpenCLCompiler

ARGUMENT = 16  # bytes of a buffer and its offset; other arguments are taken to be as many bytes


class OpenCLBackend(CFamilyBackend):
    """Kernels in OpenCL C for the device of a context, which a library loads; see `generate.py`."""

    name = "opencl"

    def __init__(self, cl: Any, context: Any, shape: Shape, native: _C.TargetLibrary) -> None:
        self._cl, self._context, self.shape, self._native = cl, context, shape, native
        self.most_buffers = min(40, self.shape.parameters // (2 * ARGUMENT))
        self.capabilities = Capabilities(
            spaces={"shared": shape.local}, atomics=atomics_of(context.devices[0])
        )

    @functools.cached_property
    def compiler(self) -> OpenCLCompiler:
        """What builds the kernels."""
        from torch_tenon.targets.opencl.compiler import OpenCLCompiler

        return OpenCLCompiler(self._cl, self._context, self._native)

    def piece_length(self, rows: int, length: int, rows_lie_dense: bool) -> int:
        """Pieces where work-groups would be too few."""
        few = rows < 16 * self.shape.units
        return PIECE if length >= MANY_ELEMENTS and few else 0

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        """A kernel in OpenCL C."""
        from torch_tenon.targets.opencl.generate import generate
        from torch_tenon.targets.opencl.products import generate_product

        has_product = any(m.node.kind == "matmul" for m in group.members)
        if has_product:
            return generate_product(group, kept, self.shape)
        return generate(group, kept, self.shape, self.capabilities)

    def handwritten(self, code: Code) -> str:
        """OpenCL C, with a kernel around it that takes memory and offsets."""
        from torch_tenon.targets.opencl.handwritten import with_launch

        return with_launch(code)

    def launch_words(self, launch: Launch) -> list[Index | Asked]:
        """How many work-groups, and the numbers."""
        from torch_tenon.targets.opencl.handwritten import words_of

        return words_of(launch)

    def compile(self, kernels: Sequence[Kernel]) -> list[int]:
        """What the library's queue launches kernels by."""
        return self.compiler.handles(kernels)

    def files(self, kernels: Sequence[Kernel]) -> list[KernelFile] | None:
        """The driver's binaries."""
        return self.compiler.files(kernels)

    def pack(
        self, kernels: Sequence[Kernel], processors: Sequence[str], machine: str | None
    ) -> tuple[list[PackedCode], list[PackedKernel]]:
        """Sources, which the driver compiles when a program is loaded: one of all that was
        generated, and one of each kernel that somebody wrote."""
        if processors or machine is not None:
            raise ValueError("kernels in OpenCL C are for no processor: the driver compiles them")
        return self.compiler.packed(kernels)

    def open_files(self) -> bool:
        """By the library."""
        from torch_tenon import _C

        _C.use_library_kernel_files(self._native)
        return True

    def identity(self) -> str:
        """The device, its driver, the options, and what kernels are laid out for."""
        return f"{self.compiler.identity}\n{self.shape}"
