"""How random numbers are distributed: whole distributions, tails, and what neighbours share."""

import math
from collections.abc import Callable

import pytest
import torch

N = 1 << 19
F32, F64 = torch.float32, torch.float64


def numbers(dtype: torch.dtype, draw: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Drawn on the device, as float64 on the host."""
    torch.manual_seed(21)
    return draw(torch.empty(N, dtype=dtype, device="tenon")).cpu().double()


# What is drawn, and its distribution function.
DISTRIBUTIONS: dict[str, tuple[Callable, Callable]] = {
    "uniform": (lambda x: x.uniform_(-1, 3), lambda x: (x + 1) / 4),
    "normal": (lambda x: x.normal_(2, 3), lambda x: torch.special.ndtr((x - 2) / 3)),
    "exponential": (lambda x: x.exponential_(1.5), lambda x: -torch.expm1(-1.5 * x)),
    "cauchy": (lambda x: x.cauchy_(1, 2), lambda x: 0.5 + torch.atan((x - 1) / 2) / math.pi),
    "log_normal": (
        lambda x: x.log_normal_(0.5, 0.7),
        lambda x: torch.special.ndtr((x.log() - 0.5) / 0.7),
    ),
}


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution_functions(name: str, dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov's test: a right sampler fails for one seed in 100,000."""
    draw, function = DISTRIBUTIONS[name]
    chances = function(numbers(dtype, draw)).sort().values
    steps = torch.arange(N + 1, dtype=F64) / N
    distance = max((chances - steps[:-1]).max().item(), (steps[1:] - chances).max().item())
    assert distance * math.sqrt(N) < 2.47
    # Both ends are reached, as far as so many numbers reach.
    assert 0 <= chances[0] < 12 / N and 0 <= 1 - chances[-1] < 12 / N


@pytest.mark.parametrize("dtype", [F32, F64])
def test_moments_and_tails_of_normal_numbers(dtype: torch.dtype) -> None:
    x = numbers(dtype, lambda x: x.normal_())
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        found = (x**power).mean().item()
        assert abs(found - moment) < 5 * math.sqrt(variance / N), power
    for bound in (1, 2, 3, 4):
        chance = math.erfc(bound / math.sqrt(2))
        count = (x.abs() > bound).sum().item()
        assert abs(count - N * chance) < 5 * math.sqrt(N * chance), bound
    assert x.unique().numel() > 0.98 * N


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", ["uniform", "normal", "exponential"])
def test_elements_of_one_block_have_nothing_in_common(name: str, dtype: torch.dtype) -> None:
    """Two normal numbers are made of one radius, and an element's words lie beside others'."""
    draw, function = DISTRIBUTIONS[name]
    x = function(numbers(dtype, draw)) - 0.5
    for y in (x, x * x):
        y = (y - y.mean()) / y.std()
        for lag in (1, 2, 8, 15, 16, 17, 32, 48, 64, 1024):
            shared = (y[lag:] * y[:-lag]).mean().item()
            assert abs(shared) < 5 / math.sqrt(N), lag


@pytest.mark.parametrize("count", [2, 3, 10, 1000, (1 << 20) - 7, (1 << 20) + 7, (1 << 62) + 11])
def test_whole_numbers_are_equally_likely(count: int) -> None:
    """Pearson's test of up to 256 equal classes."""
    x = torch.randint(
        0, count, (N,), device="tenon", generator=torch.Generator("tenon").manual_seed(8)
    ).cpu()
    assert x.min() >= 0 and x.max() < count
    classes = min(count, 250)
    width = count // classes
    found = torch.bincount((x // width).clamp_max(classes), minlength=classes + 1).double()
    sizes = torch.full((classes + 1,), width / count, dtype=F64)
    sizes[-1] = (count - classes * width) / count
    kept = sizes > 0
    expected = sizes[kept] * N
    distance = ((found[kept] - expected) ** 2 / expected).sum().item()
    freedom = int(kept.sum()) - 1
    assert distance < freedom + 5 * math.sqrt(2 * freedom) + 10


@pytest.mark.parametrize("p", [0.0, 1e-4, 0.3, 0.9999, 1.0])
def test_chances(p: float) -> None:
    for dtype in (torch.bool, F32):
        count = numbers(dtype, lambda x: x.bernoulli_(p)).sum().item()
        assert abs(count - N * p) <= 5 * math.sqrt(N * p * (1 - p))
    trials = numbers(torch.int64, lambda x: x.geometric_(0.3))
    for k in range(1, 12):
        chance = 0.3 * 0.7 ** (k - 1)
        assert abs((trials == k).sum().item() - N * chance) < 5 * math.sqrt(N * chance)
