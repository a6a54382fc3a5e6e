"""Quotients and remainders of integers, which vectors compute as floats, equal the CPU's: of any
numbers, of those at the ends of their range, and beside multiples of the divisor."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import needs
import pytest
import torch

Division = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DIVISIONS: dict[str, Division] = {
    "floor": torch.floor_divide,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
}
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def _pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends and divisors that no processor traps on."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    ends = {low, low + 1, low // 2, -3, -2, -1, 0, 1, 2, 3, 7, high // 2, high - 1, high}
    both = torch.tensor(list(itertools.product((v for v in ends if low <= v <= high), repeat=2)))
    any_x, any_y = torch.randint(low, high, (2, 40000))
    few = torch.randint(max(low, -50), 50, (40000,))
    x = torch.cat([both[:, 0], any_x, any_x]).to(dtype)
    y = torch.cat([both[:, 1], any_y, few]).to(dtype)

    def divisible(x: torch.Tensor) -> torch.Tensor:
        return torch.where((y == 0) | ((y == -1) & (x == low)), 3, y).to(dtype)

    multiples = x.div(divisible(x), rounding_mode="floor") * divisible(x)
    dividends = [x, multiples, multiples - 1]
    return torch.cat(dividends), torch.cat([divisible(d) for d in dividends])


@pytest.mark.sampled(6)
@needs.plans
@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_divisions_equal_the_cpu_s(dtype: torch.dtype, name: str, compiled: None) -> None:
    x, y = _pairs(dtype)
    there = x.to("tenon"), y.to("tenon")
    for _ in range(2):
        found = DIVISIONS[name](*there)
        torch.tenon.synchronize()
    assert torch.equal(found.cpu(), DIVISIONS[name](x, y))
