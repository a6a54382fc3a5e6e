"""Products of matrices: kernels where the target has some, else calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import Index, product, strides, var
from torch_tenon.ir.program import FourBits
from torch_tenon.ir.scalar import Scalar, Trace, ops, tracing
from torch_tenon.ir.sixteen_bits import ROUNDINGS
from torch_tenon.ir.values import (
    Layout,
    Lazy,
    Position,
    Stored,
    Value,
    loop_symbol,
    reshape,
    size_hint,
    steps_read,
)
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.reductions import shared
from torch_tenon.ops.lowerings.table import (
    Build,
    CannotLower,
    broadcast_to,
    cast,
    elementwise,
    lowering,
    of_one_dtype,
)

aten = torch.ops.aten

FEW = 2  # rows or columns for each of which an operand may be computed again
BYTES = (torch.int8, torch.uint8)
# What a byte may be converted to and stay the same number.
CONVERSIONS = (
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64),
    *(torch.int16, torch.int32, torch.int64),
)
WITHOUT_MEMORY = (torch.float32, torch.bfloat16, torch.float16)
BY_LOOPS = (*WITHOUT_MEMORY, torch.float64)
MANY = 16  # matrices of a batch from which small ones go by loops
TINY, TINY_VECTOR = 128, 1024  # multiplications of one, or of one by a vector, that loops do sooner


def _product(b: Build, target: Any, operands: list[Value], **keywords: Any) -> Value:
    meta = b.out
    of_one_dtype(*operands)
    if product(meta.sizes) == 0 or any(product(x.sizes) == 0 for x in operands):
        if product(meta.sizes) == 0 or len(operands) == 2:
            return constant(meta.sizes, 0, meta.dtype)
        raise CannotLower("an empty operand")
    if len(operands) == 2 and _may_be_narrow(b, operands[0]):
        weights = _bytes_of(operands[1])
        if weights is not None:
            return b.program.matmul(_in_memory(b, operands[0]), weights, meta.sizes)
    if len(operands) == 2 and meta.dtype in WITHOUT_MEMORY and _saves_memory(*operands):
        return _by_loops(b, *operands)
    if len(operands) == 2 and _are_tiny(b, *operands):
        x, y = operands
        x = x if y.sizes[-1] == 1 else shared(b, x)
        return _by_loops(b, x, y if x.sizes[-2] == 1 else shared(b, y))
    multiplies = _is_multiplied(b, operands[0].dtype)
    if b.program.standalone and not multiplies:
        return _by_loops(b, *(shared(b, x) for x in operands))
    plain = [_in_memory(b, x) for x in operands]
    if multiplies and len(plain) == 2:
        return b.program.matmul(plain[0], plain[1], meta.sizes, dtype=meta.dtype)
    layout = Layout.contiguous(meta.sizes)
    out = b.program.call(target, plain, keywords, [(meta.dtype, layout)], "library", into=True)[0]
    assert out is not None
    return out


def _are_tiny(b: Build, x: Value, y: Value) -> bool:
    """Whether each of many matrices is so small that a kernel for products takes longer to begin
    than to multiply: loops go from one to the next, and fuse with what is around them."""
    if b.backend is None or b.out.dtype not in BY_LOOPS or x.dtype is not b.out.dtype:
        return False
    if len(x.sizes) != 3 or size_hint(x.sizes[0]) < MANY:
        return False
    m, k, n = x.sizes[1], x.sizes[2], y.sizes[2]
    if not (isinstance(m, int) and isinstance(k, int) and isinstance(n, int)):
        return False
    return m * n * k <= (TINY_VECTOR if 1 in (m, n) else TINY)


def _is_multiplied(b: Build, operands: torch.dtype) -> bool:
    """Whether the backend has kernels for the product at hand, of matrices of a dtype."""
    backend, result = b.backend, b.out.dtype
    if backend is None or operands not in backend.product_dtypes:
        return False
    return result is operands or backend.capabilities.tiles_of(operands, result) is not None


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


def _may_be_narrow(b: Build, x: Value) -> bool:
    """Whether there is a product of `x` and bytes."""
    if b.backend is None or x.dtype not in b.backend.product_dtypes:
        return False
    rows = x.sizes[-2]
    return isinstance(rows, int) and rows <= b.backend.narrow_rows


def _bytes_of(x: Value) -> Stored | None:
    """The bytes that an operand has converted, if that is all that it is computed of: each of them
    is a number of any float dtype. None where neither their rows nor their columns are dense."""
    if not isinstance(x, Lazy) or x.realised is not None:
        return None
    found = [loop_symbol("p", k, n) for k, n in enumerate(x.sizes)]
    with tracing(Trace()):
        s = x.load([0 if p.extent == 1 else var(p) for p in found])
    while (s.op == "to" and s.dtype in CONVERSIONS) or s.op in ROUNDINGS:
        s = s.args[0]
    if s.op != "load" or s.args[0].dtype not in BYTES or s.args[2] is not None:
        return None
    steps = strides(s.args[1])
    if steps is None or not steps.keys() <= set(found):
        return None
    layout = Layout(
        x.sizes,
        tuple(1 if p.extent == 1 else steps.get(p, 0) for p in found),
        s.args[1] - sum(step * var(p) for p, step in steps.items()),
    )
    return Stored(s.args[0], layout) if 1 in layout.strides[-2:] else None


@lowering("aten._int_mm")
def _int_mm(b: Build, x: Value, y: Value) -> Value:
    """The product of matrices of bytes (M, K) and (K, N), in 32 bits."""
    if not _is_multiplied(b, x.dtype):
        raise CannotLower("no matrix unit for bytes")
    return _product(b, aten._int_mm, [x, y])


@lowering("aten._weight_int8pack_mm")
def _weight_int8pack_mm(b: Build, x: Value, weights: Value, scales: Value) -> Value:
    """x (M, K) times the transpose of bytes (N, K), of which each row has a scale."""
    stored = b.concrete(weights)
    # From three rows on PyTorch's own kernel takes as long, and from four on less.
    few = _may_be_narrow(b, x) and _is_few(x.sizes[-2])
    if not few or product(b.out.sizes) == 0 or stored.layout.strides[1] != 1:
        raise CannotLower("more than a few rows, or none")
    layout = stored.layout
    turned = Stored(stored.buffer, Layout(layout.sizes[::-1], layout.strides[::-1], layout.offset))
    wide = b.concrete(cast(x, torch.float32))
    sums = b.program.matmul(wide, turned, b.out.sizes)
    return elementwise(ops.mul, (sums, scales), torch.float32, b.out.dtype)


@lowering("aten._weight_int4pack_mm_for_cpu")
def _weight_int4pack_mm(b: Build, x: Value, packed: Value, group: Index, scales: Value) -> Value:
    """x (M, K) times the transpose of weights (N, K) of four bits, as PyTorch packs them."""
    block = 0 if b.backend is None else b.backend.four_bit_block
    if not block or not _may_be_narrow(b, x) or product(b.out.sizes) == 0:
        raise CannotLower("more than a few rows, or none")
    k, n = x.sizes[1], b.out.sizes[1]
    if not (isinstance(k, int) and isinstance(n, int) and isinstance(group, int)) or k % group:
        raise CannotLower("groups of run-time size")
    stored, of_groups = b.concrete(packed), b.concrete(scales)
    is_dense = all(
        v.layout.strides == Layout.contiguous(v.sizes).strides for v in (stored, of_groups)
    )
    expected = (n, k // 2), (k // group, n, 2)
    if not is_dense or (stored.sizes, of_groups.sizes) != expected or scales.dtype is not x.dtype:
        raise CannotLower("weights or scales that lie in another way")
    weights = FourBits(of_groups, group, block)
    return b.program.matmul(_in_memory(b, x), stored, b.out.sizes, weights=weights)


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


def _factor(k: Any, dtype: torch.dtype) -> Any:
    """A factor as the number that the kernel computes with: what is too small is 0."""
    return ctypes.c_float(k).value if compute_dtype(dtype) is torch.float32 else k


def _added(target: Any) -> Callable[..., Value]:
    """beta * c + alpha * x @ y; the sum fuses with what follows."""

    def lower(b: Build, c: Value, x: Value, y: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
        of_one_dtype(c, x)
        b.fitting(alpha, b.out.dtype), b.fitting(beta, b.out.dtype)
        if isinstance(alpha, complex) or isinstance(beta, complex):
            raise CannotLower("a complex factor")
        alpha, beta = (_factor(k, b.out.dtype) for k in (alpha, beta))
        if alpha == 0:  # most kernels do not look at x and y then, and some do
            raise CannotLower("a product times 0, where numbers may be infinite")
        if x.sizes[-1] == 0:  # of nothing alpha may be no number
            if beta == 0:
                return constant(b.out.sizes, 0, b.out.dtype)
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


@lowering("tenon.multiply_by_panels")
def multiply_by_panels(b: Build, x: Value, panels: Value, added: Value | None) -> Value:
    """x (..., K) times a matrix (K, A) in panels (see `Matmul`), in exported programs."""
    *rows, depth = x.sizes
    columns = b.out.sizes[-1]
    sizes = (product(rows), columns)
    if product(b.out.sizes) == 0:
        return constant(b.out.sizes, 0, b.out.dtype)
    left, right = _in_memory(b, reshape(x, (sizes[0], depth))), b.concrete(panels)
    found: Value = b.program.matmul(left, right, sizes, panels=True)
    if added is not None:
        found = elementwise(ops.add, (added, found), b.out.dtype, b.out.dtype, 2)
    return reshape(found, b.out.sizes)


lowering("aten.mm")(_plain(aten.mm))
lowering("aten.bmm")(_plain(aten.bmm))
lowering("aten.addmm")(_added(aten.mm))
lowering("aten.baddbmm")(_added(aten.bmm))
