"""What a compiled graph that fails leaves in tensors that it writes."""

from __future__ import annotations

import pytest
import torch
from against_cpu import assert_same
from torch import Tensor

OUT_OF_RANGE = pytest.raises(IndexError, match="out of bounds")


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def step(table: Tensor, at: Tensor, total: Tensor, means: Tensor) -> Tensor:
    """Writes what depends on an index that may be wrong, and what does not."""
    means.lerp_(table.mean(0), 0.5)
    total.add_(table[at])
    return total * 2


def test_what_follows_from_the_failure_has_its_error() -> None:
    table, total, means = torch.randn(7, 3), torch.zeros(2, 3), torch.ones(3)
    ours = [t.to("tenon") for t in (table, total, means)]
    compiled = torch.compile(step, backend="tenon")
    right, wrong = torch.tensor([6, 1]), torch.tensor([6, 7])
    assert_same(
        compiled(ours[0], right.to("tenon"), *ours[1:]), step(table, right, total, means), 1e-6
    )
    first = ours[1].data_ptr()
    with OUT_OF_RANGE:
        compiled(ours[0], wrong.to("tenon"), *ours[1:])
    for read in (Tensor.cpu, Tensor.data_ptr, lambda t: (t + 1).tolist(), lambda t: t[0].tolist()):
        with OUT_OF_RANGE:
            read(ours[1])
    with OUT_OF_RANGE:  # nor is it read by a graph
        compiled(ours[0], right.to("tenon"), *ours[1:])
    means.lerp_(table.mean(0), 0.5)
    assert_same(ours[0], table)
    assert_same(ours[2], means, 1e-6)

    ours[1].zero_()  # replaces all of it
    assert ours[1].data_ptr() == first
    assert_same(
        compiled(ours[0], right.to("tenon"), *ours[1:]),
        step(table, right, total.zero_(), means),
        1e-6,
    )


def test_what_a_view_of_it_was_to_be() -> None:
    def write(table: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        rows[1:].copy_(table[at] - 0.25)
        return rows.sum()

    table, rows = torch.randn(4, 3), torch.randn(3, 3)
    there, whole = table.to("tenon"), rows.to("tenon")
    compiled = torch.compile(write, backend="tenon")
    with OUT_OF_RANGE:
        compiled(there, torch.tensor([0, 4]).to("tenon"), whole)
    with OUT_OF_RANGE:
        whole[0].tolist()
    whole.copy_(rows)
    at = torch.tensor([3, 0])
    assert_same(compiled(there, at.to("tenon"), whole), write(table, at, rows), 1e-5, 1e-6)
    assert_same(whole, rows, 1e-6)
