"""A short part of the op database; `python -m tests.compiler.op_db` runs all of it."""

from __future__ import annotations

import pytest

FAMILIES = {
    "pointwise": ["floor_divide", "pow", "frexp"],
    "views": ["roll", "repeat", "slice_scatter"],
    "reductions": ["argmax", "cumsum"],
    "normalization": ["nn.functional.layer_norm"],
    "indexing": ["index_put", "scatter_reduce"],
    "pooling": ["nn.functional.max_pool2d", "nn.functional.adaptive_avg_pool2d"],
    "windows": ["nn.functional.fractional_max_pool2d"],
    "search": ["cummax", "masked_scatter", "searchsorted"],
    "bags": ["nn.functional.embedding_bag", "cdist"],
    "grid": ["grid_sampler_3d"],
    "linear": ["addmm"],
    "library": ["sort", "linalg.solve"],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    from tests.compiler.op_db import DTYPES, check, chosen  # PyTorch's database takes seconds

    # Where 16-bit numbers say which elements are read, the op is a call: each step is rounded.
    dtypes = ["float32"] if family in ("grid", "windows") else DTYPES
    for case in check(chosen(FAMILIES[family]), dtypes, 1):
        assert case.status == "right", (case.name, case.dtype, [s.reason for s in case.samples])
        assert not case.fallbacks, (case.name, case.dtype, case.fallbacks)
