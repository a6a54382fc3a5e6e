"""The float32 functions of generated code against float64, over the whole range."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import CpuBackend, cpu_backend
from torch_tenon.targets.cpu.compiler import CpuCompiler
from torch_tenon.targets.cpu.toolchain import processor

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
    "erfinv": (torch.erfinv, lambda x: np.copysign(scipy.special.erfinv(x), x)),
    "lgamma": (torch.lgamma, lambda x: torch.lgamma(torch.from_numpy(x)).numpy()),
    "sigmoid": (torch.sigmoid, scipy.special.expit),
    "sqrt": (torch.sqrt, np.sqrt),
}


# Other processors have other instructions: for conversions, for one.
WITHOUT = {"this processor": "", "without AVX-512": "-mno-avx512f"}


@pytest.fixture(scope="module", params=WITHOUT)
def compiler(request: Any, tmp_path_factory: pytest.TempPathFactory) -> CpuCompiler:
    folder, option = tmp_path_factory.mktemp("cache"), WITHOUT[request.param]
    command = cpu_backend().compiler.toolchain.command
    if option:
        if "avx512f" not in processor():
            pytest.skip("it is without")
        script = folder / "cc"
        script.write_text(f'#!/bin/sh\nexec {command} "$@" {option}\n')
        script.chmod(0o700)
        command = str(script)
    return CpuCompiler(Cache(folder / "objects"), command)


def run(function: Any, inputs: list[torch.Tensor], compiler: CpuCompiler) -> torch.Tensor:
    """`function` compiled and run."""
    module = make_fx(lambda *a: [function(*a)], tracing_mode="fake")(*inputs)
    return Plan(build(module).program, CpuBackend(compiler)).compile().run(inputs)[0]


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


@pytest.mark.sampled(16)
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


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", [n for n in UNARY if hasattr(np, UNARY[n][1].__name__)])
def test_float64_within_four_ulp(name: str, compiler: CpuCompiler) -> None:
    ours, exact = UNARY[name]
    x = numbers(64)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.longdouble))
        error = ulps(run(ours, [torch.from_numpy(x)], compiler).numpy(), want)
    worst = int(np.argmax(error))
    assert error[worst] <= 4, f"{name}({x[worst]!r}) is {error[worst]} ULP off"


def test_lgamma_between_its_poles(compiler: CpuCompiler) -> None:
    """Around its zeros, where the terms cancel."""
    zeros = []
    for k in range(2, 10):
        for low, high in ((-k - 1 + 1e-9, -k - 0.5), (-k - 0.5, -k - 1e-9)):
            while high - low > 1e-12 and abs(mpmath.gamma(-k - 0.5)) < 1:
                middle = (low + high) / 2
                above = abs(mpmath.gamma(middle)) > 1
                low, high = (low, middle) if above == (high > -k - 0.5) else (middle, high)
            zeros.append(low)
    near = np.array(zeros, np.float32).view(np.int32)
    x = (near[:, None] + np.arange(-100, 100, dtype=np.int32)).view(np.float32).ravel()
    x = x[x != np.floor(x)]
    want = np.array([float(mpmath.log(abs(mpmath.gamma(float(v))))) for v in x])
    assert np.abs(want).min() < 1e-5
    got = run(torch.lgamma, [torch.from_numpy(x)], compiler).numpy()
    assert ulps(got, want).max() <= 4


@pytest.mark.slow
def test_erfinv_of_float64(compiler: CpuCompiler) -> None:
    rng = np.random.default_rng(1)
    tails = [1 - 2.0 ** -rng.uniform(1, 53, 1500), 1 - np.arange(64) * 2.0**-53]
    x = np.concatenate([rng.uniform(-1, 1, 1500), *tails, 2.0 ** -rng.uniform(1, 1000, 500)])
    x = np.concatenate([x, [0.0, -0.0, 1, -1, 1.5, -np.inf, np.nan]])
    with mpmath.workdps(30):
        exact = [np.longdouble(str(mpmath.erfinv(v))) if abs(v) < 1 else 0.0 for v in x]
    want = np.array(exact, np.longdouble)
    want[np.signbit(x) & (x == 0)] = -0.0
    want[np.abs(x) == 1] = np.copysign(np.inf, x[np.abs(x) == 1])
    want[~(np.abs(x) <= 1)] = np.nan
    assert ulps(run(torch.erfinv, [torch.from_numpy(x)], compiler).numpy(), want).max() <= 4


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_the_rest_of_a_division_is_exact(bits: int, compiler: CpuCompiler) -> None:
    """Whatever the quotient, with the sign of a zero."""
    rng = np.random.default_rng(2)
    x, y = numbers(bits), rng.permutation(numbers(bits))
    usual = rng.uniform(-1e4, 1e4, 100_000).astype(x.dtype)
    halves = rng.integers(-8, 8, 100_000).astype(x.dtype) / 2
    most, least = np.finfo(x.dtype).max, np.finfo(x.dtype).smallest_subnormal
    ends = np.array([0, 1, 3, least, 3 * least, most, most / 3, np.inf, np.nan], x.dtype)
    ends = np.concatenate([ends, -ends])
    x = np.concatenate([x, usual, usual, halves, np.repeat(ends, len(ends))])
    y = np.concatenate([y, usual[::-1], halves, halves[::-1], np.tile(ends, len(ends))])
    with np.errstate(all="ignore"):
        rest = np.fmod(x, y)
        floored = np.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    for function, want in ((torch.fmod, rest), (torch.remainder, floored)):
        got = run(function, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
        same = (got == want) & (np.signbit(got) == np.signbit(want))
        wrong = np.flatnonzero(~same & ~(np.isnan(got) & np.isnan(want)))
        assert not len(wrong), (x[wrong[0]], y[wrong[0]], got[wrong[0]], want[wrong[0]])


def whole_numbers() -> np.ndarray:
    """int64 of every length, and around halves of the last place of float32 and float64."""
    rng = np.random.default_rng(3)
    length = rng.integers(0, 64, 200_000)
    anything = rng.integers(-(2**63), 2**63, len(length)) >> length
    powers = 2 ** np.arange(63)
    ties = (rng.integers(2**24, 2**25, 5000) << rng.integers(0, 38, 5000))[:, None]
    edges = np.concatenate([powers, 3 * (powers >> 2), ties.ravel()])[:, None] + np.arange(-3, 4)
    return np.concatenate([anything, edges.ravel(), -edges.ravel(), [2**63 - 1, -(2**63)]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_integers_and_floats(dtype: torch.dtype, compiler: CpuCompiler) -> None:
    x = torch.from_numpy(whole_numbers())
    as_float = run(lambda t: t.to(dtype), [x], compiler)
    assert torch.equal(as_float, torch.from_numpy(x.numpy().astype(as_float.numpy().dtype)))
    near = torch.cat([as_float, as_float + 0.5, as_float * 0.37, torch.zeros(1, dtype=dtype)])
    near = near[near.abs() < 2.0**63]
    assert torch.equal(run(lambda t: t.to(torch.int64), [near], compiler), near.to(torch.int64))


def test_the_angle_of_a_point(compiler: CpuCompiler) -> None:
    x = numbers()[-100_000:]
    y = np.random.default_rng(1).permutation(x)
    got = run(torch.atan2, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
    with np.errstate(all="ignore"):
        assert ulps(got, np.arctan2(x.astype(np.float64), y.astype(np.float64))).max() <= 4


@pytest.mark.parametrize("bits", [32, 64])
def test_the_length_of_a_vector(bits: int, compiler: CpuCompiler) -> None:
    x = numbers(bits)[-300_000:].astype(f"f{bits // 8}")
    y = np.random.default_rng(1).permutation(x)
    got = run(torch.hypot, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
    with np.errstate(all="ignore"):
        assert ulps(got, np.hypot(x.astype(np.longdouble), y.astype(np.longdouble))).max() < 0.6


@pytest.mark.parametrize("bits", [32, 64])
def test_the_next_number(bits: int, compiler: CpuCompiler) -> None:
    x = numbers(bits)[-300_000:].astype(f"f{bits // 8}")
    y = np.random.default_rng(1).permutation(x)
    got = run(torch.nextafter, [torch.from_numpy(x), torch.from_numpy(y)], compiler).numpy()
    want = np.nextafter(x, y)
    same = got.view(f"u{bits // 8}") == want.view(f"u{bits // 8}")
    assert (same | (np.isnan(got) & np.isnan(want))).all()


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


@pytest.mark.slow
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
