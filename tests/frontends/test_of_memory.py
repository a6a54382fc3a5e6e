"""Ops that speak of a tensor's memory by strides and an offset of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from against_cpu import executing

aten = torch.ops.aten
SIZES = ([2, 2], [3, 1])
Op = Callable[[torch.Tensor, torch.Tensor, "int | None"], torch.Tensor]
# Of x (4, 3) and y (2, 2), with an offset: of part of what is computed, and of what was given.
OPS: dict[str, Op] = {
    "copy": lambda x, y, k: aten.as_strided_copy((x + 1)[1:], *SIZES, k) * 2,
    "copy, turned": lambda x, y, k: aten.as_strided_copy((x + 1).t()[1:, 1:], *SIZES, k) * 2,
    "copy of what was given": lambda x, y, k: aten.as_strided_copy(x[1:].t(), *SIZES, k) * 2,
    "view": lambda x, y, k: torch.as_strided((x + 1)[1:], *SIZES, k) * 2,
    "view, other dtype": lambda x, y, k: torch.as_strided((x + 1).view(torch.int32)[1:], *SIZES, k),
    "scatter": lambda x, y, k: aten.as_strided_scatter((x + 1)[1:], y, *SIZES, k) * 2,
    "scatter into what was given": lambda x, y, k: aten.as_strided_scatter(x[1:], y, *SIZES, k),
    "scatter into rows that share memory": lambda x, y, k: aten.as_strided_scatter(
        x[:1].expand(4, 3), y, *SIZES, k
    ),
    "scatter into columns that share memory": lambda x, y, k: aten.as_strided_scatter(
        (x + 1)[:, :1].expand(4, 3), y, *SIZES, k
    ),
    "copy of a scatter": lambda x, y, k: aten.as_strided_copy(
        aten.as_strided_scatter(x[1:], y, *SIZES, k), [3], [1], 0
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("offset", [0, 1, 3, None])
@pytest.mark.parametrize("name", OPS)
def test_in_graphs(name: str, offset: int | None, dynamic: bool | None) -> None:
    """The offset counts from the start of the storage, of which the tensor may be a part."""
    x, y = torch.arange(12.0).view(4, 3), -torch.arange(1.0, 5.0).view(2, 2)
    torch._dynamo.reset()
    compiled = torch.compile(OPS[name], backend="tenon", dynamic=dynamic)
    got = compiled(x.to("tenon"), y.to("tenon"), offset)
    assert torch.equal(got.cpu(), OPS[name](x, y, offset))
    torch._dynamo.reset()


@pytest.mark.parametrize("offset", [0, 1, 4, None])
@pytest.mark.parametrize("dynamic", [None, True])
def test_graphs_of_a_part_of_memory(offset: int | None, dynamic: bool | None) -> None:
    """A graph's argument may begin after what the op writes or reads."""

    def function(x: torch.Tensor, y: torch.Tensor) -> Any:
        written = aten.as_strided_scatter(x, y, *SIZES, offset)
        return written, aten.as_strided_copy(x, *SIZES, offset)

    x, y = torch.arange(12.0).view(4, 3), -torch.ones(2, 2)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon", dynamic=dynamic)
    got = compiled(x.to("tenon")[1:], y.to("tenon"))
    for ours, theirs in zip(got, function(x[1:], y), strict=True):
        assert torch.equal(ours.cpu(), theirs)
    torch._dynamo.reset()


@pytest.mark.parametrize("part", ["turned", "rows", "all"])
@pytest.mark.parametrize("computed", [False, True])
def test_in_windows(computed: bool, part: str) -> None:
    """Only `out=` variants are recorded whole: PyTorch composes the others of views."""

    def compute(device: str) -> list[torch.Tensor]:
        x, y = torch.arange(12.0, device=device).view(4, 3), -torch.ones(2, 2, device=device)
        x = x * 2 if computed else x
        x = {"turned": x.t(), "rows": x[1:], "all": x}[part]
        outs = torch.empty(x.shape, device=device), torch.empty(2, 2, device=device)
        aten.as_strided_scatter.out(x, y + 1, [2, 2], [4, 1], 1, out=outs[0])
        aten.as_strided_copy.out(x, [2, 2], [4, 1], 1, out=outs[1])
        return [t + 1 for t in outs]

    with executing("compiled"):
        for _ in range(2):
            for got, want in zip(compute("tenon"), compute("cpu"), strict=True):
                assert torch.equal(got.cpu(), want)
