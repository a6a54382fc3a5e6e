"""Binary searches, as on PyTorch's CPU: which elements they look at, and so what they find in rows
that are not sorted."""

from __future__ import annotations

import pytest
import torch

from tests.ops.lowerings.by_plan import same_by_plans


@pytest.mark.parametrize("length", [0, 1, 2, 3, 6, 7, 8, 9, 30, 31, 37])
def test_rows_of_any_length(length: int) -> None:
    row = torch.sort(torch.randn(length)).values
    values = torch.cat([torch.randn(21), row[:5], torch.tensor([-9.0, 9.0])])
    same_by_plans(
        lambda row, x: [
            torch.searchsorted(row, x),
            torch.searchsorted(row, x, right=True, out_int32=True),
            torch.bucketize(x, row),
        ],
        row,
        values,
    )


def test_rows_that_are_not_sorted() -> None:
    rows = torch.randn(6, 29)
    rows[0, ::4], rows[1, 14] = torch.nan, torch.nan
    same_by_plans(
        lambda rows, x, order: [
            torch.searchsorted(rows, x),
            torch.searchsorted(rows, x, sorter=order),
            torch.searchsorted(rows.long(), x.long(), right=True),
        ],
        rows,
        torch.randn(6, 40),
        rows.argsort(1),
    )
