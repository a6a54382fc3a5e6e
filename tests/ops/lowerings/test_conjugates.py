"""Conjugates that graphs are given and compute, and complex numbers beside real ones."""

from __future__ import annotations

import logging
from collections.abc import Callable

import needs
import pytest
import torch
from torch import Tensor

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import compiled, on_tenon, same_by_plans

pytestmark = needs.plans
aten = torch.ops.aten


@pytest.mark.parametrize("part", ["imaginary", "columns", "expanded", "turned"])
def test_conjugates_that_are_given_to_graphs(part: str) -> None:
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "imaginary": lambda x: x.conj().imag,
        "columns": lambda x: x[:, ::2].conj(),
        "expanded": lambda x: x[:1].expand(4, 8).conj(),
        "turned": lambda x: x.t().conj(),
    }
    x = torch.randn(3, 8, dtype=torch.complex64)
    run = compiled(lambda x: x * 2 + 1)
    got = run(views[part](x.to("tenon")))
    assert_same(got, views[part](x) * 2 + 1, rtol=1e-6)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("part", ["conjugate", "imaginary", "negative", "turned", "both"])
def test_conjugates_that_graphs_write(part: str, dynamic: bool) -> None:
    views: dict[str, Callable[[Tensor], Tensor]] = {
        "conjugate": lambda x: x.conj(),
        "imaginary": lambda x: x[1:].conj().imag,
        "negative": lambda x: torch._neg_view(x.real),
        "turned": lambda x: x.t()[1::2].conj(),
        "both": lambda x: torch._neg_view(x.conj()),
    }

    def change(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        x[1] = y[0] + 1
        return x + y

    run = compiled(change, dynamic)
    for columns in (8, 10):
        x, y = (torch.randn(4, columns, dtype=torch.complex64) for _ in range(2))
        there = [t.to("tenon") for t in (x, y)]
        want = change(views[part](x), views[part](y))
        for _ in range(2):
            found = [t.clone() for t in there]
            got = run(views[part](found[0]), views[part](found[1]))
            assert_same(got, want.resolve_conj().resolve_neg(), rtol=1e-6)
            assert_same(found, [x, y], rtol=1e-6)


def test_gradients_that_are_conjugates() -> None:
    x = torch.randn(3, 8, dtype=torch.complex64)
    grad = torch.randn(3, 16, dtype=torch.complex64)
    found = []
    for device, run in (("cpu", torch.square), ("tenon", compiled(torch.square))):
        given = x.clone().to(device).requires_grad_()
        run(given).backward(grad.to(device)[:, ::2].conj())
        assert given.grad is not None
        found.append(given.grad.resolve_conj())
    assert_same(found[1], found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_conjugates_within_what_a_graph_calls(dtype: torch.dtype) -> None:
    """In its first run too, which PyTorch watches by a dispatch mode."""
    x = torch.randn(4, 5, dtype=dtype)
    graph = compiled(torch.linalg.pinv)
    for _ in range(2):
        assert_same(graph(x.to("tenon")), torch.linalg.pinv(x), 1e-5, 1e-5)
    same_by_plans(torch.linalg.pinv, x[None].expand(3, 4, 5), rtol=1e-5, atol=1e-5)


def test_conjugates_within_an_op_of_ones_own() -> None:
    with torch.library._scoped_library("test_conjugates", "FRAGMENT") as library:
        library.define("product(Tensor x) -> Tensor")
        library.impl("product", lambda x: x.conj() * x + x.mH.imag, "CPU")
        torch.library.register_fake("test_conjugates::product", torch.empty_like, lib=library)
        product = torch.ops.test_conjugates.product
        same_by_plans(lambda x: product(x) * 2, torch.randn(3, 3, dtype=torch.complex64), rtol=1e-6)


def test_complex_numbers_beside_real_ones(caplog: pytest.LogCaptureFixture) -> None:
    """The call has no loops, and its window has a plan all the same."""
    caplog.set_level(logging.WARNING, "torch_tenon")
    whole, real = torch.zeros(3, dtype=torch.complex128), torch.randn(3)

    def compute(x: Tensor, z: Tensor) -> list[Tensor]:
        torch.exp(x, out=z)
        found = aten._foreach_addcmul.ScalarList([x], [x], [x], [complex(2, 0)])
        return [z * 2, *found, aten.eq.Scalar(x.half(), complex(1, 2))]

    with executing("compiled"):
        want = compute(real, whole)
        for _ in range(3):
            assert_same(compute(*on_tenon([real, torch.zeros_like(whole)])), want, rtol=1e-6)
    assert not [m for m in caplog.messages if "no plan" in m]
