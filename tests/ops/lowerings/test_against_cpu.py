"""A short part of the op database; `tests/compiler/op_db.py` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.compiler.op_db import check
from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.cpu_compiler import CpuCompiler

FAMILIES = {
    "pointwise": ["add", "div", "floor_divide", "where", "clamp", "pow", "nn.functional.gelu"],
    "views": ["permute", "cat", "roll", "diagonal", "slice_scatter", "nn.functional.pad"],
    "reductions": ["sum", "amax", "argmax", "var", "softmax", "log_softmax", "cumsum"],
    "normalization": ["nn.functional.layer_norm", "nn.functional.batch_norm"],
    "indexing": ["gather", "scatter_add", "index_put", "index_select", "nn.functional.embedding"],
    "pooling": ["nn.functional.avg_pool2d", "nn.functional.max_pool2d"],
    "linear": ["addmm", "bmm", "nn.functional.conv2d"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str, tmp_path: Path) -> None:
    compiler = CpuCompiler(Cache(tmp_path / "cache"))
    dtypes = [torch.float32, torch.bfloat16, torch.int64]
    report = check(dtypes, 1, FAMILIES[family], compiler)
    assert not report.failed
    assert report.passed >= len(FAMILIES[family])
