"""Targets whose kernels have no float64: one on the host's memory, one on memory of its own."""

import torch
from asynchronous import AsynchronousTarget
from tree import TreeBackend, TreeTarget

from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.targets.cpu.backend import CpuBackend

WITHOUT = Capabilities(
    storage=frozenset({torch.float32, torch.int64, torch.bool, torch.bfloat16}),
    arithmetic=frozenset({torch.float32, torch.int64, torch.bool}),
)


class NarrowTrees(TreeBackend):
    """Loop trees."""

    capabilities = WITHOUT


class NarrowKernels(CpuBackend):
    """Kernels in C."""

    capabilities = WITHOUT


class OnHost(TreeTarget):
    """The host's memory."""

    backend = NarrowTrees()


class Apart(AsynchronousTarget):
    """Memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.backend = NarrowKernels()
