"""Products of matrices: kernels where the target has some, else calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import Index, product
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.values import Layout, Lazy, Position, Stored, Value, size_hint, steps_read
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.reductions import shared
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_to,
    cast,
    elementwise,
    fitting,
    lowering,
)

aten = torch.ops.aten

FEW = 2  # rows or columns for each of which an operand may be computed again
WITHOUT_MEMORY = (torch.float32, torch.bfloat16, torch.float16)


def _product(b: Build, target: Any, operands: list[Value], **keywords: Any) -> Value:
    meta = b.out
    if product(meta.sizes) == 0 or any(product(x.sizes) == 0 for x in operands):
        if product(meta.sizes) == 0 or len(operands) == 2:
            return constant(meta.sizes, 0, meta.dtype)
        raise CannotLower("an empty operand")
    if len(operands) == 2 and meta.dtype in WITHOUT_MEMORY and _saves_memory(*operands):
        return _by_loops(b, *operands)
    multiplies = b.backend is not None and meta.dtype in b.backend.product_dtypes
    if b.program.standalone and not multiplies:
        return _by_loops(b, *(shared(b, x) for x in operands))
    plain = [_in_memory(b, x) for x in operands]
    if multiplies and len(plain) == 2:
        return b.program.matmul(plain[0], plain[1], meta.sizes)
    layout = Layout.contiguous(meta.sizes)
    out = b.program.call(target, plain, keywords, [(meta.dtype, layout)], "library", into=True)[0]
    assert out is not None
    return out


def _in_memory(b: Build, x: Value) -> Stored:
    """An operand, which lies as what it is computed of: a product takes any strides, and to turn it
    takes longer than to compute it."""
    if isinstance(x, Lazy) and x.realised is None:
        b.program.realise(x, steps_read(x))
    found: Stored = b.concrete(x)
    return found


def _saves_memory(x: Value, y: Value) -> bool:
    """Whether one operand is computed of much less memory than it would take, as weights of few
    bits are, and is read only a few times: then it is computed where it is read."""
    return (_is_narrow(y) and _is_few(x.sizes[-2])) or (_is_narrow(x) and _is_few(y.sizes[-1]))


def _is_few(n: Index) -> bool:
    return isinstance(n, int) and n <= FEW  # a run-time size may be few now and many later


def _is_narrow(x: Value) -> bool:
    if not isinstance(x, Lazy) or x.realised is not None or not x.reads:
        return False
    read = sum(size_hint(s.nbytes) for s in {b.storage for b in x.reads})
    return 2 * read <= size_hint(product(x.sizes)) * x.dtype.itemsize


def _by_loops(b: Build, x: Value, y: Value) -> Value:
    """The product as a sum, whose loops compute the operands."""
    meta = b.out

    def term(p: Position, r: Position) -> Scalar:
        *batch, i, j = p
        made: Scalar = ops.mul(x.load([*batch, i, *r]), y.load([*batch, *r, j]))
        return made

    total = b.program.reduce(meta.sizes, x.sizes[-1:], term, "sum", compute_dtype(meta.dtype))
    return cast(total, meta.dtype)


def _plain(target: Any) -> Callable[..., Value]:
    return lambda b, x, y: _product(b, target, [x, y])


def _added(target: Any) -> Callable[..., Value]:
    """beta * c + alpha * x @ y; the sum fuses with what follows."""

    def lower(b: Build, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
        fitting(alpha, b.out.dtype), fitting(beta, b.out.dtype)
        if isinstance(alpha, complex) or isinstance(beta, complex):
            raise CannotLower("a complex factor")
        if x.sizes[-1] == 0 and beta != 0:  # of nothing alpha may be no number
            scaled = lambda u: u if beta == 1 else ops.mul(u, beta)  # noqa: E731
            whole = broadcast_to(c, b.out.sizes)
            return elementwise(scaled, (whole,), b.out.dtype, b.out.dtype)

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
