"""Images resized with a filter against aliasing, in exported programs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.exporting.errors import ExportError
from torch_tenon.ops.standalone import STANDALONE

MODES = ("bilinear", "bicubic")
SIZES = [(1, 2), (2, 3), (5, 7), (16, 16), (33, 20), (100, 9)]


class Resized(nn.Module):
    """Images in other sizes, by each way that is given."""

    def __init__(self, *ways: dict[str, Any]) -> None:
        super().__init__()
        self.ways = ways

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(F.interpolate(x, antialias=True, **way) for way in self.ways)


def exported(folder: Path, model: nn.Module, x: Tensor, **keywords: Any) -> Any:
    torch_tenon.export(model.eval(), (x,), folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


def images(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    if dtype is torch.uint8:
        return torch.randint(0, 256, sizes, dtype=dtype)
    return torch.randn(sizes, dtype=dtype)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_the_composition_is_the_kernels(mode: str, dtype: torch.dtype) -> None:
    """Before a compiler sees it; bytes are equal, in which PyTorch rounds by its own rule."""
    op = getattr(torch.ops.aten, f"_upsample_{mode}2d_aa").default
    for size, wanted, corners in itertools.product(SIZES, SIZES, (False, True)):
        for channels in (3, 5):  # PyTorch has other kernels for bytes of few channels
            x = images(2, channels, *size, dtype=dtype)
            got = STANDALONE[op](x, list(wanted), corners)
            want = op(x, list(wanted), corners)
            close = {torch.float32: 1e-5, torch.float64: 1e-13, torch.uint8: 0}[dtype]
            assert_same(got, want, rtol=close, atol=close)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_up_and_down(tmp_path: Path, dtype: torch.dtype) -> None:
    model = Resized(
        *({"mode": m, "size": s} for m in MODES for s in ((9, 70), (31, 31), (1, 2))),
        *({"mode": m, "size": (60, 8), "align_corners": True} for m in MODES),
        *({"mode": m, "scale_factor": s} for m in MODES for s in (0.37, (2.0, 0.8), (1.02, 1.5))),
    )
    x = images(2, 3, 40, 31, dtype=dtype)
    program = exported(tmp_path, model, x)
    close = {torch.float32: 1e-5, torch.float64: 1e-12, torch.uint8: 0}[dtype]
    for _ in range(2):
        x = images(2, 3, 40, 31, dtype=dtype)
        if dtype.is_floating_point:
            x[0, 1, 20, 20], x[1, 0, 0, 3] = float("nan"), float("inf")
        for got, want in zip(program(x), model(x), strict=True):
            assert_same(got, want, rtol=close, atol=close)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_images_of_any_size(tmp_path: Path, mode: str) -> None:
    rows, columns = Dim("rows", min=4, max=400), Dim("columns", min=4, max=400)
    model = Resized(
        {"mode": mode, "size": (24, 32)},
        {"mode": mode, "size": (1, 24), "align_corners": True},
        {"mode": mode, "scale_factor": (0.5, 1.5)},
    )
    shapes = ({2: rows, 3: columns},)
    program = exported(tmp_path, model, images(2, 3, 48, 64), dynamic_shapes=shapes)
    for size in ((48, 64), (4, 4), (7, 100), (24, 32), (399, 400)):
        x = images(2, 3, *size)
        x[0, 1, 2, 2], x[1, 0, 0, 3] = float("nan"), float("inf")
        assert_same(program(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_one_column_is_refused(tmp_path: Path, mode: str) -> None:
    """PyTorch's kernel repeats the first row then, unless channels are last."""
    with pytest.raises(ExportError, match=f"_upsample_{mode}2d_aa"):
        exported(tmp_path, Resized({"mode": mode, "size": (5, 1)}), images(1, 3, 20, 20))
