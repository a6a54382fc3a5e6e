"""Programs with sizes that are computed of run-time sizes: what a convolution or a pool leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon

HEIGHT, WIDTH = Dim("height", min=8, max=64), Dim("width", min=8, max=64)


def exported(folder: Path, model: Any, *args: Any, **keywords: Any) -> Any:
    torch_tenon.export(model, *args, path=folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


def pooled(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def grid_of(x: Tensor) -> Tensor:
    rows, columns = ((n - 1) // 2 + 1 for n in x.shape[2:])
    return torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))


def attended(x: Tensor) -> Tensor:
    tokens = pooled(x).flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(tokens, tokens, tokens)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "interpolate": lambda x: F.interpolate(pooled(x), size=x.shape[2:], mode="bilinear"),
    "group norm": lambda x: F.group_norm(pooled(pooled(x)), 2),
    "meshgrid": grid_of,
    "attention": attended,
    "layer norm": lambda x: F.layer_norm(pooled(x).permute(0, 2, 3, 1), [4]),
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ops_that_are_composed(name: str, tmp_path: Path) -> None:
    """PyTorch's code of such an op asks whether a size is 1. The bounds tell that it is not, and
    that no product of two sizes is one of them."""
    model = Function(FUNCTIONS[name]).eval()
    shapes = ({2: HEIGHT, 3: WIDTH},)
    program = exported(tmp_path, model, (torch.randn(2, 4, 20, 28),), dynamic_shapes=shapes)
    for height, width in ((20, 28), (8, 8), (17, 33), (64, 9)):
        x = torch.randn(2, 4, height, width)
        torch.testing.assert_close(program(x), model(x))
