"""Ops whose lowering sees other arguments in eager code than torch.compile gives it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from against_cpu import same_on_both

from torch_tenon import _C, config


@pytest.fixture(autouse=True)
def compiled() -> Iterator[None]:
    """Every window runs by a plan, and waits for it."""
    before = _C.execute_mode()
    _C.set_execute_mode(config.EXECUTE_MODES.index("compiled"))
    yield
    _C.set_execute_mode(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_bags_weights(dtype: torch.dtype) -> None:
    """The CPU's fast kernels keep no bag of each row, so none reaches the backward."""
    table, weights = torch.randn(10, 5).to(dtype), torch.randn(7).to(dtype)
    at, starts = torch.randint(10, (7,)), torch.tensor([0, 3, 3])

    def gradients(device: torch.device) -> tuple[torch.Tensor, ...]:
        rows, factors = (t.to(device).requires_grad_() for t in (table, weights))
        got = F.embedding_bag(
            at.to(device), rows, starts.to(device), mode="sum", per_sample_weights=factors
        )
        return torch.autograd.grad((got * got).sum(), (rows, factors))

    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-4
    for _ in range(2):  # the first call of its kind runs at once
        same_on_both(gradients, rtol=tolerance, atol=tolerance)
