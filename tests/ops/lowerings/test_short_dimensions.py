"""Dimensions shorter than a vector: the coordinates of points, the corners of boxes, colours, and
matrices of a few rows, of which there are many."""

from __future__ import annotations

from collections.abc import Callable

import needs
import pytest
import torch
from torch import Tensor, randn

from tests.ops.lowerings.by_plan import same_at_sizes, same_by_plans, same_gradients

pytestmark = needs.plans
N = 300  # points: more than a block of a column has rows

WIDTHS = [(2, torch.float32), (3, torch.bfloat16), (5, torch.float32), (7, torch.float64)]

FUNCTIONS: dict[str, Callable[[Tensor], object]] = {
    "a factor for each point": lambda x: x * x[..., :1],
    "a factor for each coordinate": lambda x: x * x[0] + x[1],
    "coordinates in order": lambda x: x.flip(-1) + x.mT.contiguous().mT,
    "normal distribution": lambda x: (x - x.mean(0)) / x.std(0),
    "sums, and what they are of": lambda x: (x.sum(0), x * 2, x.abs().sum(0)),
    "least and greatest": lambda x: (x.amin(0), x.amax(0), (x > 0).any(0)),
    "products": lambda x: x.abs().clamp(0.9, 1.1).prod(0),
    "lengths": lambda x: x / x.norm(dim=-1, keepdim=True),
    "long functions": lambda x: torch.exp(x * x[:, :1]).tanh() + x.sin(),
    "running sums": lambda x: x.cumsum(0),
    "parts": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1) - x,
    "numbers of columns": lambda x: x.argmax(0),
    "rows that are chosen": lambda x: x[x[:, 0].argsort()] * x[:, 1:2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "width, dtype",
    [(2, torch.float32), (3, torch.bfloat16), (5, torch.float32), (7, torch.float64)],
)
def test_points(name: str, width: int, dtype: torch.dtype) -> None:
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-5
    x = randn(N, width).to(dtype)
    same_by_plans(FUNCTIONS[name], x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_points_whose_number_changes(name: str) -> None:
    same_at_sizes(FUNCTIONS[name], lambda n: [randn(37 * n, 3)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [torch.std, torch.mean, torch.logsumexp, torch.amax])
def test_gradients_of_columns(function: Callable[..., Tensor]) -> None:
    same_gradients(lambda x: x * function(x, 0) * x[:, :1], randn(N, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("m, k, n", [(3, 3, 3), (4, 4, 4), (5, 2, 6), (30, 5, 1), (1, 40, 7)])
def test_many_small_matrices(dtype: torch.dtype, m: int, k: int, n: int) -> None:
    """As batches, turned, and where they are computed of others just before and after."""
    tolerance = 1e-5 if dtype in (torch.float32, torch.float64) else 2e-2

    def compute(x: Tensor, y: Tensor) -> list[Tensor]:
        plain = x @ y
        turned = y.mT @ x.mT
        around = torch.baddbmm(plain, x.sin(), y + 1, alpha=0.5) * 2
        return [plain, turned, around, x[:1].expand_as(x) @ y]

    x, y = randn(50, m, k).to(dtype), randn(50, k, n).to(dtype)
    same_by_plans(compute, x, y, rtol=tolerance, atol=tolerance)


def test_small_matrices_whose_number_changes() -> None:
    def compute(x: Tensor, y: Tensor) -> Tensor:
        return (x @ y).relu() @ x

    same_at_sizes(compute, lambda n: [randn(9 * n, 3, 3), randn(9 * n, 3, 3)], rtol=1e-5, atol=1e-5)


def test_gradients_of_small_matrices() -> None:
    same_gradients(
        lambda x, y: x.tanh() @ y, randn(50, 3, 4), randn(50, 4, 2), rtol=1e-5, atol=1e-5
    )
