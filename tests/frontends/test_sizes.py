"""Whole numbers that are known only when a graph runs: sizes, and arguments of either sign."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.against_cpu import assert_same

OPS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "slices": lambda x, n: torch.cat([x[n:], x[:n]]) * 2,
    "a slice between": lambda x, n: x[n : n + 2] * 2,
    "every second": lambda x, n: x[n::2] + n,
    "a position": lambda x, n: x[n] * n,
    "rolled": lambda x, n: torch.roll(x, n, 0) * 2,
    "arithmetic": lambda x, n: x * n - n // 3 + n % 4,
    "numbers in order": lambda x, n: torch.arange(n, n + 3, device=x.device) * x.sum(),
    "a diagonal": lambda x, n: (x[:, None] * x[None]).diagonal(n) * 2,
    "a triangle": lambda x, n: torch.tril(x[:, None] * x[None], n),
    "padded": lambda x, n: torch.nn.functional.pad(x, (n + 3, 0)) + 1,
    "repeated": lambda x, n: x.repeat(abs(n) + 1) + n,
    "compared": lambda x, n: torch.where(x > n, x, n).clamp(max=n + 1),
    "in place": lambda x, n: x.clone().index_fill_(0, torch.zeros_like(x[:1]).long(), n),
    "a part in place": lambda x, n: x.clone()[n:].add_(1),
    "reduced": lambda x, n: x[n:].sum() + x[:n].amax(),
}


def outcome(function: Callable[[], torch.Tensor]) -> Any:
    try:
        return function().cpu()
    except Exception:  # which one, the tracer's own words decide
        return None


@pytest.mark.parametrize("name", OPS)
@torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000)
def test_numbers_of_either_sign(name: str) -> None:
    torch._dynamo.reset()
    run = torch.compile(OPS[name], backend="tenon", dynamic=True)
    failed = 0
    for size in (5, 3, 7, 0, 1):
        x = torch.arange(size) - 1.5
        for n in (2, -1, 0, 5, -3, 1):
            want = outcome(lambda x=x, n=n: OPS[name](x, n))
            got = outcome(lambda x=x, n=n: run(x.to("tenon"), n))
            assert (want is None) == (got is None), (size, n)
            failed += want is None
            if want is not None:
                assert_same(got, want, 1e-6, 1e-6)
    assert failed < 15


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_nested_tensor(dynamic: bool | None) -> None:
    """Its ragged size is no number: such a graph runs op by op."""
    torch._dynamo.reset()
    x = torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(5, 4)], layout=torch.jagged)
    run = torch.compile(lambda x: (x * 2 + 1).sin(), backend="tenon", dynamic=dynamic)
    assert_same(run(x.to("tenon")).values(), (x * 2 + 1).sin().values(), 1e-6, 1e-6)


CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a median": lambda x: torch.median(x.flip(0), 0).indices,
    "in order": lambda x: torch.sort(x.flip(0), 1).values,
    "a histogram": lambda x: torch.histc(x.flip(0)[:2], 4),
    "singular values": lambda x: torch.linalg.svdvals(x.flip(0, 1)),
    "a transform": lambda x: torch.fft.fft(x.flip(0), dim=0).abs(),
    "a product": lambda x: x.flip(0) @ x.flip(1).t().flip(0),
    "with a step": lambda x: torch.sort(x.flip(0)[::2], 0).values,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_read_backwards_by_kernels(name: str) -> None:
    """Steps in memory are negative then, by sizes of any value, which PyTorch's kernels are not
    given."""
    torch._dynamo.reset()
    run = torch.compile(CALLS[name], backend="tenon", dynamic=True)
    for size in (5, 8, 3, 2):
        x = torch.randn(size, 6)
        assert_same(run(x.to("tenon")), CALLS[name](x), rtol=1e-4, atol=1e-5)
