"""Windows of a dimension (`unfold`), and of an image as columns."""

from __future__ import annotations

import logging
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, randn

from tests.ops.lowerings.by_plan import compiled, same_at_sizes, same_by_plans, same_gradients

pytestmark = needs.plans

IMAGES: dict[str, dict[str, Any]] = {
    "plain": {"kernel_size": 3},
    "padded": {"kernel_size": 3, "padding": 1},
    "far apart": {"kernel_size": (2, 3), "dilation": (3, 2), "padding": (2, 1)},
    "in steps": {"kernel_size": (3, 2), "stride": (2, 3), "padding": 1},
    "all of it": {"kernel_size": (6, 7)},
}


@pytest.mark.parametrize("name", IMAGES)
def test_windows_of_images(name: str) -> None:
    x = randn(2, 3, 6, 7)

    def compute(x: Tensor) -> list[Tensor]:
        columns = F.unfold(x * 2, **IMAGES[name])
        return [columns, F.unfold(x[0], **IMAGES[name]), columns.sin() + 1]

    same_by_plans(compute, x, rtol=1e-5, atol=1e-6)
    same_gradients(lambda x: F.unfold(x.tanh(), **IMAGES[name]), x, rtol=1e-5, atol=1e-5)


def test_columns_are_no_view_of_the_image() -> None:
    """Where a window has one dimension, its elements lie in steps of the image's."""
    x = torch.arange(3.0, device="tenon").view(1, 3, 1)
    columns = compiled(lambda x: F.unfold(x, (2, 1)))(x)
    x.zero_()
    assert columns.cpu().tolist() == [[0, 1], [1, 2]]
    assert columns.stride() == F.unfold(torch.zeros(1, 3, 1), (2, 1)).stride()


def test_windows_of_images_of_other_sizes() -> None:
    same_at_sizes(lambda x: F.unfold(x, 3, padding=1, stride=2), lambda n: [randn(2, 3, n, n + 2)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex64, torch.float64])
def test_windows_of_other_numbers(dtype: torch.dtype) -> None:
    same_by_plans(lambda x: F.unfold(x, 2, padding=1), randn(1, 2, 4, 5, dtype=dtype))


@pytest.mark.parametrize("dim, size, step", [(0, 2, 1), (1, 3, 2), (-1, 7, 1), (1, 1, 3)])
def test_windows_of_what_is_computed(dim: int, size: int, step: int) -> None:
    def compute(x: Tensor) -> list[Tensor]:
        windows = (x * 2).unfold(dim, size, step)
        return [windows.mean(-1), windows + 1, windows.flip(-1).unfold(0, 2, 1).amax(-1)]

    same_by_plans(compute, randn(4, 7), rtol=1e-5, atol=1e-6)
    # PyTorch lays the gradient of a graph's result as the result lies, whose elements may meet.
    same_gradients(lambda x: x.exp().unfold(dim, size, step) * 2, randn(4, 7), rtol=1e-5, atol=1e-5)


def test_windows_of_windows_are_loops(caplog: pytest.LogCaptureFixture) -> None:
    """As memory of other numbers they had no plan, and the graph ran by reference."""
    with caplog.at_level(logging.WARNING, "torch_tenon"):
        run = compiled(lambda x: F.pad(x, (1, 1)).unfold(1, 3, 1)[..., ::2].unfold(0, 2, 1).sum(-1))
        run(randn(4, 7, device="tenon"))
    assert not caplog.records
