"""Ops whose CPU kernels compute 16-bit numbers in several steps and round after each of them.

PyTorch's decompositions of these compute in float32 and round once. That is nearer to the exact
result, and not what eager code on the CPU gives. An entry takes the op's arguments, whose tensors
are of 16 bits, or of the dtypes that it names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
HALF, BFLOAT16 = torch.float16, torch.bfloat16

Composition = Callable[..., Any]
STEPS: dict[Any, tuple[Composition, tuple[torch.dtype, ...], bool]] = {}
"""Overload -> the function that computes it, for which dtypes, and whether for whole numbers."""


def steps(
    *overloads: Any,
    dtypes: tuple[torch.dtype, ...] = (HALF, BFLOAT16),
    mixed: bool = False,
    whole: bool = False,
) -> Callable[[Composition], Composition]:
    """Enters a function for each of some overloads: for tensors of one dtype, or `mixed` for those
    of several; and, if it says so, for `whole` numbers alone."""

    def enter(function: Composition) -> Composition:
        entered = function if mixed else _of_one_dtype(function)
        STEPS.update((op, (entered, dtypes, whole)) for op in overloads)
        return function

    return enter


def _fractions(args: Sequence[Any]) -> set[torch.dtype]:
    """The dtypes of fractions among tensors. One without dimensions that is real takes the dtype of
    those with some."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    found = [a for a in tensors if a.is_floating_point() or a.is_complex()]
    decisive = {a.dtype for a in found if a.dim() or a.is_complex()}
    return decisive or {a.dtype for a in found}


def _of_one_dtype(function: Composition) -> Composition:
    """The function, where whole numbers and truth values become what the others are; and not the
    op that it is for where these are of two dtypes, whose results are wider."""

    def run(*args: Any, **keywords: Any) -> Any:
        dtypes = _fractions(args)
        if len(dtypes) > 1:
            return NotImplemented
        (dtype,) = dtypes
        return function(*[a.to(dtype) if isinstance(a, Tensor) else a for a in args], **keywords)

    return run


def in_steps(op: Any, otherwise: Composition) -> Composition:
    """The entry of `op` for tensors of its dtypes, `otherwise` for all others."""
    function, dtypes, whole = STEPS[op]

    def run(*args: Any, **keywords: Any) -> Any:
        given = _fractions(args)
        if given <= set(dtypes) and (given or whole):
            found = function(*args, **keywords)
            if found is not NotImplemented:
                return found
        return otherwise(*_alike(args), **keywords)

    return run


def _alike(args: Sequence[Any]) -> list[Any]:
    """The arguments, of which tensors of fractions without dimensions are of the dtype of others
    with some: so the CPU's kernels take them, and round once more."""
    dtypes = _fractions(args)
    if len(dtypes) != 1:
        return list(args)
    (dtype,) = dtypes
    return [a.to(dtype) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]


def in_float32(function: Composition) -> Composition:
    """A step of an optimizer on lists of tensors, computed in float32 and rounded at its end: its
    results are lists that replace the first ones of its arguments."""

    def wide(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [wide(y) for y in x]
        return x.float() if isinstance(x, Tensor) and x.dtype in (HALF, BFLOAT16) else x

    def run(*lists: Any, **keywords: Any) -> Any:
        found = function(*map(wide, lists), **keywords)
        return tuple(
            [t.to(old.dtype) for t, old in zip(new, given, strict=False)]
            for new, given in zip(found, lists, strict=False)
        )

    return run


def _not_at_zero(x: Tensor, y: Tensor, product: Tensor) -> Tensor:
    return torch.where((x == 0) & ~y.isnan(), 0, product)


@steps(aten.special_xlog1py.default)
def xlog1py(x: Tensor, y: Tensor) -> Tensor:
    """x * log(1 + y), 0 where x is 0 and y a number."""
    return _not_at_zero(x, y, x * y.log1p())


@steps(aten.special_xlog1py.other_scalar)
def xlog1py_of_number(x: Tensor, y: Any) -> Tensor:
    """The same, where y is a number."""
    return xlog1py(x, x.new_full((), y))


@steps(aten.special_xlog1py.self_scalar)
def xlog1py_by_number(x: Any, y: Tensor) -> Tensor:
    """The same, where x is a number."""
    return xlog1py(y.new_full((), x), y)


@steps(aten.special_entr.default)
def entr(x: Tensor) -> Tensor:
    """-x * log(x); 0 at 0 and -inf below."""
    inside = torch.where(x > 0, -x * x.log(), torch.where(x == 0, 0.0, -math.inf).to(x.dtype))
    return torch.where(x.isnan(), x, inside)


@steps(aten.logit.default)
def logit(x: Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), of x kept eps away from 0 and 1."""
    if eps is not None:  # beyond 1/2 the bounds are the wrong way round, and of NaN none holds
        x = torch.where(x < eps, eps, torch.where(x > 1 - eps, 1 - eps, x))
    return (x / (1 - x)).log()


@steps(aten.logit_backward.default, dtypes=(HALF, BFLOAT16, torch.float32, torch.float64))
def logit_backward(g: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    """The gradient of `logit`, as the CPU's kernel of vectors has it; that for what is left over at
    the end lets NaN through, and has another sign at -0.0. PyTorch's decomposition has neither."""
    found = g / (x * (1 - x))
    if eps is None or eps < 0:  # a negative one counts as none
        return torch.where((x >= 0) & (x <= 1), found, math.nan)
    return torch.where((x >= eps) & (x <= 1 - eps), found, 0)


_OF_POWERS = (HALF, BFLOAT16, torch.float32, torch.float64)


@steps(aten.ldexp.Tensor, dtypes=_OF_POWERS, mixed=True, whole=True)
def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """x * 2**exponent. Of fractions and whole exponents the power may overflow where the product
    does not. PyTorch's decomposition makes float32 of whole numbers, whatever the default dtype."""
    if x.is_complex() or exponent.is_complex():
        return NotImplemented
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    if exponent.is_floating_point() or not x.is_floating_point():
        two = 2.0 if dtype is not x.dtype or dtype is torch.float32 else x.new_full((), 2.0)
        return x * torch.pow(two, exponent)
    found, left = x.double(), exponent.double().clamp(-2100, 2100)  # beyond, 0 or infinite
    powers = []
    for _ in range(3):  # each a normal number
        part = left.clamp(-1022, 1023)
        powers.append(torch.pow(2.0, part))
        left = left - part
    # The greatest part comes last: what is rounded before it ends as 0.
    for power in reversed(powers):
        found = found * power
    return found if dtype is torch.float64 else found.float().to(dtype)


@steps(aten.sigmoid_backward.default, dtypes=(HALF,))
def sigmoid_backward(g: Tensor, y: Tensor) -> Tensor:
    """The gradient of sigmoid, of its result; bfloat16 is computed in float32."""
    return g * (1 - y) * y


@steps(aten.glu_backward.default)
def glu_backward(g: Tensor, x: Tensor, dim: int) -> Tensor:
    """The gradient of glu: its sigmoid is a 16-bit number."""
    first, second = x.chunk(2, dim)
    gate = second.sigmoid()
    wide = gate.float()
    return torch.cat([gate * g, ((1 - wide) * wide * first.float() * g.float()).to(x.dtype)], dim)


@steps(aten.mse_loss_backward.default)
def mse_loss_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of the squared difference."""
    factor = x.new_full((), 2 / x.numel() if reduction == 1 else 2)
    return factor * (x - target) * g


@steps(aten.mse_loss.default)
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    """The squared difference."""
    difference = x - target
    found = difference * difference
    return found.mean() if reduction == 1 else found.sum() if reduction else found


@steps(aten.smooth_l1_loss.default, dtypes=(HALF,))
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Tensor:
    """The difference, squared below beta."""
    limit, size = x.new_full((), beta), (x - target).abs()
    found = torch.where(size < limit, 0.5 * size * size / limit, size - 0.5 * limit)
    return found.mean() if reduction == 1 else found.sum() if reduction else found


@steps(aten.huber_loss.default, dtypes=(BFLOAT16,))
def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    """The difference, squared below delta."""
    limit, size = x.new_full((), delta), (x - target).abs()
    found = torch.where(size < limit, 0.5 * size * size, limit * (size - 0.5 * limit))
    return found.mean() if reduction == 1 else found.sum() if reduction else found


@steps(aten.huber_loss_backward.default)
def huber_loss_backward(
    g: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float
) -> Tensor:
    """The gradient of this: the difference, kept within delta; where that is negative, the lower
    limit comes first."""
    limit, factor = x.new_full((), delta), x.new_full((), 1 / x.numel() if reduction == 1 else 1)
    difference = x - target
    within = torch.where(difference > limit, limit, difference)
    return factor * torch.where(difference < -limit, -limit, within) * g


@steps(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """The gradient of the cross entropy of probabilities."""
    found = g * (x - target) / ((1 - x) * x).clamp(1e-12)
    found = found if weight is None else found * weight
    return found / x.numel() if reduction == 1 else found


@steps(aten.linalg_cross.default)
def cross(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors."""
    x, y = torch.broadcast_tensors(x, y)
    (a1, a2, a3), (b1, b2, b3) = x.unbind(dim), y.unbind(dim)
    return torch.stack([a2 * b3 - a3 * b2, a3 * b1 - a1 * b3, a1 * b2 - a2 * b1], dim)


@steps(aten.addr.default)
def addr(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * x + alpha times the outer product of a and b."""
    outer = (a.new_full((), alpha) * a.unsqueeze(1)) * b
    return outer if beta == 0 else x.new_full((), beta) * x + outer


@steps(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials."""
    greatest = x.amax(dim, keepdim=True)
    greatest = torch.where(greatest.abs() == math.inf, 0, greatest)
    total = (x - greatest).exp().sum(dim, keepdim=True).log() + greatest
    dims = [dim] if isinstance(dim, int) else list(dim)
    return total if keepdim else total.squeeze(dims or list(range(x.dim())))
