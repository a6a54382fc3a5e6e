"""Changes of part of a tensor: made where it lies, in compiled graphs and in eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.against_cpu import assert_same
from torch_tenon.frontends import dynamo
from torch_tenon.frontends.graph import build


def window(x: torch.Tensor, o: torch.Tensor) -> Any:
    o[1:-1, ::2] = x[1:-1, ::2] * 2 + 1
    return o


def chain(x: torch.Tensor, o: torch.Tensor) -> Any:
    o[0] = x[0]
    o[1:3] = o[2:4] * 2
    o[:, 0] += x[:, 1]
    return o, o + 1


def old_contents(x: torch.Tensor, o: torch.Tensor) -> Any:
    before, row = o * 3, o[2].clone()
    o[2] = o[3] + 1
    return before + o, row


def swap(x: torch.Tensor, o: torch.Tensor) -> Any:
    part = o[1:3]
    held = part.clone()
    part += 1
    x[1:3] = held
    o[0:2] = x[2:4]
    return held


def overlapping(x: torch.Tensor, o: torch.Tensor) -> Any:
    part = o[1:3]
    part[0] = x[0]
    twice = part * 2
    part[1] = twice[0]
    x.copy_(o)
    return twice, part.sum()


def diagonals(x: torch.Tensor, o: torch.Tensor) -> Any:
    o.diagonal().add_(x.diagonal())
    o[1:, 2:].diagonal().mul_(2)
    o.as_strided((2, 3), (1, 2), 1).mul_(2)
    return o


def added(x: torch.Tensor, o: torch.Tensor) -> Any:
    at = torch.tensor([0, 1, 0], device=o.device)
    o.index_add_(0, at, x[:3])
    x.index_add_(0, at, x[2:5] * 2)
    return o.sum()


def placed(x: torch.Tensor, o: torch.Tensor) -> Any:
    at = x.argsort(1)
    o.scatter_(1, at, x).scatter_reduce_(0, at, x, "mean")
    o.t()[1] = 5
    o[at[0, :2]] = x[:2]
    return o.t()


def turned(x: torch.Tensor, o: torch.Tensor) -> Any:
    return o.t().copy_(x * 2)[1:]


def nothing(x: torch.Tensor, o: torch.Tensor) -> Any:
    o[1] = x[0]
    o[8:] = 0
    x[0] = o[2] * 2
    x[2:2].add_(1)
    x.diagonal(8).zero_()
    return o.sum(), x[5:3].mul_(2)


CASES = [window, chain, old_contents, swap, overlapping, diagonals, added, placed, turned, nothing]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
@pytest.mark.parametrize("function", CASES)
def test_change(function: Callable[..., Any], compiled: bool) -> None:
    torch._dynamo.reset()
    inputs = torch.randn(8, 8), torch.randn(8, 8)
    there = [t.to("tenon") for t in inputs]
    run = torch.compile(function, backend="tenon") if compiled else function
    expected = function(*inputs)
    found = tree_map(lambda t: t.cpu(), run(*there))
    assert_same(there, list(inputs), 1e-6, 1e-6)
    assert_same(tree_leaves(found), tree_leaves(expected), 1e-5, 1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_that_are_views_of_a_changed_argument(dynamic: bool | None) -> None:
    def change(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mul_(2)[1:].t(), x * 3

    torch._dynamo.reset()
    run = torch.compile(change, backend="tenon", dynamic=dynamic)
    for size in (5, 9):
        held = torch.randn(size + 1, 4)
        there = held.to("tenon")
        expected = change(held[1:])
        found = run(there[1:])
        assert_same(found, expected)
        assert found[0].stride() == expected[0].stride()
        expected[0].zero_()
        found[0].zero_()
        assert_same(there, held)


def one_diagonal(x: torch.Tensor, o: torch.Tensor) -> Any:
    o.diagonal().add_(x.diagonal())


def by_index(x: torch.Tensor, o: torch.Tensor) -> Any:
    return o.scatter_(1, x.long() * 0, x)


@pytest.mark.parametrize("function", [window, one_diagonal, by_index, turned])
def test_nothing_else_is_written(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch._dynamo.reset()
    kinds: list[str] = []

    def kept(*args: Any) -> Any:
        built = build(*args)
        kinds.extend(s.kind for s in built.program.storages)
        return built

    monkeypatch.setattr(dynamo, "build", kept)
    torch.compile(function, backend="tenon")(torch.randn(8, 8), torch.randn(8, 8))
    assert kinds == ["input", "input"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(50, 200), (3, 40, 130), (2, 9, 5, 64)], ids=str)
def test_rows_added_by_index(shape: tuple[int, ...], threads: int) -> None:
    def add(x: torch.Tensor, at: torch.Tensor, v: torch.Tensor, scale: torch.Tensor) -> Any:
        return x.index_add(len(shape) - 2, at, v * scale.exp())

    torch._dynamo.reset()
    sizes = [*shape[:-2], 300, shape[-1]]
    inputs = [
        torch.randn(shape), torch.randint(shape[-2], (300,)), torch.randn(sizes), torch.randn(()),
    ]  # fmt: skip
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = torch.compile(add, backend="tenon")(*[t.to("tenon") for t in inputs])
    finally:
        torch.set_num_threads(before)
    assert_same(found, add(*inputs), 1e-4, 1e-4)
