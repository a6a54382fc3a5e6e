"""What a graph's maker relies on beside the numbers: memory of its own, errors, layouts."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function: Any, *inputs: torch.Tensor) -> Any:
    run = torch.compile(function, backend="tenon", fullgraph=True)
    return run(*[x.to("tenon") for x in inputs])


def test_results_have_memory_of_their_own() -> None:
    x = torch.arange(6, device="tenon")
    same, again = torch.compile(lambda x: (x.floor(), torch.alias_copy(x)), backend="tenon")(x)
    x.zero_()
    same.add_(1)
    assert again.tolist() == [0, 1, 2, 3, 4, 5]
    assert same.tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("divide", [torch.floor_divide, torch.remainder, torch.fmod])
def test_integer_division_by_zero_raises(divide: Any) -> None:
    x, y = torch.arange(40), torch.arange(40) + 1
    assert torch.equal(compiled(divide, x, y).cpu(), divide(x, y))
    y[17] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(divide, x, y)


def test_checks_of_a_factorization_raise() -> None:
    good = torch.eye(3) * 2
    assert torch.equal(compiled(torch.linalg.cholesky, good).cpu(), torch.linalg.cholesky(good))
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(torch.linalg.cholesky, -good)


def test_scatter_by_strides_and_its_gradient() -> None:
    def change(x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        view = x * 2
        return torch.as_strided_scatter(view, source, (2, 2), (3, 1), 1).square().sum()

    x, source = torch.randn(4, 5), torch.randn(2, 2)
    gradients = []
    for device in ("cpu", "tenon"):
        a = x.detach().to(device).requires_grad_()
        b = source.detach().to(device).requires_grad_()
        run = torch.compile(change, backend="tenon") if device == "tenon" else change
        run(a, b).backward()
        gradients.append([a.grad.cpu(), b.grad.cpu()])  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0])
