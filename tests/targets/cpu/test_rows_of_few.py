"""Rows of a few numbers, some of which come from elsewhere: gcc 12 made wrong vectors of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from torch_tenon.compiler.loops.groups import chooses_in_groups
from torch_tenon.compiler.loops.tree import For
from torch_tenon.targets.cpu import dialect

SIZES = (40, 17, 18, 23, 31, 70, 133)

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "joined": lambda x, y: torch.cat([x, y, x]),
    "turned": lambda x, y: torch.cat([x.flip(1), y]),
    "each turned": lambda x, y: torch.cat([x.flip(1), y.flip(1)]),
    "one column beside all": lambda x, y: torch.cat([x + x[:, :1], y - y[:, :1]]),
    "across": lambda x, y: torch.cat([x.t().contiguous().t(), y]),
    "batched": lambda x, y: torch.cat([x[None], y[None]], 1).flip(2) + 1,
    "columns too": lambda x, y: torch.cat([torch.cat([x, y]).flip(1), torch.cat([y, x])], 1),
    "bordered": lambda x, y: F.pad(x.flip(1), (0, 0, 2, 1)),
    "compared": lambda x, y: F.pad(x, (0, 0, 2, 1)).flip(1) > 0,
    "rolled": lambda x, y: x.roll(2, 0).flip(1),
    "rolled by a size": lambda x, y: x.roll(y.shape[0] // 2, 0).flip(1),
    "replaced": lambda x, y: x.slice_scatter(y[4:].flip(1), 0, 3, y.shape[0] - 1).flip(1),
    "differences": lambda x, y: F.pad((x[1:] - x[:-1]).flip(1), (0, 0, 1, 0)),
    "added up": lambda x, y: torch.cat([x.flip(1), y]).sum(0),
}


def made(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Whole numbers: a sum is the same in any order."""
    x = (torch.arange(rows * columns) % 23 - 5).view(rows, columns).to(dtype)
    y = (torch.arange((rows - 2) * columns) % 31 + 7).view(rows - 2, columns).to(dtype)
    return x, y


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()


@pytest.mark.sampled(40)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("columns", [2, 3, 4, 5, 6, 12])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_any_number(name: str, columns: int, dtype: torch.dtype) -> None:
    compiled = torch.compile(FUNCTIONS[name], backend="tenon", dynamic=None)
    for rows in SIZES:
        given = made(rows, columns, dtype)
        for x in given:
            torch._dynamo.mark_dynamic(x, 0)
        got = compiled(*given)
        torch.testing.assert_close(got, FUNCTIONS[name](*given), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["joined", "turned", "bordered", "compared"])
def test_in_windows(name: str) -> None:
    for rows in SIZES * 2:
        given = made(rows, 3, torch.float32)
        got = FUNCTIONS[name](*(x.to("tenon") for x in given))
        torch.testing.assert_close(got.cpu(), FUNCTIONS[name](*given), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["joined", "turned", "bordered", "one column beside all"])
def test_loops_are_cut_where_the_parts_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors are made of each part, which took a quarter of the time, or less."""
    found: list[bool] = []

    def noted(loop: For) -> bool:
        found.append(chooses_in_groups(loop))
        return found[-1]

    monkeypatch.setattr(dialect, "chooses_in_groups", noted)
    given = made(100, 3, torch.float32)
    for x in given:
        torch._dynamo.mark_dynamic(x, 0)
    torch.compile(FUNCTIONS[name], backend="tenon", dynamic=None)(*given)
    assert found and not any(found)
