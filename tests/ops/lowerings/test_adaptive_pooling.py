"""Averages over as many windows as are asked for, and their gradients, as on PyTorch's CPU."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.ops.lowerings.by_plan import same_at_sizes, same_by_plans, same_gradients
from torch_tenon.ops.lowerings.windows import _widest

SIZES = [(7, 5), (5, 7), (1, 4), (12, 4), (23, 1), (4, 4)]


@pytest.mark.parametrize("along", SIZES)
@pytest.mark.parametrize("across", [(11, 3), (2, 9), (6, 6)])
def test_averages_and_gradients(along: tuple[int, int], across: tuple[int, int]) -> None:
    x = torch.randn(2, 3, across[0], along[0])
    out = (across[1], along[1])
    same_gradients(lambda x: F.adaptive_avg_pool2d(x, out), x, rtol=1e-5, atol=1e-5)


def test_one_and_three_dimensions() -> None:
    def pools(x: Tensor) -> list[Tensor]:
        return [F.adaptive_avg_pool1d(x[0, 0], 4), F.adaptive_avg_pool3d(x, (2, 5, 3))]

    same_gradients(pools, torch.randn(1, 2, 3, 5, 7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 9, 11).to(dtype)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 0.02}
    same_by_plans(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x, **{"atol": 0.02, **tolerance})


def test_images_by_channel() -> None:
    x = torch.randn(2, 5, 9, 11).contiguous(memory_format=torch.channels_last)
    same_gradients(lambda x: F.adaptive_avg_pool2d(x * 2, (4, 3)), x, rtol=1e-5, atol=1e-5)


def test_what_is_no_number_stays_in_its_windows() -> None:
    x = torch.ones(1, 1, 7, 7)
    x[0, 0, 3, 4], x[0, 0, 0, 0] = torch.nan, torch.inf
    same_by_plans(lambda x: F.adaptive_avg_pool2d(x, 3), x, rtol=1e-6)


def test_run_time_sizes() -> None:
    def make(n: int) -> list[Any]:
        return [torch.randn(n, 3, 9, 5)]

    same_at_sizes(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), make, rtol=1e-5, atol=1e-6)
    same_at_sizes(
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda n: [torch.randn(2, 3, n, 2 * n)],
    )


def test_the_longest_window() -> None:
    for n, m in itertools.product(range(1, 30), range(1, 30)):
        lengths = [-(-(o + 1) * n // m) - o * n // m for o in range(m)]
        assert _widest([n], [m]) == [max(lengths)]
