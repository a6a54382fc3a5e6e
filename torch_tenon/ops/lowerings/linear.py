"""Products of matrices: kernels where the target has some, else calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.index import product
from torch_tenon.ir.scalar import ops
from torch_tenon.ir.values import Layout, Value
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.table import Build, CannotLower, elementwise, lowering

aten = torch.ops.aten


def _product(b: Build, target: Any, operands: list[Value], **keywords: Any) -> Value:
    meta = b.out
    if product(meta.sizes) == 0 or any(product(x.sizes) == 0 for x in operands):
        if product(meta.sizes) == 0 or len(operands) == 2:
            return constant(meta.sizes, 0, meta.dtype)
        raise CannotLower("an empty operand")
    plain = [b.concrete(x) for x in operands]
    if b.backend is not None and meta.dtype in b.backend.product_dtypes and len(plain) == 2:
        return b.program.matmul(plain[0], plain[1], meta.sizes)
    layout = Layout.contiguous(meta.sizes)
    out = b.program.call(target, plain, keywords, [(meta.dtype, layout)], "library", into=True)[0]
    assert out is not None
    return out


def _plain(target: Any) -> Callable[..., Value]:
    return lambda b, x, y: _product(b, target, [x, y])


def _added(target: Any) -> Callable[..., Value]:
    """beta * c + alpha * x @ y; the sum fuses with what follows."""

    def lower(b: Build, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
        def f(u: Any, v: Any) -> Any:
            v = v if alpha == 1 else ops.mul(v, alpha)
            if beta == 0:
                return v
            return ops.add(v, u if beta == 1 else ops.mul(u, beta))

        return elementwise(f, (c, _product(b, target, [x, y])), b.out.dtype, b.out.dtype, 2)

    return lower


lowering("aten.mm")(_plain(aten.mm))
lowering("aten.bmm")(_plain(aten.bmm))
lowering("aten.addmm")(_added(aten.mm))
lowering("aten.baddbmm")(_added(aten.bmm))
