"""Parts of dense tensors: where a view's elements are in it, and a tensor with a part replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, unflatten
from torch_tenon.ir.scalar import Scalar, ops
from torch_tenon.ir.scalar_ops import SIMPLE_OPS
from torch_tenon.ir.values import (
    Layout,
    Lazy,
    Position,
    Value,
    dense_layout,
    imag_part,
    pairs_joined,
    real_part,
    reindex,
    size_hint,
    traced,
)


class Range(NamedTuple):
    """The positions along a dimension that a view shows: `length` of them from `first`, every
    `step`-th, along the view's dimension `dim` (-1: one position that the view selects)."""

    first: int
    step: int
    length: int
    dim: int


def is_dense(layout: Layout) -> bool:
    """Whether the elements lie side by side, in any order of the dimensions."""
    return same_places(layout, dense_layout(layout.sizes, layout.strides))


def same_places(a: Layout, b: Layout) -> bool:
    """Whether both layouts have the same elements at the same places."""
    return (
        a.offset == b.offset
        and a.sizes == b.sizes
        and all(n == 1 or x == y for n, x, y in zip(a.sizes, a.strides, b.strides, strict=True))
    )


def may_overlap(layout: Layout) -> bool:
    """Whether two elements may be the same memory, as far as the dimensions by themselves tell.
    Sizes of any value lie as the example that they have (csrc/pytorch/record/op_key.cpp:
    `put_order`)."""
    dims = zip(layout.strides, layout.sizes, strict=True)
    extent = 1  # of the dimensions inside
    for stride, size in sorted((size_hint(k), size_hint(n)) for k, n in dims):
        if size == 0:
            return False
        if size > 1 and stride < extent:
            return True
        extent += stride * (size - 1)
    return False


def ranges(view: Layout, whole: Layout) -> list[Range] | None:
    """What a view of a dense tensor shows along each of the tensor's dimensions; None where it is
    not such a box (a diagonal, other dimensions), or where a size is known only at run time."""
    sizes, strides = _numbers(view.sizes), _numbers(view.strides)
    extents, steps = _numbers(whole.sizes), _numbers(whole.strides)
    offset = view.offset
    if sizes is None or strides is None or extents is None or steps is None:
        return None
    if not isinstance(offset, int) or not is_dense(whole):
        return None
    found = [Range(0, 1, 1, -1)] * len(extents)
    left = [v for v, n in enumerate(sizes) if n != 1]
    for d in (d for d in _outermost_first(whole) if extents[d] != 1):
        first, offset = divmod(offset, steps[d])
        if first >= extents[d]:
            return None
        found[d] = Range(first, 1, 1, -1)
        for v in left:
            step, rest = divmod(strides[v], steps[d])
            if step and not rest and first + step * (sizes[v] - 1) < extents[d]:
                found[d] = Range(first, step, sizes[v], v)
                left.remove(v)
                break
    return found if offset == 0 and not left else None


def _numbers(values: Sequence[Index]) -> list[int] | None:
    found = [n for n in values if isinstance(n, int)]
    return found if len(found) == len(values) else None


def whole_of(view: Layout, count: Index) -> Layout | None:
    """The tensor of `count` elements that a view without steps is a box of: its dimensions are the
    view's, the outermost in memory first; one that the view selects a position of belongs to the
    next outer one. None where there is no such tensor."""
    dims = [d for d in _outermost_first(view) if view.sizes[d] != 1]
    sizes: list[Index] = []
    for d in dims:
        stride = view.strides[d]
        if not isinstance(stride, int) or stride == 0 or count % stride != 0:
            return None
        sizes.append(count // stride)
        count = stride
    return Layout.contiguous(sizes) if count == 1 else None


def _outermost_first(layout: Layout) -> list[int]:
    dims = range(len(layout.sizes))
    return sorted(dims, key=lambda d: (-size_hint(layout.strides[d]), d))


def view_of(value: Value, held: Layout, wanted: Layout) -> Value | None:
    """`value`, laid out by `held`, as a tensor of layout `wanted` over the same storage; None
    where the place of an element is no simple expression of its position."""
    box = ranges(wanted, held)
    if box is not None:
        return reindex(
            value,
            wanted.sizes,
            lambda p: [r.first + (r.step * p[r.dim] if r.dim >= 0 else 0) for r in box],
        )
    if not is_dense(held) or size_hint(wanted.span()) > size_hint(held.span()):
        return None
    order = [d for d in _outermost_first(held) if held.sizes[d] != 1]
    sizes = [held.sizes[d] for d in order]

    def position(p: Position) -> Position:
        found: list[Index] = [0] * len(held.sizes)
        for d, i in zip(order, unflatten(wanted.index(p), sizes), strict=True):
            found[d] = i
        return found

    return reindex(value, wanted.sizes, position)


def parts_of(value: Value, held: Layout, wanted: Layout, dtype: torch.dtype) -> Value | None:
    """`value`, laid out by `held`, taken for elements of another dtype that lie by `wanted` in the
    same storage: parts of complex numbers, or the complex numbers that pairs of numbers are. None
    for others, and where it takes memory to see them."""
    if value.dtype not in TABLE or dtype not in TABLE:
        return None
    if value.dtype.is_complex and dtype is value.dtype.to_real():
        steps = [k for k, n in zip(wanted.strides, wanted.sizes, strict=True) if n != 1]
        if any(k // 2 * 2 != k for k in steps) or not isinstance(wanted.offset, int):
            return None
        whole = Layout(wanted.sizes, tuple(k // 2 for k in wanted.strides), wanted.offset // 2)
        numbers = view_of(value, held, whole)
        part = imag_part if wanted.offset % 2 else real_part
        return None if numbers is None else part(numbers)
    if dtype.is_complex and value.dtype is dtype.to_real():
        steps = [2 * k for k in wanted.strides]
        pairs = Layout((*wanted.sizes, 2), (*steps, 1), 2 * wanted.offset)
        found = view_of(value, held, pairs)
        return None if found is None else pairs_joined(found)
    return None


def is_simple(value: Value) -> bool:
    """Whether computing an element calls no function, so that it can be done under a condition."""
    return all(s.op in SIMPLE_OPS for s in traced(value).scalars)


def with_part(old: Value, box: Sequence[Range], new: Value) -> Lazy:
    """`old` with the elements of a box without steps from `new`, which has the view's sizes."""

    def body(p: Position) -> Scalar:
        inside = ops.constant(True, torch.bool)
        at: list[Index] = [0] * len(new.sizes)
        for i, extent, r in zip(p, old.sizes, box, strict=True):
            if r.dim >= 0:
                at[r.dim] = i - r.first
            if r.first > 0:
                inside = inside & ops.ge(ops.index(i), r.first)
            if r.first + r.length != extent:
                inside = inside & ops.lt(ops.index(i), r.first + r.length)
        changed = ops.masked(inside, lambda: new.load(at), 0)
        return ops.where(inside, changed, old.load(p))

    return Lazy(old.sizes, old.dtype, body, (old, new), 9)
