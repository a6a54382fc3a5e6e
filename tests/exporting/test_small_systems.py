"""Triangular systems of few unknowns in exported programs, which are written out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.exporting.errors import ExportError

WAYS = [
    dict(zip(("upper", "left", "unitriangular"), chosen, strict=True))
    for chosen in itertools.product((False, True), repeat=3)
]


class Solved(nn.Module):
    """A system in each way: the kernel reads one triangle and no other."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.linalg.solve_triangular(a, b, **way) for way in WAYS)


class Density(nn.Module):
    """The likelihood of points under a normal distribution with a full covariance."""

    def forward(self, points: Tensor, mean: Tensor, factor: Tensor) -> Tensor:
        normal = torch.distributions.MultivariateNormal(
            mean, scale_tril=factor, validate_args=False
        )
        return normal.log_prob(points)


def exported(folder: Path, model: nn.Module, *args: Tensor, **keywords: Any) -> Any:
    path = folder / "model.tenon"
    torch_tenon.export(model.eval(), args, path, cpu="native", **keywords)
    return torch_tenon.load(path)


def matrices(*sizes: int) -> Tensor:
    return torch.randn(sizes) * 0.3 + 2 * torch.eye(sizes[-1])


@pytest.mark.parametrize(
    "sizes", [((1, 1), (1, 1)), ((5, 5), (3, 5, 5)), ((2, 1, 4, 4), (3, 4, 4))]
)
def test_each_way(tmp_path: Path, sizes: Any) -> None:
    program = exported(tmp_path, Solved(), matrices(*sizes[0]), torch.randn(sizes[1]))
    a, b = matrices(*sizes[0]), torch.randn(sizes[1])
    assert_same(list(program(a, b)), list(Solved()(a, b)), rtol=1e-4, atol=1e-4)


def test_a_density(tmp_path: Path) -> None:
    batch = Dim("batch", min=2, max=40)
    given = torch.randn(4, 3), torch.randn(4, 3), matrices(4, 3, 3).tril()
    shapes = ({0: batch}, {0: batch}, {0: batch})
    program = exported(tmp_path, Density(), *given, dynamic_shapes=shapes)
    for n in (4, 2, 40):
        given = torch.randn(n, 3), torch.randn(n, 3), matrices(n, 3, 3).tril()
        assert_same(program(*given), Density()(*given), rtol=1e-4, atol=1e-4)


def test_more_unknowns_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"aten\.linalg_solve_triangular"):
        exported(tmp_path, Solved(), matrices(17, 17), torch.randn(17, 17))
