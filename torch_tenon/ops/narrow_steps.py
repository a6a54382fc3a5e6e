"""Steps of fused optimizers with 16-bit parameters, where the CPU's kernel is wrong.

The vectors of PyTorch's fused SGD never store such parameters, and read their momentum as float32.
Here the step is computed in float32 and rounded once, as that kernel does what is left over at the
end of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_NARROW = (torch.float16, torch.bfloat16)


def register(library: torch.library.Library) -> None:
    """Has the device take these steps itself."""
    for name in ("default", "tensor_lr"):
        op = getattr(torch.ops.aten._fused_sgd_, name)
        library.impl(op, _sgd(op), "AutogradPrivateUse1")


def _sgd(op: Any) -> Callable[..., None]:
    def step(
        params: Sequence[Tensor], grads: Sequence[Tensor], momenta: Sequence[Tensor], **how: Any
    ) -> None:
        lists = [params, grads, *([momenta] if momenta else [])]
        rows = list(zip(*lists, strict=False))
        if len(set(map(len, lists))) > 1 or not any(map(_is_narrow, rows)):
            with torch._C._AutoDispatchBelowAutograd():
                op(params, grads, momenta, **how)
            return
        for param, grad, *momentum in rows:
            if _is_narrow((param, grad, *momentum)):
                with torch.no_grad():
                    _sgd_step(param, grad, momentum[0] if momentum else None, **how)
            else:
                with torch._C._AutoDispatchBelowAutograd():
                    op([param], [grad], momentum, **how)

    return step


def _is_narrow(row: Sequence[Tensor]) -> bool:
    """Whether a parameter, its gradient and its momentum are of one 16-bit dtype: what is wrong
    with others the kernel says."""
    return row[0].dtype in _NARROW and len({t.dtype for t in row}) == 1


def _sgd_step(
    param: Tensor,
    grad: Tensor,
    buffer: Tensor | None,
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
) -> None:
    """One step of a parameter (any shape), in place; a `found_inf` of 1 leaves all as it was."""

    def store(old: Tensor, new: Tensor) -> None:
        old.copy_(new if found_inf is None else torch.where(found_inf == 1, old.float(), new))

    g = grad.float()
    if grad_scale is not None:
        g = g / grad_scale
        store(grad, g)
    g = -g if maximize else g
    g = g + weight_decay * param.float() if weight_decay else g
    if buffer is not None and momentum:
        moved = g if is_first_step else momentum * buffer.float() + (1 - dampening) * g
        store(buffer, moved)
        g = g + momentum * moved if nesterov else moved
    store(param, param.float() - lr * g)
