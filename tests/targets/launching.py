"""Targets whose library launches a kernel for an op, for tests: `aten::mm` is a sum there."""

import functools

import torch
from clocked import ClockedTarget
from faulty import FaultyTarget
from late import LateTarget

import torch_tenon
from torch_tenon.compiler.handwritten import Code, Parameter, kernel_of
from torch_tenon.targets.cpu.backend import CpuBackend, cpu_backend

SOURCE = """
#include <stdint.h>
void add(float *out, const float *x, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (y ? y[i] : 1);
}
"""


@functools.cache
def kernel() -> int:
    """Adds two tensors, or 1 where the second is none."""
    tensor = Parameter(torch.float32, True)
    code = Code("cpu", SOURCE, "add", (tensor, tensor, tensor, Parameter(torch.int64, False)))
    return cpu_backend().compile([kernel_of(code, cpu_backend())])[0]


def add(
    out: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor | None = None,
    writes: list[int] | None = None,
) -> torch.Tensor:
    """Launches that."""
    torch_tenon.launch(kernel(), [out, x, y], [out.numel()], writes=writes)
    return out


def waits() -> dict[str, int]:
    """How often the host waited, by what for."""
    return {k: n for k, n in torch_tenon.counters().items() if k.startswith("wait")}


class WithoutProducts(CpuBackend):
    """Kernels of loops alone."""

    product_dtypes = frozenset()


def batch_norm(
    x: torch.Tensor, weight: object, bias: object, mean: torch.Tensor, *rest: object
) -> object:
    """Adds 1 to the running mean, which the op writes; by the host where there is a weight."""
    if weight is not None:
        return NotImplemented
    add(mean, mean)
    return x + 0, x.new_empty(0), x.new_empty(0)


class Launching:
    """Of a target."""

    library = {  # noqa: RUF012
        "aten::mm": lambda x, y: add(torch.empty_like(x), x.contiguous(), y.contiguous()),
        "aten::native_batch_norm": batch_norm,
    }

    def __init__(self) -> None:
        super().__init__()
        self.backend = WithoutProducts()


class LateLaunching(Launching, LateTarget):
    """On one that begins when the host waits."""


class FaultyLaunching(Launching, FaultyTarget):
    """On one that fails when it is told to."""


class ClockedLaunching(Launching, ClockedTarget):
    """On one with a clock."""
