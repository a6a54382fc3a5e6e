"""Losses and their gradients, where PyTorch's decomposition gives other numbers than its CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._decomp.decompositions import binary_cross_entropy as of_probabilities
from torch._decomp.decompositions import mse_loss_backward as of_floats
from torch._decomp.decompositions import pw_cast_for_opmath
from torch._decomp.decompositions import smooth_l1_loss as of_absolutes
from torch.nn.functional import logsigmoid

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.steps import in_steps

aten = torch.ops.aten
MEAN = 1
"""The reduction that divides by the number of elements."""


@composition(aten.mse_loss_backward.default)
def mse_loss_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of the squared difference (any shape). Whole numbers are a call: the CPU's
    kernel makes 2 / numel a whole number too."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    function = in_steps(aten.mse_loss_backward.default, of_floats)
    found: Tensor = function(g, x, target, reduction)
    return found


@composition(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    """The absolute difference, squared below beta (any shape). PyTorch's decomposition takes a beta
    that its kernel refuses."""
    if not beta >= 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    function = in_steps(aten.smooth_l1_loss.default, of_absolutes)
    found: Tensor = function(x, target, reduction, beta)
    return found


@composition(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(
    g: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    """The gradient of the absolute difference, which is squared below beta (any shape). Whole
    numbers are a call: the CPU's kernel makes 1 / numel a whole number too. So is a beta below 0,
    which the loss refuses: the kernel's vectors give other signs than what it does one by one."""
    if not x.dtype.is_floating_point or beta < 0:
        return NotImplemented
    found: Tensor = _smooth_l1_loss_backward(g, x, target, reduction, beta)
    return found


@pw_cast_for_opmath
def _smooth_l1_loss_backward(
    g: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    difference = x - target
    # NaN is below any beta. With a beta of 0, a difference of 0 is on the lower side.
    side = torch.where(difference > 0, 1.0, -1.0).to(difference.dtype)
    slope = torch.where(difference.abs() >= beta, side, difference / beta)
    return (slope / x.numel() if reduction == MEAN else slope) * g


@composition(aten.binary_cross_entropy.default)
def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """The cross entropy of probabilities (any shape). PyTorch's decomposition does not look whether
    they are some, as its kernel does."""
    if target.dtype is not x.dtype:
        return NotImplemented  # the CPU refuses it
    for given, name in ((x, "input"), (target, "target")):
        torch._assert_async(
            ((given >= 0) & (given <= 1)).all(),
            f"all elements of {name} should be between 0 and 1",
        )
    found: Tensor = of_probabilities(x, target, weight, reduction)
    return found


@composition(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """The cross entropy of the sigmoid of x (any shape). The CPU's kernel computes in place: its
    logarithm has the dtype of x, its loss that of the target, and each step is rounded to it."""
    loss, logarithm = 1 - target, logsigmoid(x)
    if pos_weight is not None:
        logarithm = logarithm * ((pos_weight - 1) * target + 1)
    if not all(map(torch.can_cast, (logarithm.dtype, x.dtype), (x.dtype, target.dtype))):
        return NotImplemented  # the CPU refuses it
    loss = (loss * x).to(target.dtype)
    loss = (loss - logarithm.to(x.dtype)).to(target.dtype)
    if weight is not None:
        loss = loss * weight
        if not torch.can_cast(loss.dtype, target.dtype):
            return NotImplemented
        loss = loss.to(target.dtype)
    if loss.shape != target.shape:
        return NotImplemented
    return loss.mean() if reduction == MEAN else loss.sum() if reduction else loss


LEAST = 9.999999960041972e-13
"""What the gradient of the cross entropy divides by at least: 1e-12 in float32."""


@composition(aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(
    g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    """The gradient of the cross entropy of probabilities (any shape)."""
    function = in_steps(aten.binary_cross_entropy_backward.default, _cross_entropy_backward)
    found: Tensor = function(g, x, target, weight, reduction)
    return found


@pw_cast_for_opmath
def _cross_entropy_backward(
    g: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int
) -> Tensor:
    found = g * (x - target) / (x * (1 - x)).clamp(min=LEAST)
    found = found if weight is None else found * weight
    return found / x.numel() if reduction == MEAN else found


# The CPU computes this loss and its gradient in place: each step is rounded to the dtype of x.


@composition(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """log(1 + exp(-target * x)) (any shape)."""
    grown = -x * target
    if not x.dtype.is_floating_point or not torch.can_cast(grown.dtype, x.dtype):
        return NotImplemented  # the CPU refuses most of it
    if grown.shape != x.shape:
        return NotImplemented  # the CPU refuses it
    found = grown.to(x.dtype).exp().log1p()
    return found.mean() if reduction == MEAN else found.sum() if reduction else found


@composition(aten.soft_margin_loss_backward.default)
def soft_margin_loss_backward(g: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    """The gradient of that (any shape), NaN where the exponential is infinite."""
    grown = (-target * x).exp()
    factor: Any = -1 / x.numel() if reduction == MEAN else -1.0
    if x.dtype in (torch.float16, torch.bfloat16):
        factor = x.new_full((), factor)
    found = ((target * grown).to(x.dtype) * factor).to(x.dtype)
    return ((found / (grown + 1)).to(x.dtype) * g).to(x.dtype)


def _of_some_classes(op: Any) -> Callable[..., Any]:
    """The loss of log-probabilities (N, classes, ...) at the classes that were meant. PyTorch's
    decomposition looks at the first class where none was meant, also where there is none."""
    of_classes = decomposition_table[op]

    def loss(x: Tensor, *args: Any) -> Any:
        classes = x.shape[1] if x.dim() > 1 else x.numel()
        return NotImplemented if classes == 0 else of_classes(x, *args)

    return loss


for _op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
    composition(_op)(_of_some_classes(_op))


@composition(aten.multi_margin_loss.default)
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: Any = 1,
    margin: Any = 1,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """How far the scores of other classes (N, classes) come within a margin of the target's (N).
    The CPU's kernel adds up only what is above 0: no NaN, and no 0 times a weight that is infinite,
    which PyTorch's decomposition adds."""
    if p not in (1, 2) or not 1 <= x.dim() <= 2 or x.shape[-1] == 0:
        return NotImplemented  # the CPU refuses it, or knows what it is
    rows, meant = torch.atleast_2d(x), torch.atleast_1d(target).unsqueeze(1)
    gap = margin - rows.gather(1, meant) + rows
    loss = gap if p == 1 else gap * gap
    if weight is not None:
        loss = loss * weight[meant]
    others = torch.arange(rows.shape[1], device=x.device) != meant
    loss = torch.where(others & (gap > 0), loss, 0)
    if reduction == MEAN:
        return loss.mean()
    found = loss.mean(1)
    return found.sum() if reduction else found.reshape(target.shape)


@composition(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    x: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """The loss of each row (N, classes) for its labels, which the first -1 ends, and which classes
    these are. PyTorch's decomposition takes what comes after the -1 for the first class. The CPU's
    kernel adds up only what is above 0, and no NaN."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = rows.shape[1]
    place = torch.arange(classes, device=x.device)
    torch._assert_async(((labels >= -1) & (labels < classes)).all(), "target is out of range")
    end = torch.where(labels == -1, place, classes).amin(-1, keepdim=True)
    is_label = place < end
    score = rows.gather(1, torch.where(is_label, labels, 0))
    is_target = (place == torch.where(is_label, labels, -1).unsqueeze(-1)).any(1)
    margins = 1 - score.unsqueeze(-1) + rows.unsqueeze(1)
    counts = is_label.unsqueeze(-1) & ~is_target.unsqueeze(1) & (margins > 0)
    losses = torch.where(counts, margins, 0).sum((1, 2)) / classes
    if reduction:
        losses = losses.mean() if reduction == 1 else losses.sum()
    elif x.dim() < 2:
        losses = losses.reshape(())
    return losses, is_target.to(x.dtype).reshape(target.shape)
