"""Activations and their gradients, where PyTorch's decomposition has other numbers than its CPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd
from torch._decomp.decompositions import pw_cast_for_opmath

from torch_tenon.ir.sixteen_bits import rounded_number
from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.steps import in_steps
from torch_tenon.ops.traced import above_gradients
from torch_tenon.pytorch.versions import rounds_limit_of_softshrink

aten = torch.ops.aten


@composition(aten.celu.default)
def celu(x: Tensor, alpha: Any = 1.0) -> Tensor:
    """x (any shape), and alpha * (exp(x / alpha) - 1) where negative. PyTorch's decomposition for
    traces computes at zero as well, where an infinite alpha makes no number."""
    if alpha == 0 or not x.dtype.is_floating_point:
        return NotImplemented  # the CPU refuses it
    return aten.elu(x, alpha, 1.0, 1.0 / alpha)


@composition(aten.hardshrink_backward.default, aten.softshrink_backward.default)
def shrink_backward(grad: Tensor, x: Tensor, limit: float) -> Tensor:
    """The gradient where the input lay beyond the limit (N, ...), nothing where it is NaN: as the
    CPU's kernel of vectors has it; that for what is left over at the end lets NaN through."""
    return torch.where((x < -limit) | (x > limit), grad, 0)


# Where the input is NaN no comparison holds. PyTorch's decompositions of these ask the opposite of
# what its kernels ask, and so give the gradient there that belongs to numbers.


@composition(aten.hardtanh_backward.default)
def hardtanh_backward(grad: Tensor, x: Tensor, least: Any, most: Any) -> Tensor:
    """The gradient where the input lay between the bounds (N, ...), nothing elsewhere."""
    return torch.where((x > least) & (x < most), grad, 0)


@composition(aten.hardswish_backward.default)
@pw_cast_for_opmath
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of x * (x + 3) / 6 (N, ...), which is none up to -3, and the whole from 3 on."""
    inside = grad * (x / 3 + 0.5)
    return torch.where(x <= -3, 0, torch.where(x >= 3, grad, inside))


SIXTH = ctypes.c_float(1 / 6).value
"""A sixth in float32, which the CPU's kernel of float64 multiplies by as well."""


@composition(aten.hardsigmoid_backward.default)
@pw_cast_for_opmath
def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of (x + 3) / 6 kept between 0 and 1 (N, ...): none at the bounds."""
    return torch.where((x > -3) & (x < 3), grad * SIXTH, 0)


@composition(aten.elu_backward.default)
@pw_cast_for_opmath
def elu_backward(
    grad: Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Tensor
) -> Tensor:
    """The gradient of elu by its input (N, ...), or by its result."""
    factor = 1.0 * alpha * scale  # of whole numbers too, whose product may have too many digits
    slope = x + factor if is_result else torch.exp(x * input_scale) * factor
    return torch.where(x > 0, grad * scale, grad * input_scale * slope)


@composition(aten.softshrink.default)
def softshrink(x: Tensor, limit: Any = 0.5) -> Tensor:
    """x moved to 0 by a limit (any shape): 16-bit numbers in float32, and rounded once."""
    if x.dtype.itemsize == 2 and x.dtype.is_floating_point and rounds_limit_of_softshrink():
        limit = rounded_number(float(limit), x.dtype)
    shrink = _core_aten_decompositions_post_autograd()[aten.softshrink.default]
    return pw_cast_for_opmath(shrink)(x, limit)


@composition(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials (any shape). PyTorch's decomposition asks for the
    greatest, which nothing has."""
    if any(isinstance(n, int) and n == 0 for n in x.shape):
        return x.exp().sum(dim, keepdim).log()
    op = aten.logsumexp.default
    function = in_steps(op, _core_aten_decompositions_post_autograd()[op])
    found: Tensor = function(x, dim, keepdim)
    return found


def _of_its_gradients_dtype(op: Any) -> None:
    """The gradient of a softmax has the dtype of what comes in, whatever the input's is said to be;
    a trace converts it. PyTorch's kernel refuses float32 for an input of float16."""

    def gradient(g: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        if dtype is g.dtype or (g.dtype, dtype) == (torch.float32, torch.float16):
            return NotImplemented
        found: Tensor = op(g, y, dim, g.dtype)
        return found

    above_gradients(op, gradient)


_of_its_gradients_dtype(aten._softmax_backward_data.default)
_of_its_gradients_dtype(aten._log_softmax_backward_data.default)
