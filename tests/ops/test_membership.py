"""Which elements are among others: NaN, infinities, numbers of two kinds."""

from __future__ import annotations

import math

import needs
import pytest
import torch
from ops.lowerings.by_plan import same_by_plans

pytestmark = needs.plans

SPECIAL = [1.0, 1.5, math.nan, math.inf, -math.inf, 7.0]
ROWS = {
    "nan": [1.0, 1.5, math.nan, 8.0],
    "infinite": [1.0, -math.inf, math.nan, math.inf],
    "only nan": [math.nan],
}


@pytest.mark.parametrize("invert", [False, True])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_among_many(dtype: torch.dtype, row: str, invert: bool) -> None:
    """So many that they are sorted first."""
    x, among = (torch.tensor(n, dtype=dtype) for n in (SPECIAL * 4, ROWS[row] * 30))
    function = lambda x, among: torch.isin(x, among, invert=invert)  # noqa: E731
    same_by_plans(function, x, among)


def test_numbers_of_two_dtypes() -> None:
    fractions, whole = torch.tensor(SPECIAL * 4), torch.tensor([1, 2, 3] * 10)
    for given in ((fractions, whole), (whole, fractions), (whole, whole.to(torch.uint8))):
        same_by_plans(torch.isin, *given)


def test_a_number_that_float32_has_not() -> None:
    whole = torch.tensor([1, 2**24])
    same_by_plans(lambda x: torch.isin(2**24 + 1, x), whole)
    same_by_plans(lambda x: torch.isin(x, 2**24 + 1, invert=True), whole)
