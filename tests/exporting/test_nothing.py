"""Programs of tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same
from torch import Tensor, nn

import torch_tenon
from torch_tenon.runtime.library import ProgramError

EMPTY: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "elements": lambda x, y, k: (x.relu() + 1, k == k.view(-1, 1), k[:, None] + torch.arange(4)),
    "sums": lambda x, y, k: (x.sum(0), x.sum(1), x.sum(), x.prod(0), k.sum()),
    "means": lambda x, y, k: (x.mean(0), x.mean(), x.mean(1), F.mse_loss(x, x)),
    "truth": lambda x, y, k: ((x > 0).any(), (x > 0).all(0), x.logsumexp(0)),
    "products": lambda x, y, k: (x @ y.mT, y @ x.mT, x.mT @ x, torch.einsum("ij,ik->jk", x, x)),
    "pieces": lambda x, y, k: (torch.cat([x, y]), torch.stack([x, x]), F.pad(x, (1, 1, 2, 0))),
    "indices": lambda x, y, k: (y[k], y.index_select(0, k), F.one_hot(k, 4), F.embedding(k, y)),
    "writes": lambda x, y, k: (
        y.index_add(0, k, x),
        y.index_put((k,), x),
        y.scatter(0, k[:, None], x),
    ),
    "orders": lambda x, y, k: (*x.sort(0), *x.sort(1), x.softmax(0), x.argmax(1), x.cumsum(0)),
    "images": lambda x, y, k: (
        F.interpolate(x.view(0, 3, 1, 1), size=(4, 5), mode="bilinear"),
        F.interpolate(x.view(0, 3, 1, 1), scale_factor=2.0),
        F.max_pool2d(F.pad(x.view(0, 3, 1, 1), (1, 1, 1, 1)), 2),
        F.conv2d(x.view(0, 3, 1, 1), y.view(4, 3, 1, 1)),
    ),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor, k: Tensor) -> Any:
        return self.function(x, y, k)


@pytest.mark.parametrize("name", EMPTY)
def test_fixed_sizes_of_nothing(tmp_path: Path, name: str) -> None:
    given = torch.randn(0, 3), torch.randn(4, 3), torch.zeros(0, dtype=torch.int64)
    path = tmp_path / "model.tenon"
    torch_tenon.export(Calls(EMPTY[name]).eval(), given, path, cpu="native")
    program = torch_tenon.load(path)
    for _ in range(2):
        given = torch.randn(0, 3), torch.randn(4, 3), given[2]
        assert_same(list(program(*given)), list(EMPTY[name](*given)), rtol=1e-5, atol=1e-5)


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def test_nothing_as_a_method_of_its_own(tmp_path: Path) -> None:
    """As docs/export.md says it: a trace of any size is not for 0."""
    any_size = ({0: torch.export.Dim("n", min=2, max=64)},)
    programs = {
        "forward": torch.export.export(Sum(), (torch.randn(4, 3),), dynamic_shapes=any_size),
        "empty": torch.export.export(Sum(), (torch.randn(0, 3),)),
    }
    torch_tenon.export(programs, path=tmp_path / "model.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "model.tenon")
    with pytest.raises(ProgramError, match="'x' has size 0 at dimens"):
        program.forward(torch.randn(0, 3))
    assert program.empty(torch.randn(0, 3)).isnan().all()
