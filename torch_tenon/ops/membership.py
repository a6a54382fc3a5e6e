"""Which elements are among others, and whether all are: where PyTorch has no decomposition, or one
that finds other ones than its CPU."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import isin as of_numbers

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.lowerings.table import UNSIGNED

aten = torch.ops.aten


@composition(aten.isin.Tensor_Tensor)
def isin(
    elements: Tensor, among: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element (any shape) is among others (any shape). NaN equals none.

    PyTorch's decomposition searches a row that is sorted, and NaN at its end leads the search past
    the numbers.
    """
    dtype = torch.result_type(elements, among)
    if dtype in UNSIGNED:
        return NotImplemented
    x, row = elements.to(dtype), among.to(dtype)
    if not dtype.is_floating_point or assume_unique:
        found: Tensor = of_numbers(x, row, assume_unique=assume_unique, invert=invert)
        return found
    # Infinities take the place of NaN in the row, and are looked for apart.
    found = of_numbers(x, torch.where(row.isnan(), math.inf, row))
    found = torch.where(x == math.inf, (row == math.inf).any(), found)
    return ~found if invert else found


@composition(aten.isin.Tensor_Scalar)
def isin_number(
    elements: Tensor, number: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element (any shape) is a number."""
    return elements != number if invert else elements == number


@composition(aten.isin.Scalar_Tensor)
def number_isin(
    number: Any, among: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether a number is among others (any shape). PyTorch's decomposition makes a float32 of it
    first."""
    found = (among == number).any()
    return ~found if invert else found


@composition(aten._is_all_true.default)
def is_all_true(x: Tensor) -> Tensor:
    """Whether all truth values (any shape) are true."""
    return x.all() if x.dtype is torch.bool else NotImplemented


@composition(aten._is_any_true.default)
def is_any_true(x: Tensor) -> Tensor:
    """Whether one of some truth values (any shape) is true."""
    return x.any() if x.dtype is torch.bool else NotImplemented
