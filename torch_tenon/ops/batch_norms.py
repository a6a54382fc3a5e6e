"""Batch norms, where PyTorch's decomposition gives other numbers than its CPU.

The CPU's kernel makes a factor and a summand of each channel: `x * scale + shift`, where `scale`
is `weight / deviation`, and `shift` is `bias - mean * scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype
from torch._prims_common import is_contiguous_for_memory_format_or_false as is_surely_dense

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
        if training and is_surely(x.numel() == 0):
            return NotImplemented
        found = function(*args, **keywords)
        if found is NotImplemented:
            return found
        result, *saved = found
        has_own_scale = training and _is_0(given["eps"])
        if has_own_scale:
            saved[:2] = _without_eps(x, saved[1].dtype)
        vectors = [given.get(name) for name in ("weight", "bias", "running_mean", "running_var")]
        wide = get_computation_dtype(x.dtype)
        if _lie_densely(x, vectors):
            mean, scale = saved[:2] if training else _moving(given, wide)
            result = _normalized(x, mean, scale, weight, bias)
        elif x.dtype.itemsize == 2 and all(v is None or v.dtype is x.dtype for v in vectors):
            rounded = (v.to(x.dtype) for v in saved[:2])
            mean, scale = rounded if training else _moving(given, x.dtype)
            result = _in_steps(x, mean, scale, weight, bias)
        return result, *_as_saved(op, given, training, saved)

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


def _as_saved(op: Any, given: dict[str, Any], training: bool, saved: list[Any]) -> list[Any]:
    """Statistics as the CPU's kernel saves them: none without training, else in the dtype of the
    numbers where the weights have that as well. Moving ones keep their dtype, and nothing has
    none."""
    x, weight = given["input"], given["weight"]
    dtype = x.dtype if weight is None else weight.dtype
    if not training:
        saved[:2] = x.new_empty(0, dtype=dtype), x.new_empty(0, dtype=dtype)
    elif dtype is x.dtype:
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


def _in_memory(x: Tensor) -> Tensor:
    """x, computed once for all who read it: a layout is one of memory."""
    return x.as_strided(x.shape, x.stride())
