"""Sizes of any value, as PyTorch's code sees them."""

from __future__ import annotations

import pytest
import torch

from torch_tenon.ir.index import Symbol, var
from torch_tenon.ir.symbolic import SymbolicSizes, UndecidedSize


def test_what_bounds_decide_leaves_no_guard() -> None:
    n, m = Symbol("n", None, 3), Symbol("m", None, 2)
    n.greatest = 25
    sizes = SymbolicSizes()
    a, b = sizes.integer(var(n)), sizes.integer(var(m))
    assert a <= 25 and a > 2 and a * b != a and a * b > a and (a + 1) // 2 != 1
    assert sizes.index(a * b) == var(n) * var(m)


def test_into_how_many_parts_a_multiple_of_a_size_comes_apart() -> None:
    sizes = SymbolicSizes()
    n = var(Symbol("n", None, 2))
    parts = sizes.tensor([2, 5 * n], [5 * n, 1], torch.float32).chunk(5, 1)
    assert len(parts) == 5 and sizes.index(parts[4].shape[1]) == n
    a = sizes.integer(n)
    assert (4 * a + a - 1) // a == 4 and (2 * a - 1) // a == 1
    assert sizes.index(a) == n


def test_what_depends_on_a_size_is_told() -> None:
    """PyTorch clears a cache where it learns a bound."""
    sizes = SymbolicSizes()
    a = sizes.integer(var(Symbol("n", None, 2)))
    for limit in (25, 12):
        bool(a > limit)
    with pytest.raises(UndecidedSize, match="it depends on"):
        sizes.index(a)
