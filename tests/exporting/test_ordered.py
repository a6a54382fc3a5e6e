"""Medians and k-th values, which programs take from sorted elements, as the CPU gives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import torch_tenon
from torch_tenon.exporting.errors import ExportError

ORDERED: dict[str, Callable[[Tensor], Any]] = {
    "medians": lambda x: (
        *(x.median(d, keepdim=k) for d in (0, -1) for k in (False, True)),
        *(x[0].median(), x[:, 0].median(0), x[0, 0].median(0), x[0, 0].median()),
        x.median(),
    ),
    "kth": lambda x: (
        *(x.kthvalue(k, d, keepdim=kept) for k in (1, 2) for d in (0, 1) for kept in (False, True)),
        x[0, 0].kthvalue(1),
    ),
    "of numbers": lambda x: (
        *(x.nanmedian(d, keepdim=k) for d in (0, -1) for k in (False, True)),
        *(x[0].nanmedian(), x[0, 0].nanmedian(0), x.nanmedian()),
    ),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def drawn(rows: int, dtype: torch.dtype) -> Tensor:
    """Different numbers, so that each has one index; some are NaN."""
    x = torch.randperm(rows * 6).view(rows, 6).to(dtype)
    if dtype.is_floating_point:
        x[torch.rand(rows, 6) < 0.2] = math.nan
        x[:, 1] = math.nan
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("name", ORDERED)
def test_sorted_elements(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    model = Calls(ORDERED[name])
    path = tmp_path / "model.tenon"
    shapes = ({0: Dim("rows", min=2, max=40)},)
    torch_tenon.export(model, (drawn(5, dtype),), path, dynamic_shapes=shapes, cpu="native")
    program = torch_tenon.load(path)
    for rows in (2, 5, 33, 40):
        x = drawn(rows, dtype)
        got, want = tree_leaves(program(x)), tree_leaves(model(x))
        for a, b in zip(got, want, strict=True):
            if b.dtype == torch.int64 and dtype.is_floating_point:
                continue  # of several NaN the CPU's kernel takes any
            torch.testing.assert_close(a, b, equal_nan=True)


@pytest.mark.parametrize("name", ["median", "nanmedian"])
def test_indices_of_medians(tmp_path: Path, name: str) -> None:
    model = Calls(lambda x: getattr(x, name)(1))
    torch_tenon.export(model, (torch.randn(4, 7),), tmp_path / "model.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "model.tenon")
    x = torch.randperm(28).view(4, 7).float()
    x[1, 4] = x[3, 0] = math.nan
    for got, want in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", ["median", "kthvalue"])
def test_truth_values_have_no_order(tmp_path: Path, name: str) -> None:
    """PyTorch has no kernel for them, and so no program has."""
    model = Calls(lambda x: getattr(x > 0, name)(1))
    with pytest.raises(ExportError, match=name):
        torch_tenon.export(model, (torch.randn(4, 7),), tmp_path / "model.tenon", cpu="native")
