"""The special functions of generated code against SciPy's, in float64 and float32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special as sp
import torch
from against_cpu import assert_same
from torch.fx.experimental.proxy_tensor import make_fx

from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.plan import HOST, Plan
from torch_tenon.frontends.graph import build
from torch_tenon.targets.cpu.backend import CpuBackend
from torch_tenon.targets.cpu.compiler import CpuCompiler

special = torch.special
# Ours, SciPy's, and the range of each argument.
FUNCTIONS: dict[str, tuple[Any, Any, list[tuple[float, float]]]] = {
    "airy_ai": (special.airy_ai, lambda x: sp.airy(x)[0], [(-60, 30)]),
    "bessel_j1": (special.bessel_j1, sp.j1, [(-60, 60)]),
    "bessel_y0": (special.bessel_y0, sp.y0, [(0.01, 60)]),
    "erfcx": (special.erfcx, sp.erfcx, [(-20, 60)]),
    "i0": (special.i0, sp.i0, [(-80, 80)]),
    "i0e": (special.i0e, sp.i0e, [(-200, 200)]),
    "i1": (special.i1, sp.i1, [(-80, 80)]),
    "i1e": (special.i1e, sp.i1e, [(-200, 200)]),
    "k0": (special.modified_bessel_k0, sp.k0, [(1e-6, 60)]),
    "k1e": (special.scaled_modified_bessel_k1, sp.k1e, [(1e-6, 300)]),
    "log_ndtr": (special.log_ndtr, sp.log_ndtr, [(-60, 5)]),
    "ndtri": (special.ndtri, sp.ndtri, [(0, 1)]),
    "spherical_bessel_j0": (special.spherical_bessel_j0, sp.spherical_jn, [(-60, 60)]),
    "gammainc": (special.gammainc, sp.gammainc, [(0.01, 80), (0, 80)]),
    "gammaincc": (special.gammaincc, sp.gammaincc, [(0.01, 80), (0, 80)]),
    "zeta": (special.zeta, sp.zeta, [(1.01, 40), (0.01, 40)]),
    "hermite": (special.hermite_polynomial_h, sp.eval_hermite, [(-3, 3), (0, 12)]),
    "laguerre": (special.laguerre_polynomial_l, sp.eval_laguerre, [(0, 8), (0, 20)]),
    "legendre": (special.legendre_polynomial_p, sp.eval_legendre, [(-1, 1), (0, 40)]),
    "chebyshev_t": (special.chebyshev_polynomial_t, sp.eval_chebyt, [(-1, 1), (0, 200)]),
    "chebyshev_u": (special.chebyshev_polynomial_u, sp.eval_chebyu, [(-1.2, 1.2), (0, 30)]),
}
# Functions of one number, with the least and the greatest that they are finite at.
OF_ANY_SIZE: dict[str, tuple[Any, Any, float, float]] = {
    "i0": (special.i0, sp.i0, 1e-37, 88),
    "i0e": (special.i0e, sp.i0e, 1e-37, 3e38),
    "i1": (special.i1, sp.i1, 1e-37, 88),
    "i1e": (special.i1e, sp.i1e, 1e-37, 3e38),
    "k0": (special.modified_bessel_k0, sp.k0, 1e-37, 80),
    "k1": (special.modified_bessel_k1, sp.k1, 1e-37, 80),
    "k0e": (special.scaled_modified_bessel_k0, sp.k0e, 1e-37, 3e38),
    "k1e": (special.scaled_modified_bessel_k1, sp.k1e, 1e-37, 3e38),
    "ndtri": (special.ndtri, sp.ndtri, 1e-44, 0.999),
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: sp.polygamma(1, x), 1e-18, 3e38),
    "j0": (special.bessel_j0, sp.j0, 1e-37, 1e7),
    "j1": (special.bessel_j1, sp.j1, 1e-37, 1e7),
    "y0": (special.bessel_y0, sp.y0, 1e-37, 1e7),
    "y1": (special.bessel_y1, sp.y1, 1e-37, 1e7),
}
DEGREES = ("hermite", "laguerre", "legendre", "chebyshev_t", "chebyshev_u")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, torch.dtype], Any]:
    """One plan for all functions: the C compiler starts once."""
    rng = np.random.default_rng()
    found: dict[tuple[str, torch.dtype], Any] = {}
    compiler = CpuCompiler(Cache(Path(tmp_path_factory.mktemp("cache")) / "objects"))
    for dtype in (torch.float64, torch.float32):
        inputs = []
        for name, (_, _, ranges) in FUNCTIONS.items():
            columns = [rng.uniform(low, high, 4000) for low, high in ranges]
            if name in DEGREES:
                columns[1] = np.floor(columns[1])
            inputs.append([torch.from_numpy(c).to(dtype) for c in columns])

        def every(*tensors: torch.Tensor, inputs: Any = inputs) -> list[torch.Tensor]:
            left = iter(tensors)
            return [
                ours(*[next(left) for _ in columns])
                for (ours, _, _), columns in zip(FUNCTIONS.values(), inputs, strict=True)
            ]

        flat = [t for columns in inputs for t in columns]
        program = build(make_fx(every, tracing_mode="fake")(*flat)).program
        plan = Plan(program, CpuBackend(compiler)).compile()
        got = plan.native(()).run(flat, HOST)
        for name, columns, result in zip(FUNCTIONS, inputs, got, strict=True):
            found[name, dtype] = (columns, result)
    return found


@pytest.mark.slow
@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_scipy(name: str, dtype: torch.dtype, kernels: Any) -> None:
    columns, got = kernels[name, dtype]
    with np.errstate(all="ignore"):
        arguments = [c.double().numpy() for c in columns]
        if name == "spherical_bessel_j0":
            arguments = [np.zeros(len(arguments[0]), int), *arguments]
        if name in DEGREES:
            arguments = [arguments[1].astype(int), arguments[0]]
        want = torch.from_numpy(FUNCTIONS[name][1](*arguments)).to(dtype)
    # Between a function's zeros the error is beside its size there, not beside the zero.
    rtol, atol = (1e-10, 1e-11) if dtype is torch.float64 else (2e-6, 1e-6)
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


def test_float32_of_any_size() -> None:
    """To the last bit or two, and as PyTorch at the ends of domains and for what is no number."""
    rng = np.random.default_rng()
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, 1, -1, 2, 8, -8, 10]
    inputs = []
    for _, _, low, high in OF_ANY_SIZE.values():
        x = torch.from_numpy(np.exp(rng.uniform(math.log(low), math.log(high), 20000)))
        inputs.append(torch.cat([x.float(), torch.tensor(edges)]))

    def every(*tensors: torch.Tensor) -> list[torch.Tensor]:
        return [row[0](x) for row, x in zip(OF_ANY_SIZE.values(), tensors, strict=True)]

    found = torch.compile(every, backend="tenon")(*(x.to("tenon") for x in inputs))
    for (name, row), x, got in zip(OF_ANY_SIZE.items(), inputs, found, strict=True):
        count = len(x) - len(edges)
        with np.errstate(all="ignore"):
            want = torch.from_numpy(row[1](x[:count].double().numpy())).float()
        # A wave's error is beside its height, not beside the zero.
        wave = 1 / x[:count].clamp(min=1).sqrt() if name[0] in "jy" else 0.0
        far = (got[:count].cpu() - want).abs() - 4e-7 * want.abs() - 1e-7 * wave
        worst = far.argmax()
        assert far[worst] <= 1e-37, (name, x[worst].item(), got[worst].item(), want[worst].item())
        assert_same(got[count:], row[0](x[count:]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
def test_polygamma_at_and_between_its_poles_is_as_pytorch_has_it(dtype: torch.dtype) -> None:
    x = torch.cat([torch.arange(-30, 30), torch.empty(500).uniform_(-30, 30)]).to(dtype)

    def orders(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.polygamma(n, x) for n in (1, 3)]  # of one sign: nothing cancels

    got = torch.compile(orders, backend="tenon")(x.to("tenon"))
    rtol = {torch.float64: 1e-8, torch.bfloat16: 0.02}.get(dtype, 1e-4)
    assert_same(got, orders(x), rtol=rtol)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zeta_whose_powers_are_0_is_as_pytorch_has_it(dtype: torch.dtype) -> None:
    """No number, once a coefficient is infinite."""
    exponents = torch.tensor([1.0 + 1e-6, 9.0, 150.0, 1e4, 1e12, 1e14, 3e38], dtype=dtype)
    starts = torch.tensor([0.3, 1.0, 2.0, 88.0, 1e9, -3.0], dtype=dtype)
    given = [t.contiguous() for t in torch.meshgrid(exponents, starts, indexing="ij")]
    found = torch.compile(special.zeta, backend="tenon")(*(t.to("tenon") for t in given))
    want = special.zeta(*given)
    assert want.isnan().any() and (want == 0).any()
    assert_same(found, want, rtol=1e-10 if dtype is torch.float64 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_digamma_between_its_poles(dtype: torch.dtype) -> None:
    """However far from 0: beside a large number its fraction has few digits."""
    poles = -(2.0 ** torch.arange(1, 23 if dtype is torch.float32 else 50)).double()
    x = (poles[:, None] + torch.tensor([0.25, 0.5, 0.75])).to(dtype).ravel()
    found = torch.compile(torch.digamma, backend="tenon")(x.to("tenon"))
    assert_same(found, torch.digamma(x), rtol=1e-12 if dtype is torch.float64 else 1e-5)


def test_at_infinity_as_pytorch_has_it() -> None:
    """No number, mostly: a result is not to change when a plan takes over."""
    x = torch.tensor([torch.inf, -torch.inf, torch.nan]).repeat(3)
    names = "airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 i0 i0e i1 i1e modified_bessel_k0"

    def every(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(special, name)(x) for name in names.split()]

    got = torch.compile(every, backend="tenon")(x.to("tenon"))
    assert_same(got, every(x), rtol=1e-6)


def test_float32_overflows_where_pytorch_does() -> None:
    x = torch.cat([torch.arange(80, 100.0), -torch.arange(80, 100.0)])

    def both(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.i0(x), special.i1(x)]

    assert torch.i0(x).isinf().any()
    assert_same(torch.compile(both, backend="tenon")(x.to("tenon")), both(x), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_polynomials_that_leave_their_dtype(dtype: torch.dtype, compiled: None) -> None:
    """Beyond its greatest number PyTorch's recurrences have infinities, and then none."""
    names = [name for name in dir(special) if "_polynomial_" in name]
    numbers = torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0, -1.0, 2.0, -3.0, 1e30])
    degrees = torch.tensor([-1.0, 0, 1, 2, 3, 4, 7, 8, 2.5, torch.nan])
    x, n = (t.to(dtype).contiguous() for t in torch.meshgrid(numbers, degrees, indexing="ij"))
    for _ in range(2):  # the first call of an op runs at once
        found = [getattr(special, name)(x.to("tenon"), n.to("tenon")) for name in names]
        assert_same(found, [getattr(special, name)(x, n) for name in names], 1e-3, 1e-5)


# Numbers next to a zero of each, and one far out, with what mpmath gives for them.
ZEROS = {
    "bessel_j0": [(5.520078110286311, -2.7522649e-17), (30.63460646843198, 5.8989109e-16)],
    "bessel_j1": [(7.015586669815619, 2.8253394e-17), (1e22, -7.7599517440730639e-12)],
    "bessel_y0": [(3.957678419314858, -4.3331065e-17), (7.086051060301773, 2.6514482e-17)],
    "bessel_y1": [(2.197141326031017, 2.5133067e-17), (5.429681040794135, 1.4165786e-16)],
}


@pytest.mark.parametrize("name", ZEROS)
def test_bessel_functions_near_their_zeros(name: str, compiled: None) -> None:
    """PyTorch's kernels for the host are off by up to 3e-7 there, and SciPy's by 1e-17."""
    x, want = torch.tensor(ZEROS[name], dtype=torch.float64).unbind(1)
    for _ in range(2):
        got = getattr(special, name)(x.to("tenon")).cpu()  # the first by the host's kernel
    torch.testing.assert_close(got, want, rtol=1e-9, atol=3e-17)


def test_running_logarithms_of_sums_are_as_close_as_the_cpus(compiled: None) -> None:
    """They were added in float32, which the gradient's differences of such sums show."""
    x, g = torch.randn(5000), torch.randn(5000)

    def gradient(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        leaf = x.requires_grad_()
        (found,) = torch.autograd.grad(leaf.logcumsumexp(0), leaf, g)
        return found

    exact = gradient(x.double(), g.double())
    allowed = 2 * (gradient(x.clone(), g) - exact).abs().max()
    for _ in range(2):  # the first call of an op runs at once
        got = gradient(x.to("tenon"), g.to("tenon")).cpu()
        assert (got - exact).abs().max() <= allowed


def test_chebyshev_polynomials_beside_their_roots_are_as_pytorch_has_them() -> None:
    """What is left there depends on the way that it is computed alone."""
    numbers = torch.tensor([0, 0.5, -0.5, 0.25, 0.75, -0.25], dtype=torch.float64)
    degrees = torch.tensor([3, 5, 6, 7, 7.5, 8, 9, 63, 64], dtype=torch.float64)
    given = [t.contiguous() for t in torch.meshgrid(numbers, degrees, indexing="ij")]
    names = [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]

    def every(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(special, name)(x, n) for name in names]

    found = torch.compile(every, backend="tenon")(*(t.to("tenon") for t in given))
    want = every(*given)
    assert any((x.abs() > 0).logical_and(x.abs() < 1e-14).any() for x in want)
    assert_same(found, want, rtol=1e-9)
