"""A short part of the op database; `python -m tests.compiler.op_db` runs all of it."""

from __future__ import annotations

import pytest

from tests.compiler.op_db import DTYPES, check

FAMILIES = {
    "pointwise": ["add", "floor_divide", "where", "pow", "nn.functional.gelu", "special.zeta"],
    "views": ["permute", "cat", "roll", "diagonal", "slice_scatter", "nn.functional.pad"],
    "reductions": ["sum", "argmax", "var", "log_softmax", "cumsum"],
    "normalization": ["nn.functional.layer_norm", "nn.functional.batch_norm"],
    "indexing": ["gather", "scatter_add", "index_put", "index_select", "nn.functional.embedding"],
    "pooling": ["nn.functional.avg_pool2d", "nn.functional.max_pool2d"],
    "linear": ["addmm", "nn.functional.conv2d"],
    "library": ["sort", "linalg.solve"],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    for case in check(FAMILIES[family], DTYPES, 1):
        assert case.status == "right", (case.name, case.dtype, [s.reason for s in case.samples])
        assert not case.fallbacks, (case.name, case.dtype, case.fallbacks)
