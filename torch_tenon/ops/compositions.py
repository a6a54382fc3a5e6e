"""Ops of traced graphs as other ops: PyTorch's decompositions, and ours where it has none.

An entry of ours takes the op's arguments and computes with ops that have lowerings or
decompositions.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import (
    _core_aten_decompositions_post_autograd,
    decomposition_table,
    get_decompositions,
)
from torch._decomp.decompositions import lstm_impl, pw_cast_for_opmath
from torch._higher_order_ops.out_dtype import out_dtype_fallback

import torch_tenon.ops.losses
import torch_tenon.ops.upsampling  # noqa: F401  # the entries of both
from torch_tenon.ops.composition_table import COMPOSITIONS, composition
from torch_tenon.ops.decompositions import DECOMPOSITIONS
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import find, real_if_it_is
from torch_tenon.ops.manifest import PYTORCH, names_with, of
from torch_tenon.ops.standalone import STANDALONE, quantised
from torch_tenon.ops.steps import STEPS, in_float32, in_steps
from torch_tenon.ops.traced import above_gradients, stays_whole
from torch_tenon.ops.variants import known_of, overload

aten = torch.ops.aten
Tensors = Sequence[Tensor]
Ints = Sequence[int]


def decompositions(standalone: bool = False) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions and ours, less those of ops that have a lowering (see `find`)."""
    return _without_lowered(standalone)


@functools.cache
def _without_lowered(standalone: bool) -> dict[Any, Callable[..., Any]]:
    load_all()
    table = _all() | STANDALONE if standalone else _all()
    return {op: f for op, f in table.items() if find(op, standalone) is None}


@functools.cache
def _all() -> dict[Any, Callable[..., Any]]:
    # The public table adds what a trace decomposes anyhow, at a cost of 0.2 s.
    table: dict[Any, Callable[..., Any]] = dict(_core_aten_decompositions_post_autograd())
    more = (getattr(aten, op.removeprefix("aten::")) for op in names_with("decomposition", PYTORCH))
    table.update(get_decompositions(list(more)))
    for op, function in table.items():
        if wrong := known_of(op).decomposition_except:
            table[op] = _not_of(wrong, op, function)
    table.update((op, in_steps(op, table[op])) for op in STEPS)
    table[aten.mv.default] = _of_one_dtype(table[aten.mv.default])
    table.update((op, _not_by_nothing(table[op])) for op in table if "batch_norm" in str(op))
    for op, beside in _OF_FRACTIONS.items():
        table[op] = _of_fractions(table[op], beside)
    table[aten.addr.default] = _of_real_factors(table[aten.addr.default])
    table.update(COMPOSITIONS)
    for op in _IN_ORDER:
        table[op] = _in_order(table[op])
    table.update((overload(op), f) for op, f in DECOMPOSITIONS.items() if not of(op).at_once)
    return table


def enter_composition(op: Any, function: Callable[..., Any]) -> None:
    """Enters the function that computes an op, after the tables were made."""
    COMPOSITIONS[op] = function
    for standalone in (False, True):
        decompositions(standalone)[op] = function


def composition_of(op: Any, standalone: bool = False) -> Callable[..., Any] | None:
    """The function that computes an op by others, if there is one: an entry, or what PyTorch or an
    extension in C++ registered as implicit composition."""
    found = decompositions(standalone).get(op)
    if found is None and standalone:
        found = quantised(op)
    return op.decompose if found is None and op._can_decompose() else found


def other_way(op: Any) -> Callable[..., Any] | None:
    """How an op of a stand-alone program is composed of others, for arguments that its lowering
    does not take."""
    return (_all() | STANDALONE).get(op) or decomposition_table.get(op)


def _of_real_factors(function: Callable[..., Any]) -> Callable[..., Any]:
    """A complex factor without an imaginary part is a real one, as to PyTorch's kernels, and one
    that is too small for the dtype is 0."""

    @functools.wraps(function)
    def run(x: Tensor, *args: Any, **factors: Any) -> Any:
        factors = {name: real_if_it_is(k) for name, k in factors.items()}
        if x.dtype.is_floating_point and x.dtype is not torch.float64:
            factors = {name: ctypes.c_float(k).value for name, k in factors.items()}
        return function(x, *args, **factors)

    return run


def _of_one_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """What promotes dtypes, where the kernel refuses several, is for tensors of one."""

    def run(x: Tensor, y: Tensor, *args: Any, **keywords: Any) -> Any:
        return function(x, y, *args, **keywords) if x.dtype is y.dtype else NotImplemented

    return run


# Ops whose kernels take fractions alone, and dtypes that they take beside.
_OF_FRACTIONS = {
    aten.im2col.default: (torch.bool, torch.complex64, torch.complex128),
    aten.col2im.default: (torch.bool, torch.complex64, torch.complex128),
    aten.glu.default: (),
}


def _of_fractions(function: Callable[..., Any], more: Sequence[torch.dtype]) -> Callable[..., Any]:
    """What computes with whole numbers too, where the kernel refuses them."""

    def run(x: Tensor, *args: Any, **keywords: Any) -> Any:
        takes = x.dtype.is_floating_point or x.dtype in more
        return function(x, *args, **keywords) if takes else NotImplemented

    return run


_IN_ORDER = (
    aten.isin.Tensor_Tensor,
    aten.isin.Tensor_Scalar,
    aten.isin.Scalar_Tensor,
    aten.huber_loss_backward.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
)


def _in_order(function: Callable[..., Any]) -> Callable[..., Any]:
    """The result's elements in order, whatever the strides of the arguments."""

    def run(*args: Any, **keywords: Any) -> Any:
        found = function(*args, **keywords)
        return found.contiguous() if isinstance(found, Tensor) else found

    return run


def _not_by_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Statistics of batches where something is added to variances: of equal numbers without it the
    CPU's kernel makes no infinities."""

    def run(*args: Any, **keywords: Any) -> Any:
        eps = keywords.get("eps", args[-1] if args else None)
        if isinstance(eps, int | float) and eps == 0:
            return NotImplemented
        return function(*args, **keywords)

    return run


def _not_of(names: Sequence[str], op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but for results of these dtypes."""
    dtypes = [getattr(torch, name) for name in names]
    takes_dtype = any(a.name == "dtype" for a in op._schema.arguments)

    def run(x: Any, *args: Any, **keywords: Any) -> Any:
        dtype = keywords.get("dtype") or torch.get_default_dtype() if takes_dtype else x.dtype
        return NotImplemented if dtype in dtypes else function(x, *args, **keywords)

    return run


# Gradients of views. What they are given is broadcast to the part, as by the CPU's copy.


def _are_dimensions(sizes: Ints, *dims: int) -> bool:
    return all(-len(sizes) <= d < len(sizes) for d in dims)


@composition(aten.slice_backward.default)
def slice_backward(g: Tensor, sizes: Ints, dim: int, start: Any, end: Any, step: int = 1) -> Tensor:
    """Zeros of these sizes, with a gradient at a slice."""
    if not _are_dimensions(sizes, dim):
        return NotImplemented
    whole = g.new_zeros(sizes)
    part = aten.slice(whole, dim, start, end, step)
    return aten.slice_scatter(whole, g.expand(part.shape), dim, start, end, step)


@composition(aten.select_backward.default)
def select_backward(g: Tensor, sizes: Ints, dim: int, index: int) -> Tensor:
    """Zeros of these sizes, with a gradient at one place of a dimension."""
    if not _are_dimensions(sizes, dim):
        return NotImplemented
    whole = g.new_zeros(sizes)
    return aten.select_scatter(whole, g.expand(whole.select(dim, index).shape), dim, index)


@composition(aten.diagonal_backward.default)
def diagonal_backward(g: Tensor, sizes: Ints, offset: int, dim1: int, dim2: int) -> Tensor:
    """Zeros of these sizes, with a gradient at a diagonal."""
    if not _are_dimensions(sizes, dim1, dim2):
        return NotImplemented
    whole = g.new_zeros(sizes)
    part = whole.diagonal(offset, dim1, dim2)
    return aten.diagonal_scatter(whole, g.expand(part.shape), offset, dim1, dim2)


# Lists of tensors, beside those that `lowerings/lists.py` has.


@composition(aten._foreach_frac.default)
def foreach_frac(tensors: Tensors) -> list[Tensor]:
    """Each tensor less its whole part."""
    return [torch.frac(x) for x in tensors]


@composition(aten._foreach_norm.Scalar)
def foreach_norm(tensors: Tensors, order: Any = 2, dtype: Any = None) -> list[Tensor]:
    """The norm of each tensor."""
    return [torch.linalg.vector_norm(x, order, dtype=dtype) for x in tensors]


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
    shrink = _core_aten_decompositions_post_autograd()[aten.softshrink.default]
    return pw_cast_for_opmath(shrink)(x, limit)


@composition(aten.nan_to_num.default)
def nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Numbers in the place of NaN and infinities (any shape), also of those among the parts of
    complex numbers. The CPU's kernel makes an infinity of one that the dtype has not, which
    PyTorch's decomposition refuses."""
    if x.dtype.is_complex:
        return torch.complex(*(nan_to_num(p, nan, posinf, neginf) for p in (x.real, x.imag)))
    if not x.dtype.is_floating_point:
        return x.clone()
    most = torch.finfo(x.dtype).max

    def fitting(number: float) -> float:
        return math.copysign(math.inf, number) if abs(number) > most else number

    high, low = most if posinf is None else posinf, -most if neginf is None else neginf
    found = torch.where(x == -math.inf, fitting(low), x)
    found = torch.where(x == math.inf, fitting(high), found)
    return torch.where(x.isnan(), fitting(0.0 if nan is None else nan), found)


# PyTorch's own for traces have other gradients where there is a NaN, and other sums of labels.
stays_whole(
    aten.hardshrink.default,
    aten.softshrink.default,
    aten.multilabel_margin_loss_forward.default,
)


def _unpooled(op: Any) -> Callable[..., Tensor]:
    """The elements that windows were left with at their places. PyTorch's decomposition counts
    negative places from the end, which its kernel refuses."""
    scattered = decomposition_table[op]

    def unpool(x: Tensor, places: Tensor, output_size: Ints, *how: Ints) -> Tensor:
        if not x.dtype.is_floating_point:
            return NotImplemented
        count = math.prod(output_size)
        torch._assert_async(((places >= 0) & (places < count)).all(), "found an invalid max index")
        found: Tensor = scattered(x, places, output_size, *how)
        return found

    return unpool


composition(aten.max_unpool2d.default)(_unpooled(aten.max_unpool2d.default))
composition(aten.max_unpool3d.default)(_unpooled(aten.max_unpool3d.default))


@composition(torch.ops.higher_order.out_dtype)
def out_dtype(op: Any, dtype: torch.dtype, *args: Any) -> Tensor:
    """An op on whole numbers (matrices, say), computed in a wider dtype than theirs."""
    if op is aten.mm.default and dtype is torch.int32 and _are_bytes(*args):
        return torch._int_mm(*args)
    return out_dtype_fallback(op, dtype, *args)


def _are_bytes(*matrices: Tensor) -> bool:
    return all(x.dtype is torch.int8 for x in matrices)


@composition(aten.multilabel_margin_loss_forward.default)
def multilabel_margin_loss_forward(
    x: Tensor, target: Tensor, reduction: int
) -> tuple[Tensor, Tensor]:
    """The loss of each row (N, classes) for its labels, which the first -1 ends, and which classes
    these are. PyTorch's decomposition takes what comes after the -1 for the first class."""
    rows, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    classes = rows.shape[1]
    place = torch.arange(classes, device=x.device)
    torch._assert_async(((labels >= -1) & (labels < classes)).all(), "target is out of range")
    end = torch.where(labels == -1, place, classes).amin(-1, keepdim=True)
    is_label = place < end
    score = rows.gather(1, torch.where(is_label, labels, 0))
    is_target = (place == torch.where(is_label, labels, -1).unsqueeze(-1)).any(1)
    margins = (1 - score.unsqueeze(-1) + rows.unsqueeze(1)).clamp_min(0)
    counts = is_label.unsqueeze(-1) & ~is_target.unsqueeze(1)
    losses = torch.where(counts, margins, 0).sum((1, 2)) / classes
    if reduction:
        losses = losses.mean() if reduction == 1 else losses.sum()
    elif x.dim() < 2:
        losses = losses.reshape(())
    return losses, is_target.to(x.dtype).reshape(target.shape)


# Layers of eager code are kernels of C++ by their data's dtype and gradients, for one call of the
# library or for its steps one by one. Neither is what a trace can look into.
above_gradients(aten.lstm.input, lstm_impl)


@composition(aten.histc.default)
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    """A histogram of whole numbers (any shape), which PyTorch's CPU has not, as eager code counts
    them: in float64."""
    if x.dtype.is_floating_point:
        return NotImplemented
    return aten.histc(x.double(), bins, min, max).to(x.dtype)


# Gradient scaling (torch.amp.GradScaler).


@composition(aten._amp_foreach_non_finite_check_and_unscale.default)
def amp_unscale(
    gradients: Tensors, found_inf: Tensor, inverse: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Gradients times the inverse of the scale; `found_inf` is 1 where one is not finite."""
    for g in gradients:
        found_inf = torch.where(g.isfinite().all(), found_inf, 1.0)
    wide = [g * inverse.to(torch.promote_types(g.dtype, torch.float32)) for g in gradients]
    return [w.to(g.dtype) for w, g in zip(wide, gradients, strict=True)], found_inf


@composition(aten._amp_update_scale.default)
def amp_update_scale(
    scale: Tensor, tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> tuple[Tensor, Tensor]:
    """The scale for the next step, and how many steps in a row were finite."""
    bad, steps = found_inf != 0, tracker + 1
    grown = torch.where((steps == interval) & (scale * growth).isfinite(), scale * growth, scale)
    return (
        torch.where(bad, scale * backoff, grown),
        torch.where(bad | (steps == interval), 0, steps).to(tracker.dtype),
    )


# Fused optimizers: one step of each parameter. With `found_inf` of 1 the step is not made.


def _unscaled(grads: Tensors, scale: Tensor | None) -> list[Tensor]:
    return [g if scale is None else (g / scale).to(g.dtype) for g in grads]


def _unless(found_inf: Tensor | None, old: Tensors, new: Tensors) -> list[Tensor]:
    if found_inf is None:
        return list(new)
    return [torch.where(found_inf == 1, o, n) for o, n in zip(old, new, strict=True)]


def _correction(beta: float, step: Tensor, dtype: torch.dtype) -> Any:
    """1 - beta^step in the dtype of the parameters, without the loss of digits where beta is close
    to 1. The step is a number in float32 whatever they are."""
    if beta == 0:
        return 1.0
    return -torch.expm1(step.to(torch.promote_types(step.dtype, dtype)) * math.log(beta))


def _adam(decoupled: bool) -> Callable[..., Any]:
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
            g = -g if maximize else g
            if weight_decay:
                p, g = (p - lr * weight_decay * p, g) if decoupled else (p, g + weight_decay * p)
            m = m + (g - m) * (1 - beta1)
            v = v * beta2 + g * g * (1 - beta2)
            top = v
            if amsgrad:
                top = torch.maximum(greatest[k], v)
                new[3].append(top)
            first, second = (_correction(beta, steps[k], p.dtype) for beta in (beta1, beta2))
            p = p - lr / first * m / (top.sqrt() / second**0.5 + eps)
            for found, x in zip(new, (p, m, v), strict=False):
                found.append(x)
        old = (params, averages, squares, greatest)
        p_, m_, v_, t_ = (_unless(found_inf, o, n) for o, n in zip(old, new, strict=True))
        return p_, unscaled, m_, v_, t_

    return step


composition(aten._fused_adam.default, aten._fused_adam.tensor_lr)(_adam(False))
composition(aten._fused_adamw.default, aten._fused_adamw.tensor_lr)(_adam(True))


@composition(aten._fused_sgd.default, aten._fused_sgd.tensor_lr)
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
    return _unless(found_inf, params, new_params), unscaled, kept


# Where a tensor is split is data: the indices go to the host, as in eager code.


def _split_at_host_indices(x: Tensor, at: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    op = aten.tensor_split.tensor_indices_or_sections
    found: tuple[Tensor, ...] = op.py_kernels[DispatchKey.CompositeImplicitAutograd](
        x, at.cpu(), dim
    )
    return found


for _key in (DispatchKey.PrivateUse1, DispatchKey.AutogradPrivateUse1):
    aten.tensor_split.tensor_indices_or_sections.py_impl(_key)(_split_at_host_indices)


# Products and distances


@composition(aten.addbmm.default)
def addbmm(c: Tensor, x: Tensor, y: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * c + alpha times the sum over the batch of x @ y: one product of wide matrices."""
    b, n, m = x.shape
    flat = x.permute(1, 0, 2).reshape(n, b * m)
    return torch.addmm(c, flat, y.reshape(b * m, y.shape[2]), beta=beta, alpha=alpha)


@composition(aten.addmv.default)
def addmv(c: Tensor, x: Tensor, v: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * c + alpha * x @ v (N): the product with a matrix of one column."""
    column = c.unsqueeze(-1) if c.dim() else c
    return torch.addmm(column, x, v.unsqueeze(-1), beta=beta, alpha=alpha).squeeze(-1)


def _axes(x: Tensor, size: Ints, align_corners: bool) -> list[Tensor]:
    """The places of an image's elements along its dimensions, the last one first, as the CPU's
    kernel rounds them; with dimensions of 1 for those that come after."""
    found = []
    for k, count in enumerate(size[:1:-1]):
        if count <= 1:
            at = x.new_zeros(count)
        else:
            at = torch.linspace(-1, 1, count, dtype=x.dtype, device=x.device)
            at = at if align_corners else at * (count - 1) / count
        found.append(at.view(-1, *[1] * k))
    return found


# PyTorch's own have a constant where a dimension has one element, which a trace does not take.


@composition(aten.affine_grid_generator.default)
def affine_grid(theta: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """The places of an image's elements (N, ..., rank) by an affine map (N, rank, rank + 1)."""
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        return NotImplemented  # the CPU refuses it
    wide = torch.promote_types(theta.dtype, torch.float32)
    *columns, shift = (c.view(-1, *[1] * rank, rank) for c in theta.to(wide).unbind(-1))
    axes = _axes(theta, size, align_corners)
    products = [c * at.to(wide).unsqueeze(-1) for c, at in zip(columns, axes, strict=True)]
    return (sum(products[1:], products[0]) + shift).to(theta.dtype)


def affine_grid_backward(grad: Tensor, size: Ints, align_corners: bool) -> Tensor:
    """The gradient of an affine map (N, rank, rank + 1) by that of the places (N, ..., rank)."""
    rank = len(size) - 2
    if rank not in (2, 3) or grad.shape != (size[0], *size[2:], rank):
        return NotImplemented
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    axes = [at.to(wide.dtype).unsqueeze(-1) for at in _axes(grad, size, align_corners)]
    places = list(range(1, rank + 1))
    columns = [(wide * at).sum(places) for at in axes]
    return torch.stack([*columns, wide.sum(places)], -1).to(grad.dtype)


above_gradients(aten.affine_grid_generator_backward.default, affine_grid_backward)


@composition(aten._trilinear.default)
def trilinear(
    x: Tensor, y: Tensor, z: Tensor, x1: Ints, y1: Ints, z1: Ints, sumdim: Ints, unroll_dim: int = 1
) -> Tensor:
    """The product of three tensors with new dimensions, summed over some."""
    x, y, z = (
        functools.reduce(torch.unsqueeze, dims, t) for t, dims in ((x, x1), (y, y1), (z, z1))
    )
    # Two of them meet first over what the third does not have.
    return (x * z * y).sum(list(sumdim)) if sumdim else x * z * y


@composition(aten._pdist_forward.default)
def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """Distances between the rows of x, each pair once."""
    i, j = torch.triu_indices(x.shape[0], x.shape[0], 1, device=x.device).unbind(0)
    return aten._cdist_forward(x, x, p, None)[i, j]


@composition(aten._pdist_backward.default)
def pdist_backward(g: Tensor, x: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient of `pdist`."""
    n = x.shape[0]
    i, j = torch.triu_indices(n, n, 1, device=x.device).unbind(0)

    def square(values: Tensor) -> Tensor:
        half = aten.index_put(values.new_zeros(n, n), [i, j], values)
        return half + half.t()

    return aten._cdist_backward(square(g), x, x, p, square(distances))


# Random choices


@composition(aten.randperm.default)
def randperm(n: int, *, dtype: Any = torch.int64, **where: Any) -> Tensor:
    """The order of random keys; that two are equal is as likely as n in 2^31 numbers of 62 bits."""
    keys = torch.randint(0, 1 << 62, (n,), dtype=torch.int64, device=where.get("device"))
    return keys.argsort().to(torch.int64 if dtype is None else dtype)


@composition(aten.multinomial.default)
def multinomial(
    weights: Tensor, count: int, replacement: bool = False, *, generator: Any = None
) -> Tensor:
    """Places drawn with given weights: the shortest of exponential times, or by the cumulative."""
    if count <= 0:
        return NotImplemented  # the CPU refuses it
    are_weights = ((weights >= 0) & (weights < math.inf)).all()
    torch._assert_async(
        are_weights, "probability tensor contains either `inf`, `nan` or element < 0"
    )
    torch._assert_async(
        (weights > 0).any(-1).all(), "invalid multinomial distribution (sum of probabilities <= 0)"
    )
    wide = weights.float() if weights.dtype != torch.float64 else weights
    if not replacement or count == 1:
        times = aten.exponential(torch.empty_like(wide))
        return (wide / times).topk(count).indices
    total = wide.cumsum(-1)
    draws = torch.rand((*wide.shape[:-1], count), dtype=wide.dtype, device=wide.device)
    return torch.searchsorted(total, draws * total[..., -1:], right=True).clamp_max(
        wide.shape[-1] - 1
    )


@composition(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    g: Tensor,
    at: Tensor,
    starts: Tensor,
    bag_of: Tensor,
    sizes: Tensor,
    places: Tensor,
    rows: int,
    scale_by_frequency: bool,
    mode: int,
    sparse: bool,
    weights: Tensor | None,
    padding: int = -1,
) -> Tensor:
    """The gradient of an embedding bag's table."""
    if sparse:
        return NotImplemented
    if bag_of.shape != at.shape:  # the host's sum keeps none
        numbers = torch.arange(at.shape[0], dtype=starts.dtype, device=at.device)
        bag_of = torch.searchsorted(starts, numbers, right=True) - 1
    return aten._embedding_bag_dense_backward(
        g, at, bag_of, sizes, places, rows, scale_by_frequency, mode, weights, padding
    )


@composition(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    g: Tensor,
    x: Tensor,
    target: Tensor,
    weights: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> Tensor:
    """One number for each position, at the class that was meant: a choice that fuses with what
    follows, where a scatter would write zeros first."""
    channel = 0 if x.dim() < 2 else 1
    classes = torch.arange(x.shape[channel], dtype=target.dtype, device=x.device)
    classes = classes.view(-1, *[1] * (x.dim() - 1 - channel))
    if reduction == 1:  # the mean
        g = g / total_weight
    target, g = target.unsqueeze(channel), g.unsqueeze(channel) if g.dim() else g
    if weights is not None:
        g = g * weights.view(classes.shape)
    return torch.where((classes == target) & (target != ignored), -g, 0)
