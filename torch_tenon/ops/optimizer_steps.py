"""Gradient scaling, and steps of fused optimizers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.steps import in_float32

aten = torch.ops.aten
Tensors = Sequence[Tensor]


# Gradient scaling (torch.amp.GradScaler).


@composition(aten._amp_foreach_non_finite_check_and_unscale.default)
def amp_unscale(
    gradients: Tensors, found_inf: Tensor, inverse: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients times the inverse of the scale; `found_inf` is 1 where one is not finite."""
    if not (
        all(g.is_floating_point() for g in gradients)
        and found_inf.dtype is inverse.dtype is torch.float32
    ):
        return NotImplemented
    for g in gradients:
        found_inf = torch.where(g.isfinite().all(), found_inf, 1.0)
    wide = [g * inverse.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    return [w.to(g.dtype) for w, g in zip(wide, gradients, strict=True)], found_inf


@composition(aten._amp_update_scale.default)
def amp_update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    """The scale for the next step, and how many steps in a row were finite."""
    kinds = [scale.dtype, found_inf.dtype, tracker.dtype]
    if kinds != [torch.float32, torch.float32, torch.int32]:
        return NotImplemented
    bad, steps = found_inf != 0, tracker + 1
    grown = torch.where((steps == interval) & (scale * growth).isfinite(), scale * growth, scale)
    return (
        torch.where(bad, scale * backoff, grown),
        torch.where(bad | (steps == interval), 0, steps).to(tracker.dtype),
    )


# Fused optimizers: one step of each parameter. With `found_inf` of 1 the step is not made, and the
# gradients stay scaled.


def _unscaled(grads: Tensors, scale: Tensor | None) -> list[Tensor]:
    return [g if scale is None else (g / scale).to(g.dtype) for g in grads]


def _unless(found_inf: Tensor | None, old: Tensors, new: Tensors) -> list[Tensor]:
    if found_inf is None:
        return list(new)
    return [torch.where(found_inf == 1, o, n) for o, n in zip(old, new, strict=True)]


def _as_kernels_take(function: Callable[..., Any]) -> Callable[..., Any]:
    """A step, for the dtypes that PyTorch's kernels take: parameters of fractions, gradients and
    state like them, and scaling in float32. They say what is wrong with others."""

    @functools.wraps(function)
    def step(*lists: Any, **keywords: Any) -> Any:
        scaling = [keywords.get(name) for name in ("grad_scale", "found_inf")]
        taken = all(t is None or t.dtype is torch.float32 for t in scaling)
        for params, *others in zip(*(x for x in lists[: _STATE[len(lists)]] if x), strict=False):
            dtype = params.dtype
            taken = taken and dtype.is_floating_point and all(t.dtype is dtype for t in others)
        return function(*lists, **keywords) if taken else NotImplemented

    return step


_STATE = {3: 3, 6: 5}  # of so many lists those that are like the parameters: not the steps


def _correction(beta: float, step: Tensor, dtype: torch.dtype) -> Any:
    """1 - beta^step in the dtype of the parameters, without the loss of digits where beta is close
    to 1. The step is a number in float32 whatever they are."""
    step = step.to(torch.promote_types(step.dtype, dtype))
    if beta <= 0:
        return 1.0 - torch.pow(beta, step)
    return 0.0 - torch.expm1(step * math.log(beta))  # no negative zero, by which lr is divided


def _adam(decoupled: bool) -> Callable[..., Any]:
    @_as_kernels_take
    @in_float32
    def step(
        params: Tensors,
        grads: Tensors,
        averages: Tensors,
        squares: Tensors,
        greatest: Tensors,
        steps: Tensors,
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> tuple[list[Tensor], ...]:
        unscaled = _unscaled(grads, grad_scale)
        new: tuple[list[Tensor], ...] = ([], [], [], [])
        for k, (p, g, m, v) in enumerate(zip(params, unscaled, averages, squares, strict=True)):
            # A rate in a tensor is one of the parameters' dtype, or of a wider one.
            rate = lr.to(torch.promote_types(lr.dtype, p.dtype)) if torch.is_tensor(lr) else lr
            g = -g if maximize else g
            if weight_decay:
                decay = 1 - rate * weight_decay
                p, g = (p * decay, g) if decoupled else (p, g + weight_decay * p)
            m = torch.lerp(m, g, 1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            top = v
            if amsgrad:
                top = torch.maximum(greatest[k], v)
                new[3].append(top)
            first, second = (_correction(beta, steps[k], p.dtype) for beta in (beta1, beta2))
            p = p - rate / first * m / (top.sqrt() / second**0.5 + eps)
            for found, x in zip(new, (p, m, v), strict=False):
                found.append(x)
        old = (params, averages, squares, greatest)
        p_, m_, v_, t_ = (_unless(found_inf, o, n) for o, n in zip(old, new, strict=True))
        return p_, _unless(found_inf, grads, unscaled), m_, v_, t_

    return step


composition(aten._fused_adam.default, aten._fused_adam.tensor_lr)(_adam(False))
composition(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)(_adam(True))


@composition(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
@_as_kernels_take
@in_float32
def fused_sgd(
    params: Tensors,
    grads: Tensors,
    momenta: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """One step of stochastic gradient descent."""
    unscaled = _unscaled(grads, grad_scale)
    new_params, new_momenta = [], []
    for k, (p, g) in enumerate(zip(params, unscaled, strict=True)):
        g = -g if maximize else g
        g = g + weight_decay * p if weight_decay else g
        if momentum:
            buffer = g if is_first_step else momenta[k] * momentum + (1 - dampening) * g
            new_momenta.append(buffer)
            g = g + momentum * buffer if nesterov else buffer
        new_params.append(p - lr * g)
    kept = _unless(found_inf, momenta, new_momenta) if momentum else list(momenta)
    stepped = _unless(found_inf, params, new_params)
    return stepped, _unless(found_inf, grads, unscaled), kept
