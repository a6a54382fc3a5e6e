"""Compositions of products of vectors and matrices, and of what is added to them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.lowerings.table import real_if_it_is
from torch_tenon.ops.steps import in_steps

aten = torch.ops.aten
Ints = Sequence[int]

_MOST_BETWEEN = 1 << 22  # numbers between the two products of a trilinear one


@composition(aten.addr.default)
def addr(c: Tensor, x: Tensor, y: Tensor, **factors: Any) -> Tensor:
    """beta * c + alpha times the outer product (N, M). A complex factor without an imaginary part
    is a real one, as to PyTorch's kernels, and one that is too small for the dtype is 0."""
    factors = {name: real_if_it_is(k) for name, k in factors.items()}
    if c.dtype.is_floating_point and c.dtype is not torch.float64:
        factors = {name: ctypes.c_float(k).value for name, k in factors.items()}
    of_outer = _core_aten_decompositions_post_autograd()[aten.addr.default]
    found: Tensor = in_steps(aten.addr.default, of_outer)(c, x, y, **factors)
    return found


@composition(aten.addbmm.default)
def addbmm(c: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * c + alpha times the sum over the batch of x @ y: one product of wide matrices."""
    b, n, m = x.shape
    flat = x.permute(1, 0, 2).reshape(n, b * m)
    return torch.addmm(c, flat, y.reshape(b * m, y.shape[2]), beta=beta, alpha=alpha)


@composition(aten.addmv.default)
def addmv(c: Tensor, x: Tensor, v: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * c + alpha * x @ v (N): the product with a matrix of one column. Of nothing the kernel
    takes truth values too, which that of matrices refuses."""
    if x.dtype is torch.bool:
        return NotImplemented
    column = c.unsqueeze(-1) if c.dim() else c
    return torch.addmm(column, x, v.unsqueeze(-1), beta=beta, alpha=alpha).squeeze(-1)


@composition(aten._trilinear.default)
def trilinear(
    x: Tensor, y: Tensor, z: Tensor, x1: Ints, y1: Ints, z1: Ints, sumdim: Ints, unroll_dim: int = 1
) -> Tensor:
    """The product of three tensors with new dimensions, summed over some, as two products.

    Where what lies between them is large it is the CPU's kernel, which makes a part at a time. That
    has a way of its own with other dtypes than the first one's, and with sizes that do not fit.
    """
    if {x.dtype, y.dtype, z.dtype} != {x.dtype} or not x.is_floating_point():
        return NotImplemented
    rank = x.dim() + len(x1)
    lacks, sums = (x1, y1, z1), {d % rank for d in sumdim if rank}
    if any(d < 0 for dims in lacks for d in dims):
        return NotImplemented
    own = [[d for d in range(rank) if d not in dims] for dims in lacks]
    sizes: dict[int, int] = {}
    for t, dims in zip((x, y, z), own, strict=True):
        if any(sizes.setdefault(d, n) != n for d, n in zip(dims, t.shape, strict=True)):
            return NotImplemented
    if len(sizes) < rank:
        return NotImplemented
    result = [d for d in range(rank) if d not in sums]
    if len(result) == rank:
        x, y, z = (
            functools.reduce(torch.unsqueeze, dims, t)
            for t, dims in zip((x, y, z), lacks, strict=True)
        )
        return x * z * y  # in the kernel's order
    tensors = list(zip((x, y, z), own, strict=True))
    # Two of them meet first, over what neither the third nor the result has: those that make least.
    least = None
    for k in (2, 1, 0):
        (a, of_a), (b, of_b) = (t for i, t in enumerate(tensors) if i != k)
        kept = [d for d in sizes if d in of_a + of_b and d in result + own[k]]
        made = math.prod(sizes[d] for d in kept)
        if least is None or made < least[0]:
            least = made, (a, of_a, b, of_b, kept), tensors[k]
    assert least is not None, "there are three pairs"
    made, first, (c, of_c) = least
    if made > _MOST_BETWEEN:
        return NotImplemented
    return torch.einsum(torch.einsum(*first), first[-1], c, of_c, result)
