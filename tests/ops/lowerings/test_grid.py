"""Sampling on grids far from the image, at its borders, and where a coordinate is no number."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import same_at_sizes, same_by_plans, same_gradients
from torch_tenon.ops.lowerings.table import Build

pytestmark = needs.plans

aten = torch.ops.aten
MODES = ("bilinear", "nearest")
PADDINGS = ("zeros", "border", "reflection")
FAR = [1e2, 3e3, 1e5, 7e6, 1.7e7, 1e9, 4e9, 3e12, 1e19, 2e38]
ENDS = [math.nan, math.inf, -math.inf, -1.0, 1.0, 0.0, -1.5, 1.25]


@pytest.fixture(autouse=True)
def loops_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs have loops, as where the host does not reach the device's memory."""
    monkeypatch.setattr(Build, "reaches_kernels", False)


def of_grid(numbers: torch.Tensor, rank: int) -> torch.Tensor:
    """Every coordinate beside others, as a grid of one batch."""
    columns = [numbers.roll(k * (k + 1)) for k in range(rank)]
    near = torch.cat((numbers, torch.rand(len(numbers)).to(numbers) * 3 - 1.5))
    columns = [torch.cat((c, near[torch.randperm(len(near))])) for c in columns]
    return torch.stack(columns, -1).view(1, *[1] * (rank - 1), -1, rank)


def image(rank: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(1, 2, *(5, 7, 1)[:rank], dtype=dtype)


def sampled(x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.grid_sample(x, grid, mode, padding, align)
        for mode, padding, align in itertools.product(MODES, PADDINGS, (False, True))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_the_image(rank: int, dtype: torch.dtype) -> None:
    numbers = torch.tensor([s * n for n in FAR for s in (1, -1)], dtype=dtype)
    numbers = torch.cat((numbers, torch.randn(64, dtype=dtype) * torch.tensor(FAR[:4] * 16)))
    same_by_plans(sampled, image(rank, dtype), of_grid(numbers, rank), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("sizes", [(1, 4), (4, 1), (1, 1)])
def test_images_of_one_element(rank: int, sizes: tuple[int, ...]) -> None:
    x = torch.randn(1, 2, *(*sizes, 3)[:rank])
    grid = of_grid(torch.tensor([*ENDS, *FAR, 0.3, -0.7]), rank)
    same_by_plans(sampled, x, grid, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coordinates_that_are_no_numbers(rank: int, dtype: torch.dtype) -> None:
    grid = of_grid(torch.tensor([*ENDS, 1e38, -1e38], dtype=dtype), rank)
    same_by_plans(sampled, image(rank, dtype), grid, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", PADDINGS)
def test_gradients(rank: int, dtype: torch.dtype, padding: str) -> None:
    """PyTorch's kernel of two dimensions reads beyond the image where it is kept within it and a
    coordinate is no number."""
    far = FAR[:-1]
    numbers = [*far, *(-n for n in far), *ENDS[3:]]
    if rank == 3 or padding == "zeros":
        numbers += [*ENDS[:3], FAR[-1]]
    op = getattr(aten, f"grid_sampler_{rank}d_backward").default

    def gradients(g: torch.Tensor, x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        ways = itertools.product((0, 1), (False, True))
        number = PADDINGS.index(padding)
        return [r for m, a in ways for r in op(g, x, grid, m, number, a, [True, True])]

    x, grid = image(rank, dtype), of_grid(torch.tensor(numbers, dtype=dtype), rank)
    g = torch.randn(*x.shape[:2], *grid.shape[1:-1], dtype=dtype)
    same_by_plans(gradients, g, x, grid, rtol=2e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 4), (3, 1), (1, 1, 1), (2, 1, 3), (1, 3, 4)])
def test_grids_of_one_place(sizes: tuple[int, ...], align: bool) -> None:
    rank = len(sizes)

    def grid(theta: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, [2, 3, *sizes], align)

    for dtype in (torch.float32, torch.float64):
        theta = torch.randn(2, rank, rank + 1, dtype=dtype)
        same_by_plans(grid, theta, rtol=1e-6, atol=1e-6)
        same_gradients(grid, theta, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("align", [False, True])
def test_at_sizes(padding: str, align: bool) -> None:
    def compute(x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        grid = F.affine_grid(theta, x.shape, align)
        return F.grid_sample(x, grid, "bilinear", padding, align)

    def make(n: int) -> list[Any]:
        return [torch.randn(2, 3, n, n + 1), torch.randn(2, 2, 3) * 3]

    same_at_sizes(compute, make, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 0)], ids=str)
def test_grids_at_sizes_are_loops(sizes: tuple[int, int], caplog: pytest.LogCaptureFixture) -> None:
    """One whose number of steps had to be known was a call, and into `out` no plan at all."""

    def compute(theta: torch.Tensor, n: int) -> list[torch.Tensor]:
        size = [len(theta), 3, *(n + k if given else 1 for k, given in enumerate(sizes))]
        out = torch.empty(0, device=theta.device)
        aten.affine_grid_generator.out(theta, size, True, out=out)
        return [aten.affine_grid_generator(theta, size, True) + 1, out]

    with executing("compiled"), caplog.at_level(logging.DEBUG, "torch_tenon"):
        for n in (5, 5, 7, 7, 6, 6, 9, 9):
            theta = torch.randn(n - 1, 2, 3)
            found = compute(theta.to("tenon"), n)
            assert_same(found, compute(theta, n), rtol=1e-5, atol=1e-5)
    text = [r.getMessage() for r in caplog.records]
    assert not [t for t in text if "is a call" in t or "by reference" in t]


@pytest.mark.parametrize("wanted", [[True, False], [False, True], [False, False]])
@pytest.mark.parametrize("mode", [0, 1])
def test_gradients_of_a_grid_that_nobody_wants(
    mode: int, wanted: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    """The CPU's kernel computes them all the same: a plan that had none failed."""

    def compute(x: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        g = torch.ones_like(x)
        found = aten.grid_sampler_2d_backward(g, x, grid, mode, 0, False, wanted)
        return [t for t in found if t is not None]

    x, grid = image(2, torch.float32), torch.rand(1, 5, 7, 2) * 2 - 1
    with caplog.at_level(logging.WARNING, "torch_tenon.program"):
        same_by_plans(compute, x, grid, rtol=1e-4, atol=1e-5)
    assert not caplog.records


@pytest.mark.parametrize("align", [False, True])
def test_maps_of_whole_numbers(align: bool) -> None:
    theta = torch.tensor([[[1, 2, -1], [3, 1, 2]]])
    same_by_plans(lambda t: F.affine_grid(t.double(), [1, 1, 3, 4], align), theta, rtol=1e-12)
    same_by_plans(lambda t: aten.affine_grid_generator(t, [1, 1, 3, 4], align), theta)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_grids_of_16_bits_at_sizes(
    dtype: torch.dtype, align: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps of these are the kernel's alone: they were an error of the composition's, and their
    window got no plan."""

    def compute(theta: torch.Tensor, n: int) -> torch.Tensor:
        return F.affine_grid(theta, [len(theta), 3, n, n + 2], align) + 1

    with executing("compiled"), caplog.at_level(logging.DEBUG, "torch_tenon"):
        for n in (5, 5, 7, 7, 6, 6, 9, 9):
            theta = torch.randn(n - 1, 2, 3).to(dtype)
            assert_same(compute(theta.to("tenon"), n), compute(theta, n), rtol=0, atol=0)
    text = [r.getMessage() for r in caplog.records]
    assert not [t for t in text if "TypeError" in t or "AttributeError" in t or "no plan" in t]
