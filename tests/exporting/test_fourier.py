"""Fourier transforms in exported programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.exporting.errors import ExportError


class Calls(nn.Module):
    """Each function of the same tensor."""

    def __init__(self, functions: list[Callable[..., Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x) for f in self.functions)


def exported(folder: Path, functions: list[Any], x: Tensor, **keywords: Any) -> Any:
    path = folder / "model.tenon"
    torch_tenon.export(Calls(functions).eval(), (x,), path, cpu="native", **keywords)
    return torch_tenon.load(path)


def check(program: Any, functions: list[Any], x: Tensor) -> None:
    for got, function in zip(program(x), functions, strict=True):
        want = function(x)
        error = (got - want).abs().max() / want.abs().max()
        assert got.shape == want.shape and got.dtype is want.dtype
        assert error < 2e-6, (function, error)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 30, 64, 77, 127, 254, 400, 1024, 1000])
def test_lengths(tmp_path: Path, length: int) -> None:
    """Each radix; and enough rows for threads."""
    functions = [
        torch.fft.fft,
        torch.fft.ifft,
        torch.fft.rfft,
        lambda x: torch.fft.irfft(torch.fft.fft(x), n=length),
        lambda x: torch.fft.irfft(torch.fft.rfft(x), n=length),
    ]
    rows = Dim("rows", min=1, max=99)
    program = exported(tmp_path, functions, torch.randn(5, length), dynamic_shapes=(({0: rows}),))
    for count in (5, 1, 2, 60):
        check(program, functions, torch.randn(count, length))


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: torch.fft.fft2(x),
    lambda x: torch.fft.fft2(x, norm="ortho"),
    lambda x: torch.fft.ifft2(x, norm="forward"),
    lambda x: torch.fft.fftn(x),
    lambda x: torch.fft.fft(x, dim=1),
    lambda x: torch.fft.fft(x, n=20, dim=0),
    lambda x: torch.fft.rfft2(x),
    lambda x: torch.fft.rfftn(x, dim=(2, 0)),
    lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    lambda x: torch.fft.irfft2(torch.fft.rfft2(x), s=(6, 9)),
    lambda x: torch.fft.hfft(x, n=11),
    lambda x: torch.fft.ihfft(x),
    lambda x: torch.fft.fftshift(torch.fft.fft(x)),
    lambda x: torch.fft.fft(torch.fft.fft(x).conj()),
    lambda x: torch.fft.fft(torch.fft.rfft(x).mT),
]


@pytest.mark.slow
def test_functions(tmp_path: Path) -> None:
    program = exported(tmp_path, FUNCTIONS, torch.randn(3, 6, 10))
    for _ in range(2):
        check(program, FUNCTIONS, torch.randn(3, 6, 10))


@pytest.mark.slow
def test_spectrograms(tmp_path: Path) -> None:
    window = torch.hann_window(48)
    functions = [
        lambda x: torch.stft(x, 48, window=window, return_complex=True),
        lambda x: torch.stft(x, 64, 12, 48, window, normalized=True, return_complex=True),
        lambda x: torch.stft(x, 60, 20, center=False, return_complex=True),
        lambda x: torch.stft(x, 48, window=window, onesided=False, return_complex=True),
        lambda x: torch.stft(x[0], 48, window=window, pad_mode="constant", return_complex=True),
    ]
    rows = Dim("rows", min=1, max=9)
    program = exported(tmp_path, functions, torch.randn(4, 300), dynamic_shapes=(({0: rows}),))
    for count in (1, 4, 9):
        check(program, functions, torch.randn(count, 300))


REFUSED: dict[str, Callable[[Tensor], Tensor]] = {
    "a prime": lambda x: torch.fft.fft(x, n=131),
    "float64": lambda x: torch.fft.rfft(x.double()),
    "a window of float64": lambda x: torch.stft(
        x.flatten(), 16, window=torch.ones(16, dtype=torch.float64), return_complex=True
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_left_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ExportError, match=r"aten\.(_fft_(c2c|r2c)|stft)"):
        exported(tmp_path, [REFUSED[name]], torch.randn(4, 8))
