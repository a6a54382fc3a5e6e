"""Batch norms, where PyTorch's decomposition gives other numbers than its CPU.

The CPU's kernel makes a factor and a summand of each channel: `x * scale + shift`, where `scale`
is `weight / deviation`, and `shift` is `bias - mean * scale`. In training it computes with the
statistics that it saves, which are rounded to the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype
from torch._prims_common import is_contiguous_for_memory_format_or_false as is_surely_dense

from torch_tenon.ir.sixteen_bits import rounded_number

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The order of memory that the kernel takes as well, by the number of dimensions."""


def as_on_the_cpu(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which is PyTorch's decomposition of a batch norm, with the CPU's numbers."""
    names = [a.name for a in op._schema.arguments]
    trains = "training" not in names and "no_" not in op.name()

    def run(*args: Any, **keywords: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | keywords
        x, weight, bias = (given[name] for name in ("input", "weight", "bias"))
        training = given.get("training", trains)
        # The moving spread is that of one number fewer: of one number to a channel there is none.
        least = x.shape[1] if given.get("running_var") is not None else 0
        if training and is_surely(x.numel() <= least):
            return NotImplemented
        vectors = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
        dtype = next((v.dtype for v in vectors if v is not None), x.dtype)
        is_dense, has_own_scale = _lie_densely(x, vectors), training and _is_0(given["eps"])
        has_rounded_sums = training and is_dense and dtype is torch.bfloat16 and not has_own_scale
        found = function(**given | {"eps": 0.0} if has_rounded_sums else given)
        if found is NotImplemented:
            return found
        result, *saved = found
        if has_own_scale:
            saved[:2] = _without_eps(x, saved[1].dtype)
        elif has_rounded_sums:
            saved[1] = _of_rounded_sums(saved[1], x.numel() // x.shape[1], given["eps"])
        wide = get_computation_dtype(x.dtype)
        if is_dense:
            rounded = (v.to(dtype).to(wide) for v in saved[:2])
            mean, scale = rounded if training else _moving(given, wide)
            result = _normalized(x, mean, scale, weight, bias)
        elif x.dtype.itemsize == 2 and all(v is None or v.dtype is x.dtype for v in vectors):
            rounded = (v.to(x.dtype) for v in saved[:2])
            mean, scale = rounded if training else _moving(given, x.dtype)
            result = _in_steps(x, mean, scale, weight, bias)
        elif has_own_scale:
            result = _centred(x, saved[0].to(wide), saved[1].to(wide), weight, bias)
        return result, *_as_saved(op, given, training, dtype, saved)

    return run


def _is_0(eps: Any) -> bool:
    return isinstance(eps, int | float) and eps == 0


def is_surely(condition: bool | torch.SymBool) -> bool:
    """Whether a condition holds for all values of the symbols in it."""
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # SymPy: 0.4 s

    return statically_known_true(condition)


def _lie_densely(x: Tensor, vectors: Sequence[Tensor | None]) -> bool:
    """Whether the kernel that has a factor and a summand takes them. Another one subtracts the
    mean first, as the decomposition does."""
    formats = [torch.contiguous_format, *([_FORMATS[x.dim()]] if x.dim() in _FORMATS else [])]
    return any(is_surely_dense(x, memory_format=f) for f in formats) and all(
        v is None or is_surely_dense(v, memory_format=torch.contiguous_format) for v in vectors
    )


def _without_eps(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The mean and the inverse of the deviation, to whose variance nothing is added. Of equal
    numbers that is 0 on the CPU, which adds in double precision, and no infinity."""
    variance, mean = torch.var_mean(x.double(), [0, *range(2, x.dim())], correction=0)
    return mean.to(dtype), torch.where(variance == 0, 0.0, variance.rsqrt()).to(dtype)


def _of_rounded_sums(scale: Tensor, count: Any, eps: float) -> Tensor:
    """The inverse of the deviation, by that without `eps`. The kernel has the sum of squares, how
    many there are, and their quotient in bfloat16."""
    total = (count / (scale * scale)).bfloat16()
    if isinstance(count, int):
        count = rounded_number(count, torch.bfloat16)
    else:
        count = scale.new_full((), count).bfloat16()
    return torch.rsqrt((total / count).to(scale.dtype) + eps)


def _moving(given: dict[str, Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The moving mean, and the inverse of the deviation, computed in a dtype."""
    mean, variance = (given[name].to(dtype) for name in ("running_mean", "running_var"))
    return mean, 1 / torch.sqrt(variance + given["eps"])


def _normalized(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """x (batch, channels, ...) less its mean, times its scale and the weight, in the dtype of x.

    Where the kernel's summand is finite the mean is subtracted first, as nothing cancels then. An
    infinite one is added.
    """
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    usual = shift.isfinite()
    start, end = torch.where(usual, mean, 0), torch.where(usual, 0 if bias is None else bias, shift)
    start, scale, end = (_in_memory(v).view(-1, *[1] * (x.dim() - 2)) for v in (start, scale, end))
    return ((x - start) * scale + end).to(x.dtype)


def _centred(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """x (batch, channels, ...) less its mean, times its scale, then weighted: as the kernel for
    what lies apart has it."""
    sizes = [-1, *[1] * (x.dim() - 2)]
    found = (x - mean.view(sizes)) * scale.view(sizes)
    found = found if weight is None else found * weight.view(sizes)
    return (found if bias is None else found + bias.view(sizes)).to(x.dtype)


def _as_saved(
    op: Any, given: dict[str, Any], training: bool, dtype: torch.dtype, saved: list[Any]
) -> list[Any]:
    """Statistics as the CPU's kernel saves them: none without training, else in `dtype`, that of
    the weights. Moving ones keep their dtype, and nothing has none."""
    x = given["input"]
    if not training:
        saved[:2] = x.new_empty(0, dtype=dtype), x.new_empty(0, dtype=dtype)
    else:
        saved[:2] = saved[0].to(dtype), saved[1].to(dtype)
    if "functional" in op.name():
        moving = given["running_mean"], given["running_var"]
        saved[-2:] = (new.to(old.dtype) for new, old in zip(saved[-2:], moving, strict=True))
    return saved


def _in_steps(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """The same as 16-bit numbers of which each step is rounded."""

    def of_channels(v: Tensor) -> Tensor:
        return v.view(-1, *[1] * (x.dim() - 2))

    found = (x - of_channels(mean)) * of_channels(scale)
    found = found if weight is None else found * of_channels(weight)
    return found if bias is None else found + of_channels(bias)


def gradients_as_on_the_cpu(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which is PyTorch's decomposition of a batch norm's gradients; of 16-bit numbers
    that lie apart each step is rounded."""
    names = [a.name for a in op._schema.arguments]
    statistics = ("weight", "running_mean", "running_var", "save_mean", *names[6:7])

    def run(*args: Any, **keywords: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | keywords
        g, x = given["grad_out"], given["input"]
        vectors = [given[name] for name in statistics]
        alike = all(v is None or v.dtype is x.dtype for v in (g, *vectors))
        if x.dtype.itemsize != 2 or not alike or _lie_alike(g, x):
            return function(*args, **keywords)
        weight, mean, variance, *saved = vectors
        training: bool = given["train" if "train" in given else "update"]
        if training:
            mean, scale = saved
        else:
            scale = torch.rsqrt(variance.float() + given["eps"]).to(x.dtype)
        return _gradients_in_steps(g, x, mean, scale, weight, training)

    return run


def _lie_alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are dense in the same order of memory."""
    formats = [torch.contiguous_format, *([_FORMATS[a.dim()]] if a.dim() in _FORMATS else [])]
    return any(all(is_surely_dense(t, memory_format=f) for t in (a, b)) for f in formats)


def _gradients_in_steps(
    g: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, training: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the numbers, of the weight and of the bias."""
    dims, count = [0, *range(2, x.dim())], x.numel() // x.shape[1]

    def of_channels(v: Tensor) -> Tensor:
        return v.view(-1, *[1] * (x.dim() - 2))

    total, centred = g.sum(dims), x - of_channels(mean)
    product = (centred * g).sum(dims, dtype=torch.float32)
    found = g
    if training:
        slope = product.to(x.dtype) * scale * scale / count
        found = g - of_channels(total / count) - centred * of_channels(slope)
    found = found * of_channels(scale)
    found = found if weight is None else found * of_channels(weight)
    return found, (product * scale).to(x.dtype), total


def _in_memory(x: Tensor) -> Tensor:
    """x, computed once for all who read it: a layout is one of memory."""
    return x.as_strided(x.shape, x.stride())
