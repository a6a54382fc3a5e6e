"""Products that follow from those of the target's library: with `mm` there is `addmm` too."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_tenon.ops import manifest
from torch_tenon.ops.variants import overload


def derived(library: Mapping[str, Any]) -> dict[str, Callable[..., Tensor]]:
    """The ops that a target's library has no kernel for, but has one for the product in them."""
    return {
        op: functools.partial(_with_addend, overload(known.product))
        for op, known in manifest.load().items()
        if known.product in library and op not in library
    }


def _with_addend(
    product: Callable[..., Tensor],
    addend: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
) -> Tensor:
    """`beta * addend + alpha * product(left, right)`; with a `beta` of 0 the addend counts for
    nothing. Raises RuntimeError for matrices, an addend or factors that do not fit."""
    torch._check(
        addend.dtype is left.dtype,
        lambda: f"self and mat2 must have the same dtype, but got {addend.dtype} and {right.dtype}",
    )
    alpha, beta = (_factor(k, addend.dtype) for k in (alpha, beta))
    made = product(left, right)
    addend = addend.expand(made.shape)
    if alpha != 1:
        made = made * alpha
    if beta == 0:
        return made
    return torch.add(made, addend, alpha=beta)


def _factor(k: Any, dtype: torch.dtype) -> Any:
    """A number as the CPU's kernels take it: of whole numbers its whole part. Raises RuntimeError
    for a complex one where there are none."""
    if dtype.is_complex:
        return k
    if isinstance(k, complex):
        torch._check(k.imag == 0, lambda: f"{dtype} has no number {k}")
        k = k.real
    return k if dtype.is_floating_point else int(k)
