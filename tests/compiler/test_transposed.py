"""Transposed reads, whose tiles are turned in the cache: element sizes, whole and cut tiles."""

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

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool]


@pytest.mark.parametrize("shape", [(64, 96), (40, 72), (33, 100), (3, 64, 50)], ids=str)
def test_transposed_reads(shape: tuple[int, ...], tmp_path: Path) -> None:
    def f(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [
            g
            for x, y in zip(tensors[::2], tensors[1::2], strict=True)
            for g in ((x.mT + y).contiguous(), (x + y.mT).contiguous())
        ]

    inputs = []
    for dtype in DTYPES:
        x = (torch.randn(shape) * 5).to(dtype)
        inputs += [x, (torch.randn(shape).mT * 5).to(dtype).contiguous()]
    module = make_fx(f, decompositions(), tracing_mode="fake")(*inputs)
    plan = Plan(build(module).program, CpuBackend(CpuCompiler(Cache(tmp_path)))).compile()
    assert any("turn_" in s for s in plan.sources)
    torch.testing.assert_close(plan.run(inputs), f(*inputs))
