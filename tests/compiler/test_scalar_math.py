"""The float32 functions of generated code against float64, over the whole range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.compiler import CpuCompiler

UNARY: dict[str, tuple[Any, Any]] = {
    "exp": (torch.exp, np.exp),
    "exp2": (torch.exp2, np.exp2),
    "expm1": (torch.expm1, np.expm1),
    "log": (torch.log, np.log),
    "log2": (torch.log2, np.log2),
    "log10": (torch.log10, np.log10),
    "log1p": (torch.log1p, np.log1p),
    "sin": (torch.sin, np.sin),
    "cos": (torch.cos, np.cos),
    "tan": (torch.tan, np.tan),
    "asin": (torch.asin, np.arcsin),
    "acos": (torch.acos, np.arccos),
    "atan": (torch.atan, np.arctan),
    "sinh": (torch.sinh, np.sinh),
    "cosh": (torch.cosh, np.cosh),
    "asinh": (torch.asinh, np.arcsinh),
    "acosh": (torch.acosh, np.arccosh),
    "atanh": (torch.atanh, np.arctanh),
    "tanh": (torch.tanh, np.tanh),
    "erf": (torch.erf, scipy.special.erf),
    "erfc": (torch.erfc, scipy.special.erfc),
    "sigmoid": (torch.sigmoid, scipy.special.expit),
    "sqrt": (torch.sqrt, np.sqrt),
}


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> CpuCompiler:
    return CpuCompiler(Cache(Path(tmp_path_factory.mktemp("cache")) / "objects"))


def run(function: Any, inputs: list[torch.Tensor], compiler: CpuCompiler) -> torch.Tensor:
    """`function` compiled and run."""
    module = make_fx(lambda *a: [function(*a)], tracing_mode="fake")(*inputs)
    return Plan(build(module).program).compile(compiler).run(inputs)[0]


def numbers(bits: int = 32) -> np.ndarray:
    """Every exponent, ordinary values, and what is special."""
    rng = np.random.default_rng(0)
    made = rng.integers(0, 2**bits, 300_000, dtype=f"u{bits // 8}")
    anything = made.view(f"f{bits // 8}")
    usual = rng.normal(size=200_000).astype(np.float32)
    wide = rng.uniform(-100, 100, 200_000).astype(np.float32)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 1e-45, -1e-45, 88.72, -103.9, 0.5], np.float32
    )
    return np.concatenate([anything, usual, wide, special])


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units of the last place of the right answer; infinite where kinds differ."""
    rounded = want.astype(got.dtype)
    least = np.finfo(got.dtype).smallest_subnormal
    spacing = np.maximum(np.spacing(np.abs(rounded)), least).astype(want.dtype)
    error = (np.abs(got.astype(want.dtype) - want) / spacing).astype(np.float64)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    error = np.where(same, 0.0, error)
    error[np.isnan(got) != np.isnan(rounded)] = np.inf
    wrong_zero = (got == 0) & (rounded == 0) & (np.signbit(got) != np.signbit(rounded))
    error[wrong_zero & (want == 0)] = np.inf
    return np.nan_to_num(error, nan=np.inf, posinf=np.inf)


@pytest.mark.parametrize("name", UNARY)
def test_within_four_ulp(name: str, compiler: CpuCompiler) -> None:
    ours, exact = UNARY[name]
    x = numbers()
    with np.errstate(all="ignore"):
        error = ulps(
            run(ours, [torch.from_numpy(x)], compiler).numpy(), exact(x.astype(np.float64))
        )
    worst = int(np.argmax(error))
    assert error[worst] <= 4, f"{name}({x[worst]!r}) is {error[worst]} ULP off"


@pytest.mark.parametrize("name", [n for n in UNARY if hasattr(np, UNARY[n][1].__name__)])
def test_float64_within_four_ulp(name: str, compiler: CpuCompiler) -> None:
    ours, exact = UNARY[name]
    x = numbers(64)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.longdouble))
        error = ulps(run(ours, [torch.from_numpy(x)], compiler).numpy(), want)
    worst = int(np.argmax(error))
    assert error[worst] <= 4, f"{name}({x[worst]!r}) is {error[worst]} ULP off"


def test_the_angle_of_a_point(compiler: CpuCompiler) -> None:
    x = numbers()[-100_000:]
    y = np.random.default_rng(1).permutation(x)
    got = run(torch.atan2, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
    with np.errstate(all="ignore"):
        assert ulps(got, np.arctan2(x.astype(np.float64), y.astype(np.float64))).max() <= 4


def test_power(compiler: CpuCompiler) -> None:
    rng = np.random.default_rng(1)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, 3, -3, 2.5], np.float32
    )
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    x = np.concatenate([np.abs(rng.normal(size=100_000)).astype(np.float32), a])
    y = np.concatenate([rng.uniform(-30, 30, 100_000).astype(np.float32), b])
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64))
    got = run(torch.pow, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
    assert ulps(got, want).max() <= 4


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_integer_division_and_remainder(dtype: torch.dtype, compiler: CpuCompiler) -> None:
    low = 0 if dtype is torch.uint8 else -20
    x = torch.arange(low, 20).to(dtype).repeat_interleave(11)
    y = torch.tensor([1, 2, 3, 5, 7, 11, 4, 6, 9, 13, 10]).to(dtype).repeat(20 - low)
    if low < 0:
        y = y * torch.tensor([1, -1]).to(dtype).repeat(len(y) // 2 + 1)[: len(y)]
    for f in (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        torch.remainder,
        torch.fmod,
    ):
        assert torch.equal(run(f, [x, y], compiler), f(x, y))


def test_sixteen_bit_floats_round_like_pytorch(compiler: CpuCompiler) -> None:
    x = torch.from_numpy(numbers())
    for dtype in (torch.bfloat16, torch.float16):
        got, want = run(lambda t, d=dtype: t.to(d), [x], compiler), x.to(dtype)
        assert torch.equal(got.nan_to_num(7), want.nan_to_num(7))
        back = run(lambda t: t.to(torch.float32), [want], compiler)
        assert torch.equal(back.nan_to_num(7), want.float().nan_to_num(7))
