"""Gradients of losses."""

from __future__ import annotations

import torch

from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Lazy, Position, Value
from torch_tenon.ops.lowerings.table import Build, CannotLower, broadcast_load, cast, lowering

_MEAN = 1  # the reduction that divides by the weights' sum


@lowering("aten.nll_loss_backward", "aten.nll_loss2d_backward")
def nll_loss_backward(
    b: Build,
    g: Value,
    x: Value,
    target: Value,
    weights: Value | None,
    reduction: int,
    ignored: int,
    total_weight: Value,
) -> Value:
    """One number for each position, at the class that was meant: a choice that fuses with what
    follows, where a scatter would write zeros first."""
    channel = 0 if len(x.sizes) < 2 else 1
    classes, dtype = x.sizes[channel], x.dtype
    if classes == 0 or target.dtype.is_floating_point:
        raise CannotLower("no class, or targets that are none")
    given = [g, target, total_weight, *([] if weights is None else [weights])]
    g, total = cast(g, dtype), cast(total_weight, dtype)

    def body(p: Position) -> Scalar:
        where = [*p[:channel], *p[channel + 1 :]]
        sizes = [*x.sizes[:channel], *x.sizes[channel + 1 :]]
        meant = ops.to(broadcast_load(target, sizes, where), torch.int64)
        counts = ops.ne(meant, ignored)
        at = ops.indirect(ops.where(counts, meant, 0), classes, "target")
        found = broadcast_load(g, sizes, where)
        if reduction == _MEAN:
            found = ops.rounded(ops.div(found, total.load([0] * len(total.sizes))), dtype)
        if weights is not None:
            weight = ops.to(weights.load([p[channel]]), dtype)
            found = ops.rounded(ops.mul(found, weight), dtype)
        here = ops.eq(ops.index(at), ops.index(p[channel])) & counts
        return ops.where(here, ops.neg(found), 0)

    return Lazy(x.sizes, dtype, body, given, 4)
