"""Floats that follow from sizes (a mean over a batch, a scale) in compiled code of any sizes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a mean over the batch": lambda x: (x**2).sum() / x.shape[0],
    "a scale": lambda x: x / x.shape[1] ** 0.5 * (1 / x.shape[0]),
    "bounds": lambda x: x.clamp(max=x.shape[0] / 7) + torch.where(x > x.shape[0] / 9, x, 0.5),
    "an exponent": lambda x: x ** (x.shape[0] / 8),
    "of integers": lambda x: (x * 10).int() * (x.shape[0] / 3),
    "a tensor of it": lambda x: torch.full((3,), x.shape[0] / 3, device=x.device) + x.sum(),
    "half precision": lambda x: x.bfloat16() * (x.shape[0] / 3),
    "a number beside tensors": lambda x: (x * 2, x.shape[0] / 3),
    "rounded": lambda x: x[: math.floor(x.shape[0] / 1.5)] * round(x.shape[0] / 3),
    "a call of a kernel": lambda x: torch.arange(0, x.shape[0] / 2, device=x.device),
    "a larger picture": lambda x: F.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats_that_follow_from_sizes(name: str, caplog: pytest.LogCaptureFixture) -> None:
    function = FUNCTIONS[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon", dynamic=True)
    with caplog.at_level(logging.WARNING, "torch_tenon"):
        for n in (4, 6, 9, 9, 2):
            x = torch.rand(n, 5) + 0.1
            y = x.to("tenon").requires_grad_()
            want, got = function(x.requires_grad_()), compiled(y)
            one = isinstance(want, Tensor)
            for w, g in zip((want,) if one else want, (got,) if one else got, strict=True):
                if isinstance(w, float):
                    assert w == g
                    continue
                torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=1e-2, atol=1e-4)
                if w.requires_grad:
                    w.sum().backward()
                    g.sum().backward()
                    assert x.grad is not None and y.grad is not None
                    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-2, atol=1e-4)
    assert not caplog.messages


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_number_that_the_graph_computes(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """No plan has a whole one before it runs. What is said names the setting that has it split."""
    torch._dynamo.reset()
    function = torch.compile(lambda x, n: x * n.sum().item(), backend="tenon")
    x, n = torch.rand(4), torch.ones(3, dtype=dtype)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        got = function(x.to("tenon"), n.to("tenon"))
    torch.testing.assert_close(got.cpu(), x * 3)
    if not dtype.is_floating_point:  # else it is a tensor to the compiler
        assert "computed of data" in caplog.text and "capture_scalar_outputs" in caplog.text


def test_a_float_argument_that_changes() -> None:
    torch._dynamo.reset()

    def function(x: Tensor, t: float) -> Tensor:
        return x * t + t * x.shape[0]

    compiled = torch.compile(function, backend="tenon", dynamic=True)
    for n in (3, 5, 8):
        x, t = torch.rand(n, 5), 0.3 * n
        torch.testing.assert_close(compiled(x.to("tenon"), t).cpu(), function(x, t))
