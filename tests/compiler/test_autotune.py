"""Every candidate multiplies matrices; the choice is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torch_tenon.compiler.autotune import Tuner
from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.cpu_compiler import CpuCompiler


@pytest.mark.parametrize("shape", [(1, 1, 1), (13, 31, 5), (14, 32, 256), (230, 70, 300)])
@pytest.mark.parametrize("transposed", [False, True])
def test_candidates(shape: tuple[int, int, int], transposed: bool, tmp_path: Path) -> None:
    m, n, k = shape
    x = torch.randn(k, m).t() if transposed else torch.randn(m, k)
    y = torch.randn(n, k).t() if transposed else torch.randn(k, n)
    tuner = Tuner(CpuCompiler(Cache(tmp_path / "cache")))
    for name, multiply in tuner.candidates(x, torch.empty(m, n)).items():
        out = torch.full((m, n), torch.nan)
        multiply(x, y, out)
        torch.testing.assert_close(out, x @ y, rtol=1e-4, atol=1e-4, msg=name)


def test_the_choice_outlives_the_process(tmp_path: Path) -> None:
    x, y, out = torch.randn(128, 128), torch.randn(128, 128), torch.empty(128, 128)
    first, second = (Tuner(CpuCompiler(Cache(tmp_path / "cache"))) for _ in range(2))
    for tuner in (first, second):
        torch.testing.assert_close(tuner.mm(x, y, out=out), x @ y, rtol=1e-4, atol=1e-4)
    assert first.chosen == second.chosen and len(first.chosen) == 1
    assert len(list((tmp_path / "cache").glob("mm-*.json"))) == 1
