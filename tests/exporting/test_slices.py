"""Programs that put a tensor in the place of a slice: a source of other sizes is refused before
anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.exporting.errors import ExportError
from torch_tenon.runtime.library import ProgramError


class Replacing(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


class Cache(nn.Module):
    """Writes its state where it lies."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(16, 3))

    def forward(self, y: Tensor) -> Tensor:
        self.rows.copy_(torch.slice_scatter(self.rows, y, 0, 3, 3 + y.shape[0]))
        return self.rows * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.slice_scatter(x, y, 0, 3, 3 + y.shape[0]),
        lambda x, y: torch.slice_scatter(x, y, 0, -y.shape[0], None),
        lambda x, y: torch.slice_scatter(x, y, 0, 1, 1 + 2 * y.shape[0], 2),
        lambda x, y: torch.slice_scatter(x.t(), y.t(), 1, 1, 1 + y.shape[0]).sum(0),
    ],
)
def test_slices_of_any_size(function: Callable[[Tensor, Tensor], Tensor], tmp_path: Path) -> None:
    n, m = Dim("n", min=8, max=64), Dim("m", min=2, max=64)
    torch_tenon.export(
        Replacing(function),
        (torch.randn(30, 3), torch.randn(5, 3)),
        tmp_path / "model.tenon",
        dynamic_shapes=({0: n}, {0: m}),
        cpu="native",
    )
    program = torch_tenon.load(tmp_path / "model.tenon")
    for rows, others in [(20, 5), (20, 17), (20, 18), (20, 30), (10, 8), (10, 5), (64, 64)]:
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        try:
            wanted = function(x, y)
        except RuntimeError:
            with pytest.raises(ProgramError, match="exported for sizes"):
                program(x, y)
        else:
            torch.testing.assert_close(program(x, y), wanted, rtol=0, atol=0)


def test_strides_within_the_memory(tmp_path: Path) -> None:
    torch_tenon.export(
        Replacing(lambda x, y: x.as_strided((y.shape[0], 2), (3, 1), 1) + 1),
        (torch.randn(20, 3), torch.randn(5, 3)),
        tmp_path / "model.tenon",
        dynamic_shapes=({0: Dim("n", min=8, max=64)}, {0: Dim("m", min=2, max=64)}),
        cpu="native",
    )
    program = torch_tenon.load(tmp_path / "model.tenon")
    for rows, others in [(20, 5), (20, 20), (10, 10)]:
        x, y = torch.randn(rows, 3), torch.randn(others, 3)
        wanted = x.as_strided((others, 2), (3, 1), 1) + 1
        torch.testing.assert_close(program(x, y), wanted, rtol=0, atol=0)
    for rows, others in [(20, 21), (8, 60)]:
        with pytest.raises(ProgramError, match="exported for sizes"):
            program(torch.randn(rows, 3), torch.randn(others, 3))


def test_strides_beyond_the_memory(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="more memory than there is"):
        torch_tenon.export(
            Replacing(lambda x, y: x.as_strided((5, 2), (3, 1), 1) + y),
            (torch.randn(4, 3), torch.randn(1, 2)),
            tmp_path / "model.tenon",
            cpu="native",
        )


def test_a_state_of_one_size(tmp_path: Path) -> None:
    """What was too long was written beyond the state."""
    model = Cache()
    torch_tenon.export(
        model,
        (torch.randn(5, 3),),
        tmp_path / "model.tenon",
        dynamic_shapes=({0: Dim("m", min=2, max=64)},),
        cpu="native",
    )
    program = torch_tenon.load(tmp_path / "model.tenon")
    for rows in (5, 13):
        y = torch.randn(rows, 3)
        torch.testing.assert_close(program(y), model(y), rtol=0, atol=0)
    for rows in (14, 60):
        with pytest.raises(ProgramError, match="exported for sizes"):
            program(torch.randn(rows, 3))
