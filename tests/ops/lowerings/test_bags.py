"""Bags of embeddings: where they end, none at all, and tables that lie apart in memory."""

from __future__ import annotations

from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import compiled, on_tenon, same_by_plans

pytestmark = needs.plans


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("ends", [[0, 2, 2, 5], [0, 0, 0, 0], [0, 2, 6]])
def test_bags_whose_end_is_given(mode: str, ends: list[int]) -> None:
    """Rows behind the last end are in no bag, where the host has a fast kernel."""

    def compute(i: Tensor, ends: Tensor, *tables: Tensor) -> list[Tensor]:
        return [
            F.embedding_bag(i, t, ends, mode=mode, include_last_offset=True, padding_idx=padding)
            for t in tables
            for padding in (None, 1)
        ]

    tables = [torch.randn(5, 3, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    given = [torch.tensor([1, 4, 1, 2, 0, 1]), torch.tensor(ends), *tables]
    same_by_plans(compute, *given, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "weighted"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bags_of_what_lies_apart(mode: str, dtype: torch.dtype) -> None:
    """Fast kernels are for dense rows and weights: by the others rows behind the end count."""

    def compute(i: Tensor, ends: Tensor, rows: Tensor, w: Tensor, columns: Tensor) -> list[Tensor]:
        how: dict[str, Any] = {"mode": mode.replace("weighted", "sum")}
        tables = [rows, columns.t(), columns.t() * 2, columns.t()[:, 1:], rows[:, ::2], rows[::2]]
        weights = [None] if mode != "weighted" else [w[:6], w[::2], (w * 2)[::2], w[:1].expand(6)]
        return [
            F.embedding_bag(i, t, ends, include_last_offset=True, per_sample_weights=p, **how)
            for t in tables
            for p in weights
        ]

    given = [torch.tensor([1, 4, 1, 2, 0, 1]), torch.tensor([0, 2, 2, 5])]
    made = [torch.randn(n, dtype=dtype) for n in ((10, 3), (12,), (3, 10))]
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    same_by_plans(compute, *given, *made, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_no_rows(mode: str) -> None:
    def compute(i: Tensor, ends: Tensor, table: Tensor) -> list[Tensor]:
        return [
            F.embedding_bag(i, table, e, mode=mode, include_last_offset=last)
            for e, last in ((ends, False), (ends, True), (ends[:1], False))
        ]

    for dtype in (torch.float32, torch.float64):
        given = torch.empty(0, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        same_by_plans(compute, *given, torch.randn(5, 3, dtype=dtype))


@pytest.mark.parametrize("forward_only", [False, True])
@pytest.mark.parametrize("mode", range(3))
def test_all_results_of_bags(mode: int, forward_only: bool) -> None:
    """The CPU's sizes of bags are 0 where a sum needs none, and stand for places without maxima."""
    name = "_embedding_bag_forward_only" if forward_only else "_embedding_bag"

    def compute(i: Tensor, ends: Tensor, *tables: Tensor) -> list[Tensor]:
        op = getattr(torch.ops.aten, name)
        found = [
            op(table, i, ends, False, mode, False, None, last, padding)
            for table in tables
            for last in (False, True)
            for padding in (-1, 1)
        ]
        return [t for some in found for t in some[2:]]

    tables = [torch.randn(5, 3, dtype=dtype) for dtype in (torch.float32, torch.float64)]
    given = [torch.tensor([1, 4, 1, 2, 0, 1]), torch.tensor([0, 2, 2, 5]), *tables]
    with executing("compiled"):  # a trace has other sizes for what nobody needs
        for _ in range(3):
            assert_same(compute(*on_tenon(given)), compute(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_all_results_of_a_graph_have_the_sizes_of_eager_code(mode: int, dtype: torch.dtype) -> None:
    """Also those that nobody reads: PyTorch's trace takes any other device for CUDA."""

    def compute(table: Tensor, i: Tensor, ends: Tensor) -> Any:
        return torch.ops.aten._embedding_bag_forward_only(table, i, ends, False, mode)

    given = torch.rand(5, 3, dtype=dtype), torch.tensor([1, 2, 0, 3]), torch.tensor([0, 2])
    got, want = compiled(compute)(*on_tenon(given)), compute(*given)
    assert [t.shape for t in got] == [t.shape for t in want]
