"""Complex numbers in exported programs."""

from __future__ import annotations

import math
from collections.abc import Callable
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


class Calls(nn.Module):
    """Each function of the same tensors."""

    def __init__(self, functions: list[Callable[..., Tensor]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(*tensors) for f in self.functions)


def exported(folder: Path, functions: list[Any], *args: Tensor, **keywords: Any) -> Any:
    model = Calls(functions).eval()
    torch_tenon.export(model, args, folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


PRODUCTS: list[Callable[[Tensor, Tensor, Tensor], Tensor]] = [
    lambda a, b, c: a @ b,
    lambda a, b, c: a[0] @ b[0],
    lambda a, b, c: a @ b[0],
    lambda a, b, c: a[0] @ b[0, :, 0],
    lambda a, b, c: a[0, 0] @ b[0, :, 0],
    lambda a, b, c: a @ a.mH,
    lambda a, b, c: a.mT.conj() @ a,
    lambda a, b, c: torch.einsum("bij,bjk->bik", a, b),
    lambda a, b, c: torch.einsum("bij,bjk,bik->b", a, b, c),
    lambda a, b, c: torch.einsum("bij,kj->ikb", a, b[0].mT),
    lambda a, b, c: torch.addmm(c[0], a[0], b[0]),
    lambda a, b, c: torch.baddbmm(c[:1], a, b),
    lambda a, b, c: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=2j),
    lambda a, b, c: F.linear(a, b[0].mT, c[0, 0]),
    lambda a, b, c: torch.tensordot(a, b, dims=([2], [1])),
    lambda a, b, c: torch.outer(a[0, 0], b[0, 0]),
    lambda a, b, c: torch.kron(a[0], b[0]),
    lambda a, b, c: F.pad(a @ b, (1, 2)),
    lambda a, b, c: (a @ b).abs(),
    lambda a, b, c: torch.view_as_real(a @ b),
    lambda a, b, c: torch.isfinite(a @ b),
]


def numbers(n: int, m: int, dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(s, dtype=dtype) for s in ((n, 3, m), (n, m, 5), (n, 3, 5))]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_products(tmp_path: Path, dtype: torch.dtype) -> None:
    program = exported(tmp_path, PRODUCTS, *numbers(2, 4, dtype))
    close = 1e-5 if dtype is torch.complex64 else 1e-13
    for _ in range(2):
        given = numbers(2, 4, dtype)
        for got, function in zip(program(*given), PRODUCTS, strict=True):
            assert_same(got, function(*given).resolve_conj(), rtol=close, atol=close)


@pytest.mark.slow
def test_products_of_any_size(tmp_path: Path) -> None:
    functions = [PRODUCTS[k] for k in (0, 1, 2, 3, 5, 7, 10, 11, 12)]
    n, m = Dim("n", max=40), Dim("m", min=2, max=70)
    sizes = (({0: n, 2: m}, {0: n, 1: m}, {0: n}),)
    program = exported(tmp_path, functions, *numbers(3, 4, torch.complex64), dynamic_shapes=sizes)
    for shape in ((3, 4), (1, 2), (1, 70), (2, 33), (40, 2)):
        given = numbers(*shape, torch.complex64)
        for got, function in zip(program(*given), functions, strict=True):
            assert_same(got, function(*given).resolve_conj(), rtol=1e-4, atol=1e-4)


class Filter(nn.Module):
    """A layer that weighs a spectrum, as those of operators between functions do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6, 9, dtype=torch.complex64))
        self.mix = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spectrum = torch.view_as_complex(parts)
        found = torch.einsum("bcf,cof->bof", spectrum, self.weight)
        mixed = torch.exp(1j * found.angle()) * found.abs().log1p() + self.mix[:, :1]
        return torch.view_as_real(self.mix @ mixed), mixed.abs(), mixed.angle()


@pytest.mark.slow
def test_a_model_of_spectra(tmp_path: Path) -> None:
    model = Filter().eval()
    batch = Dim("batch", max=9)
    path = tmp_path / "model.tenon"
    given = (torch.randn(4, 3, 9, 2),)
    torch_tenon.export(model, given, path, cpu="native", dynamic_shapes=({0: batch},))
    program = torch_tenon.load(path)
    for count in (4, 1, 9):
        x = torch.randn(count, 3, 9, 2)
        want = [t.detach() for t in model(x)]
        assert_same(list(program(x)), want, rtol=1e-4, atol=1e-4)


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [
    *(torch.sqrt, torch.rsqrt, torch.sin, torch.cos, torch.tan, torch.sinh, torch.cosh),
    *(torch.tanh, torch.log2, torch.log10, torch.exp, torch.log),
    lambda z: z**0.5,
    lambda z: z**-1.5,
    lambda z: z.conj().imag,
    lambda z: z.conj().imag.exp(),
]
PARTS = [0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 30.0, -30.0, 1e-30, -2.5]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_functions(tmp_path: Path, dtype: torch.dtype) -> None:
    """Also of infinities, NaN and what is nearly nothing; and of numbers whose squares are out of
    range."""
    shapes = (({0: Dim("n", min=2)},),)
    program = exported(tmp_path, FUNCTIONS, torch.randn(5, dtype=dtype), dynamic_shapes=shapes)
    close = 1e-5 if dtype is torch.complex64 else 5e-14
    real = dtype.to_real()
    spread = torch.randn(2, 500, dtype=real) * (torch.randn(2, 500, dtype=real) * 12).exp()
    for z in (torch.randn(1000, dtype=dtype) * 5, torch.complex(*spread.unbind())):
        for got, function in zip(program(z), FUNCTIONS, strict=True):
            assert_same(got, function(z).resolve_neg(), rtol=close, atol=0)
    # Of two such parts the signs are not defined.
    pairs = [(a, b) for a in PARTS for b in PARTS if math.isfinite(a) or math.isfinite(b)]
    z = torch.tensor([complex(a, b) for a, b in pairs], dtype=dtype)
    for got, function in zip(program(z), FUNCTIONS, strict=True):
        want = function(z).resolve_neg()
        if want.is_complex():
            got, want = torch.view_as_real(got), torch.view_as_real(want)
        assert_same(got, want, rtol=close, atol=close)


def test_others_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"aten\.asin\b.*complex"):
        exported(tmp_path, [torch.asin], torch.randn(4, 4, dtype=torch.complex64))
