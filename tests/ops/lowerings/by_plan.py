"""The same computed on the CPU, by plans of windows and by compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.against_cpu import assert_same, executing

Compute = Callable[..., Any]


def on_tenon(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the tensors on the device."""
    return [x.clone().to("tenon") if isinstance(x, Tensor) else x for x in inputs]


def compiled(compute: Compute, dynamic: bool = False) -> Compute:
    """The function, compiled afresh."""
    torch._dynamo.reset()
    return torch.compile(compute, backend="tenon", fullgraph=True, dynamic=dynamic)


def same_by_plans(
    compute: Compute, *inputs: Any, rtol: float = 0.0, atol: float = 0.0, dynamic: bool = False
) -> None:
    """`compute(*inputs)` gives what it gives on the CPU, in windows and compiled."""
    want = compute(*[x.clone() if isinstance(x, Tensor) else x for x in inputs])
    with executing("compiled"):
        for _ in range(3):  # the first call of an op runs at once
            assert_same(compute(*on_tenon(inputs)), want, rtol, atol)
    assert_same(compiled(compute, dynamic)(*on_tenon(inputs)), want, rtol, atol)


def same_at_sizes(
    compute: Compute, make: Callable[[int], Sequence[Any]], rtol: float = 0.0, atol: float = 0.0
) -> None:
    """`compute(*make(n))` gives what it gives on the CPU at one n after the other. Windows have
    plans for any sizes from the third on, and the compiled graph is dynamic."""
    dynamic = compiled(compute, dynamic=True)
    for n in (5, 7, 6, 9):
        inputs = make(n)
        want = compute(*inputs)
        with executing("compiled"):
            assert_same(compute(*on_tenon(inputs)), want, rtol, atol)
        assert_same(dynamic(*on_tenon(inputs)), want, rtol, atol)


def same_error_by_plans(compute: Compute, good: Sequence[Any], bad: Sequence[Any]) -> None:
    """What the CPU refuses for the numbers in its tensors is refused in windows that know the call,
    and compiled, by an error of the same type."""
    with pytest.raises(Exception) as error:
        compute(*bad)
    graph = compiled(compute)
    with executing("compiled"):
        for run in (compute, compute, graph):
            _ = run(*on_tenon(good)).cpu()
        for run in (compute, graph):
            with pytest.raises(error.type):
                _ = run(*on_tenon(bad)).cpu()


def with_gradients(compute: Compute, inputs: Sequence[Any]) -> list[Tensor]:
    """The results of `compute`, and the gradients of the inputs that have some."""
    leaves = [
        x.detach().requires_grad_() if isinstance(x, Tensor) and x.dtype.is_floating_point else x
        for x in inputs
    ]
    results = [r for r in tree_leaves(compute(*leaves)) if isinstance(r, Tensor)]
    # Other weights for each element: a sum alone does not show where a gradient goes.
    parts = [
        (r * torch.arange(r.numel(), device=r.device).remainder(7).add(1).view(r.shape)).sum()
        for r in results
    ]
    torch.stack([p.to(torch.float64) for p in parts]).sum().backward()
    return [*(r.detach() for r in results), *(x.grad for x in leaves if isinstance(x, Tensor))]


def same_gradients(
    compute: Compute, *inputs: Any, rtol: float = 0.0, atol: float = 0.0, dynamic: bool = False
) -> None:
    """Results and gradients of `compute(*inputs)` are the CPU's, in windows and compiled."""
    want = with_gradients(compute, [x.clone() if isinstance(x, Tensor) else x for x in inputs])
    with executing("compiled"):
        for _ in range(2):
            assert_same(with_gradients(compute, on_tenon(inputs)), want, rtol, atol)
    assert_same(with_gradients(compiled(compute, dynamic), on_tenon(inputs)), want, rtol, atol)
