"""Numbers of dtypes that loops do not have: they are moved as they lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn

import torch_tenon

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32]


def bits(x: Tensor) -> Tensor:
    return x.cpu().contiguous().view(torch.uint8)


def overwrite(cache: Tensor, x: Tensor) -> Tensor:
    cache.copy_(x)
    return cache.t()


def in_part(cache: Tensor, x: Tensor) -> Tensor:
    cache[1:3] = x[:2]
    return cache


def turned(cache: Tensor, x: Tensor) -> Tensor:
    cache[:, :2] = x[:, 1:].flip(0)[:4, :2]
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", [overwrite, in_part, turned])
def test_a_compiled_function_writes_them(
    function: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon")
    numbers = torch.complex64 if dtype.is_complex else torch.float32
    expected = torch.zeros(4, 3).to(dtype)
    cache = expected.to("tenon")
    for _ in range(2):
        x = torch.randn(4, 3, dtype=numbers).to(dtype)
        found = compiled(cache, x.to("tenon"))
        assert_same(bits(found), bits(function(expected, x)))
        assert_same(bits(cache), bits(expected))


class Kept(nn.Module):
    """A state, a weight and an input, which come back as they are and turned."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(3, 4).to(dtype))
        self.register_buffer("state", torch.zeros(4, 3).to(dtype))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        seen = self.state.detach().t()
        self.state.copy_(x)
        return seen, self.weight, self.weight.t(), x, x[1:]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.itemsize == 1])
def test_an_exported_program_holds_them(tmp_path: Path, dtype: torch.dtype) -> None:
    model, path = Kept(dtype).eval(), tmp_path / "model.tenon"
    torch_tenon.export(model, (torch.zeros(4, 3).to(dtype),), path, cpu="native")
    program = torch_tenon.load(path)
    for _ in range(2):
        x = torch.randn(4, 3).to(dtype)
        # What is a view of the state shows what is written.
        for found, expected in zip(program(x), model(x), strict=True):
            assert found.dtype is dtype
            assert_same(bits(found), bits(expected))
