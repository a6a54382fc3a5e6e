"""Infinities, NaN and the ends of domains in reductions, products, statistics and functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import on_tenon, same_by_plans

pytestmark = needs.plans
aten = torch.ops.aten
inf, nan = math.inf, math.nan


@pytest.mark.slow
@pytest.mark.parametrize("op", [torch.cummax, torch.cummin])
def test_signs_of_running_extremes(op: Callable[..., Any]) -> None:
    """A zero that is as great as the one before has its place and its sign."""
    x = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1, 0.0, -0.0, nan, 0.0, 1])

    def compute(x: Tensor) -> list[Tensor]:
        found = op(x, 0)
        return [found.values.copysign(torch.ones_like(x)), found.values.signbit(), found.indices]

    for values in (x[:7], -x[:7], x[:7].half()):
        same_by_plans(compute, values)
    same_by_plans(lambda x: list(op(x, 0)), x)


@pytest.mark.parametrize("alpha", [nan, 1e30, 2])
def test_products_of_nothing(alpha: float) -> None:
    """What they are multiplied by may be no number."""
    shapes = [
        (torch.addmm, ((3, 1), (3, 0), (0, 1))),
        (torch.addmm, ((2,), (3, 0), (0, 2))),
        (torch.addbmm, ((3, 1), (2, 3, 0), (2, 0, 1))),
        (torch.baddbmm, ((2, 3, 1), (2, 3, 0), (2, 0, 1))),
        (torch.addmv, ((3,), (3, 0), (0,))),
        (torch.addmv, ((3,), (3, 2), (2,))),
    ]

    def compute(*given: Tensor) -> list[Tensor]:
        values = iter(given)
        return [
            op(*(next(values) for _ in sizes), alpha=alpha, beta=2)  # type: ignore[arg-type]
            for op, sizes in shapes
        ]

    same_by_plans(compute, *(torch.ones(s) for _, sizes in shapes for s in sizes))


@pytest.mark.slow
def test_means_of_infinities() -> None:
    """The host's mean moves from number to number."""
    x = torch.tensor([[-inf, -inf, inf, 1, nan], [1, -inf, -inf, 2, 1]])

    def compute(x: Tensor) -> list[Tensor]:
        found = [f(x, d) for f in (torch.std_mean, torch.var_mean) for d in (0, 1, (0, 1))]
        found += [torch.std_mean(x, 0, correction=0, keepdim=True)]
        found += [torch.var_mean(x[:1], 0), aten.native_layer_norm(x, (5,), None, None, 1e-5)]
        return [t for some in found for t in some]

    same_by_plans(compute, x)


@pytest.mark.parametrize("row", range(4))
def test_means_whose_last_number_alone_is_infinite(row: int) -> None:
    x = torch.randn(4, 3)
    x[row, 1] = inf
    same_by_plans(lambda x: list(torch.var_mean(x, 0)), x, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_that_are_rests_of_large_numbers(dtype: torch.dtype) -> None:
    """Of 16-bit numbers they are computed in double precision."""
    x = torch.randn(4, 13)
    x[:, 3], x[:, 7] = 65504, -65504

    def compute(x: Tensor) -> list[Tensor]:
        found = [op(x, 1)[1] for op in (torch.var_mean, torch.std_mean)]
        return [*found, (x / 64).var(1), (x / 64).std(1)]

    same_by_plans(compute, x.to(dtype))


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, inf, -inf, -1.0])
def test_gradients_of_distances(p: float) -> None:
    """Of any that are given, whether they are the distances or not."""
    x, g = torch.tensor([[1.0, 2], [1, 5], [3, 2]]), torch.ones(3)
    for distances in (torch.pdist(x, abs(p)), torch.full((3,), 0.5), torch.zeros(3)):
        same_by_plans(
            lambda x, g, d: aten._pdist_backward(g, x, p, d), x, g, distances, rtol=1e-5, atol=1e-6
        )


def test_batches_with_infinities() -> None:
    """Their mean is a sum that is divided."""
    x = torch.randn(4, 3)
    x[1, 1], x[2, 2] = inf, -inf
    same_by_plans(
        lambda x: list(aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)),
        x,
        rtol=1e-5,
        atol=1e-6,
    )


def test_batches_whose_sum_alone_is_infinite() -> None:
    """The mean is infinite, and no rest of deviations from it makes it no number."""
    greatest, ones = torch.finfo(torch.float64).max, torch.ones(2, dtype=torch.float64)
    x = torch.tensor([[greatest, -greatest], [greatest, -greatest], [1, 2]], dtype=torch.float64)

    def compute(x: Tensor, ones: Tensor) -> list[Tensor]:
        found = aten._batch_norm_with_update_functional(x, ones, ones, ones, ones, 1.0, 1.0)
        return [found[1], found[-2]]

    same_by_plans(compute, x, ones)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_means_whose_sum_leaves_the_range(dtype: torch.dtype) -> None:
    """The host's mean moves from number to number, and that of a batch is a sum in float64."""
    x = torch.linspace(0.9, 1, 128).view(2, 4, 4, 4).double().mul(torch.finfo(dtype).max).to(dtype)

    def compute(x: Tensor) -> list[Tensor]:
        return [
            aten.native_layer_norm(x, (4, 4), None, None, 1e-5)[1].to(x.dtype),
            aten.native_group_norm(x, None, None, 2, 4, 16, 2, 1e-5)[1],
            *(op(x, d)[1] for op in (torch.var_mean, torch.std_mean) for d in (0, (1, 3))),
        ]

    same_by_plans(compute, x, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6)
    if dtype is torch.float32:
        stats = [None, None, None, None, True, 0.1, 1e-5]
        same_by_plans(lambda x: aten.native_batch_norm(x, *stats)[1], x, rtol=1e-6)
    dense = x.to(memory_format=torch.channels_last)
    with executing("compiled"):
        for _ in range(3):
            found = aten.native_group_norm(dense.to("tenon"), None, None, 2, 4, 16, 2, 1e-5)[1]
    want = x.double().view(2, 2, 2, -1).div(32).sum((2, 3))
    assert_same(found.double(), want, rtol=1e-2 if dtype is torch.bfloat16 else 1e-6)


def test_groups_of_any_number_of_dense_channels() -> None:
    x = torch.randn(2, 6, 5, 4).to(memory_format=torch.channels_last)
    norm = torch.nn.functional.group_norm
    same_by_plans(lambda x: norm(x, 2), x, rtol=1e-5, atol=1e-6, dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e19, 4e18, 1e-20, 1e-22])
def test_variances_at_the_ends_of_the_range(scale: float) -> None:
    """Their sum of squares is beyond the range, or the squares are."""
    x = torch.linspace(-1, 1, 96).sin().view(4, 6, 4) * scale

    def compute(x: Tensor) -> list[Tensor]:
        return [
            *(x.var(d) for d in (0, 1, 2, (0, 2), (0, 1, 2))), x.var((0, 2), correction=0),
            *(torch.var_mean(x, d)[0] for d in (0, 1, 2)), *(x.std(d) for d in (0, 1, 2)),
        ]  # fmt: skip

    same_by_plans(compute, x, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_of_cross_entropies_at_the_ends(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 0.5, 0.25] * 8, dtype=dtype)
    target = torch.tensor([1, 0, 0.5, 0.25] * 8, dtype=dtype)

    def compute(g: Tensor, x: Tensor, target: Tensor, w: Tensor) -> list[Tensor]:
        loss = aten.binary_cross_entropy_backward
        return [loss(g, x, target, w, 0), loss(g, x, target, None, 0), loss(g[0], x, target, w, 1)]

    given = [torch.ones(32, dtype=dtype), x, target, torch.full((32,), 0.7, dtype=dtype)]
    same_by_plans(compute, *given, rtol=0 if dtype.itemsize == 2 else 1e-7)


def test_degrees_that_are_no_numbers() -> None:
    kinds = [f"{s}chebyshev_polynomial_{k}" for s in ("", "shifted_") for k in "tuvw"]
    kinds += ["laguerre_polynomial_l", "legendre_polynomial_p", "hermite_polynomial_h"]

    def compute(x: Tensor, n: Tensor) -> list[Tensor]:
        return [getattr(aten, f"special_{k}").default(x, n) for k in kinds]

    same_by_plans(
        compute, torch.tensor([1.0, 0.5, 2, 0] * 4), torch.tensor([inf, -inf, nan, 3] * 4)
    )


def test_odd_polynomials_of_zeros_that_have_a_sign() -> None:
    kinds = [f"chebyshev_polynomial_{k}" for k in "tuvw"]
    kinds += ["hermite_polynomial_h", "hermite_polynomial_he", "legendre_polynomial_p"]

    def compute(x: Tensor, n: Tensor) -> list[Tensor]:
        found = [getattr(aten, f"special_{k}").default(x, n) for k in kinds]
        return [torch.copysign(torch.ones_like(y), y) for y in found]

    for dtype in (torch.float32, torch.float64):
        degrees = torch.tensor([1, 3, 5] * 4, dtype=dtype)
        same_by_plans(compute, torch.tensor([-0.0, 0.0] * 6, dtype=dtype), degrees)


def test_bessel_functions_of_the_smallest_numbers() -> None:
    x = torch.tensor([2.3e-308, 1e-250, 1e-190, 1e-100, 1.0], dtype=torch.float64)

    def compute(x: Tensor) -> list[Tensor]:
        kinds = ("modified_bessel_k1", "scaled_modified_bessel_k1", "modified_bessel_k0")
        return [getattr(aten, f"special_{k}").default(x) for k in kinds]

    same_by_plans(compute, x, rtol=1e-6)


@pytest.mark.slow
def test_special_functions_at_their_ends() -> None:
    same_by_plans(lambda x: torch.polygamma(1, x), torch.tensor([inf, nan, 1.0, 0.25]), rtol=1e-5)
    x = torch.tensor([0.5, 0.0, 1.0, nan], dtype=torch.float64)
    same_by_plans(torch.special.ndtri, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions_of_pairs_at_their_ends(dtype: torch.dtype) -> None:
    """A number decides where it is an end, whatever the other one is."""
    ends = torch.tensor([nan, inf, -inf, 0.0, 1.0, -2.0, 0.5, 30.0, 1e-30, 1e-4], dtype=dtype)
    a, x = (t.contiguous() for t in torch.meshgrid(ends, ends, indexing="ij"))

    def compute(a: Tensor, x: Tensor) -> list[Tensor]:
        return [torch.igamma(a, x), torch.igammac(a, x), torch.special.zeta(a, x)]

    same_by_plans(compute, a, x, rtol=1e-3, atol=1e-29)  # the CPU has few digits of small ones


def test_batches_of_equal_numbers_to_whose_variance_nothing_is_added() -> None:
    def compute(x: Tensor, w: Tensor) -> Tensor:
        return aten.native_batch_norm(x, w, w, None, None, True, 0.1, 0.0)[0]

    with executing("compiled"):
        for _ in range(3):
            found = compute(*on_tenon([torch.ones(4, 2), torch.full((2,), 1.5)]))
            assert_same(found, torch.full((4, 2), 1.5))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_of_what_is_no_number(dtype: torch.dtype, p: float) -> None:
    """The greatest difference between two sets leaves NaN out, and that within a set does not."""
    x = torch.tensor([[nan, 1, 5], [3, 1, nan], [inf, 0, 1], [1, 2, 4]], dtype=dtype)
    compute = lambda x: [torch.cdist(x, x[1:], p), torch.pdist(x, p)]  # noqa: E731
    same_by_plans(compute, x, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_signs_of_infinite_complex_numbers(dtype: torch.dtype) -> None:
    ends = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -2.5], dtype=dtype.to_real())
    a, b = torch.meshgrid(ends, ends, indexing="ij")

    def compute(a: Tensor, b: Tensor) -> list[Tensor]:
        return [torch.view_as_real(torch.complex(a, b).sgn()), a.sgn(), (a > 0).sgn()]

    same_by_plans(compute, a, b, rtol=1e-6)


def test_incomplete_gamma_functions_of_large_numbers() -> None:
    a = 10 ** torch.linspace(4, 12, 40, dtype=torch.float64)[:, None]
    x = a + a.sqrt() * torch.linspace(-4, 4, 9, dtype=torch.float64)
    same_by_plans(lambda a, x: [torch.igamma(a, x), torch.igammac(a, x)], a, x, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("columns", [1, 7, 16, 33, 64, 513])
def test_extremes_of_short_rows(columns: int, dtype: torch.dtype) -> None:
    """Those of float32 are found among whole numbers in the same order (loops/split.py)."""
    special = torch.tensor([nan, -nan, inf, -inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45])
    places = torch.randint(0, 10, (24, columns), generator=torch.Generator().manual_seed(columns))
    x = torch.where(torch.randn(24, columns) < -1.5, special[places], torch.randn(24, columns))
    x[:10] = special[:, None]

    def compute(x: Tensor) -> list[Tensor]:
        return [x.amax(1), x.amin(1), *torch.aminmax(x, dim=1), x.max(), x.min()]

    same_by_plans(compute, x.to(dtype))


NORMS: dict[str, Callable[..., Tensor]] = {
    "a batch": lambda x, w, c, m, v: F.batch_norm(x, None, None, w, c, training=True),
    "a batch, in use": lambda x, w, c, m, v: F.batch_norm(x, m, v, w, c),
    "a batch without eps": lambda x, w, c, m, v: F.batch_norm(x, m, v, w, c, eps=0),
    "groups": lambda x, w, c, m, v: F.group_norm(x, 3, w, c),
    "instances": lambda x, w, c, m, v: F.instance_norm(x, None, None, w, c),
    "layers": lambda x, w, c, m, v: F.layer_norm(x.transpose(1, -1), (6,), w, c),
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_by_infinite_weights(norm: str, dtype: torch.dtype) -> None:
    """The CPU's kernels make a factor and a summand of each channel, of which NaN comes."""
    x = torch.randn(3, 6, 5, 7, generator=torch.Generator().manual_seed(0)).mul(4).round() + 2
    layouts = [x, x.to(memory_format=torch.channels_last), x[:, :, 1], x.mT, x[..., 1:6]]
    some = [[inf, -inf, 2, inf, 0, -inf], [1, -inf, inf, inf, -inf, 0], [0, 2, 1, inf, -1, 2]]
    vectors = [torch.tensor(v, dtype=dtype) for v in [*some, [1, 0, 2, 3, 1, inf]]]

    def compute(w: Tensor, c: Tensor, m: Tensor, v: Tensor, *layouts: Tensor) -> list[Tensor]:
        pairs = [(w, c), (w, None), (None, c), (w, torch.ones_like(c))]
        return [NORMS[norm](x, *pair, m, v) for x in layouts for pair in pairs]

    tolerance = max(1e-5, 4 * torch.finfo(dtype).eps)
    given = [*vectors, *(y.to(dtype) for y in layouts)]
    same_by_plans(compute, *given, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_batches_of_equal_numbers_without_eps(dtype: torch.dtype) -> None:
    """Their deviation is 0, and so is its inverse on the CPU: wherever the numbers lie."""
    x = torch.tensor([[1.0, 2.0, 3.0]] * 4 + [[1.0, 2.0, 5.0]], dtype=dtype)

    def compute(x: Tensor, w: Tensor) -> list[Tensor]:
        layouts = [x, torch.stack((x, x), -1)[..., 0], x.t().contiguous().t(), x[:, :, None]]
        return [aten.native_batch_norm(y, w, w, None, None, True, 0.1, 0.0)[0] for y in layouts]

    same_by_plans(compute, x, torch.tensor([1.0, 2.0, -1.0], dtype=dtype), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_infinity(approximate: str, dtype: torch.dtype) -> None:
    """It is NaN where the host's kernel is oneDNN's, and infinite elsewhere."""
    ends = torch.tensor([inf, -inf, nan, 0.0, -0.0, 1.5, 6e4, -6e4], dtype=dtype)
    x = ends.repeat(6, 5)

    def compute(x: Tensor) -> list[Tensor]:
        some = [x, x.t(), x[:, ::2], x[:, :20], x[:1, :1], x[0, 0], x.view(2, 3, 8, 5).mT]
        found = [F.gelu(part, approximate=approximate) for part in some]
        return [*found, F.gelu(x + x, approximate=approximate)]

    tolerance = max(1e-5, 2 * torch.finfo(dtype).eps)
    same_by_plans(compute, x, rtol=tolerance, atol=tolerance)
    same_by_plans(compute, x, rtol=tolerance, atol=tolerance, dynamic=True)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_means_of_complex_numbers_that_are_no_numbers(dtype: torch.dtype) -> None:
    """A sum is divided by a complex number, so that each part has to do with the other."""
    ends = torch.tensor([nan, inf, -inf, 0.0, -0.0, 1.0, -2.5], dtype=dtype.to_real())
    a, b = torch.meshgrid(ends, ends, indexing="ij")

    def compute(a: Tensor, b: Tensor) -> list[Tensor]:
        x = torch.complex(a, b).view(-1, 1)
        y = torch.cat([x, torch.ones_like(x), x / 2], 1)
        found = [y.mean(1), x.mean(1), y.mean(), y[-3:].mean((0, 1)), y.mean(1, keepdim=True)]
        return [torch.view_as_real(t) for t in found]

    same_by_plans(compute, a, b, rtol=1e-6)
