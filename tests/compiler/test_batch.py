"""Equal kernels over different tensors run as one step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler


def update(step: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    """A step of an optimizer with momentum, and a total that needs all of the new tensors."""
    half = len(tensors) // 2
    new, total = [], torch.zeros(())
    for p, m in zip(tensors[:half], tensors[half:], strict=True):
        m = m * 0.9 + p * 0.1
        p = p - m.tanh() * step
        new += [p, m]
    for p in new[::2]:
        total = total + p.sum()
    return [*new, total]


@pytest.mark.parametrize("count", [3, 12])
@pytest.mark.parametrize("shape", [(5,), (64, 128)])
def test_every_tensor_gets_its_own_result(
    count: int, shape: tuple[int, ...], tmp_path: Path
) -> None:
    inputs = [torch.rand(()), *(torch.randn(shape) for _ in range(2 * count))]
    module = make_fx(update, decompositions(), tracing_mode="fake")(*inputs)
    plan = Plan(build(module).program, CpuBackend(CpuCompiler(Cache(tmp_path)))).compile()
    sets = [s.kernel.sets for s in plan.steps if s.kernel is not None]
    # The total may have gone into one of the kernels.
    assert max(sets) >= count - 1 if count > 3 and shape != (5,) else max(sets) == 1
    torch.testing.assert_close(plan.run(inputs), update(*inputs))


@pytest.mark.slow
def test_products_run_one_by_one(tmp_path: Path) -> None:
    def f(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [torch.relu(a @ b) for a, b in zip(tensors[::2], tensors[1::2], strict=True)]

    inputs = [torch.randn(32, 32) for _ in range(20)]
    module = make_fx(f, decompositions(), tracing_mode="fake")(*inputs)
    plan = Plan(build(module).program, CpuBackend(CpuCompiler(Cache(tmp_path)))).compile()
    torch.testing.assert_close(plan.run(inputs), f(*inputs))
