"""Progressions: numbers with equal steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp import _core_aten_decompositions_post_autograd

from torch_tenon.ops.composition_table import composition
from torch_tenon.ops.variants import known_of

aten = torch.ops.aten
_OF_ENDS = [getattr(aten.linspace, name) for name in aten.linspace.overloads() if "out" not in name]


@composition(*_OF_ENDS)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **where: Any) -> Tensor:
    """Numbers with equal steps (steps), of which the second half is counted from the end. PyTorch's
    decomposition counts the middle one from the start, which shows where an end is infinite, and
    takes no tensors for ends where no device is named."""
    start, end = (int(x) if isinstance(x, bool) else x for x in (start, end))  # tensors take none
    wanted = dtype or torch.get_default_dtype()
    excluded = known_of(aten.linspace.default).decomposition_except
    if str(wanted).removeprefix("torch.") in excluded:
        return NotImplemented
    ends = [x for x in (start, end) if isinstance(x, Tensor)]
    if wanted.is_complex or any(isinstance(x, complex) for x in (start, end)):
        if ends:
            return NotImplemented
        of_ends = _core_aten_decompositions_post_autograd()[aten.linspace.default]
        found: Tensor = of_ends(start, end, steps, dtype=dtype, **where)
        return found
    if any(x.dim() != 0 or x.is_complex() for x in ends) or steps < 0:
        return NotImplemented  # the CPU refuses it
    numbers = torch.arange(0, steps, **where)  # of a truth value too
    start, end = (
        x.to(numbers.device, torch.float64) if isinstance(x, Tensor) else x for x in (start, end)
    )
    if steps == 0:
        return numbers.to(wanted)
    if steps == 1:
        return torch.zeros_like(numbers, dtype=wanted) + start
    step = (end - start) / (steps - 1)
    from_start = start + step * numbers.to(wanted)
    from_end = end - step * (steps - 1 - numbers).to(wanted)
    return torch.where(numbers < steps // 2, from_start, from_end).to(wanted)
