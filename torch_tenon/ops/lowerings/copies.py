"""Copies, conversions of dtype, and the same bits as another dtype."""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.scalar import ops
from torch_tenon.ir.values import Layout, Lazy, Stored, Value, reindex
from torch_tenon.ops.lowerings.float8 import decode, is_float8
from torch_tenon.ops.lowerings.table import Build, CannotLower, cast, elementwise, lowering, number
from torch_tenon.ops.lowerings.views import expand


@lowering("aten._to_copy", "prims.convert_element_type")
def to_copy(b: Build, x: Any, *args: Any, dtype: Any = None, **keywords: Any) -> Value:
    """A conversion of dtype (device and layout stay), also of a number, as transformed functions
    have it."""
    wanted = args[0] if args else dtype
    if not isinstance(x, Value):
        return Lazy(b.out.sizes, b.out.dtype, lambda p: number(x, b.out.dtype), (), 0)
    if wanted is not None and wanted is not x.dtype and is_float8(x.dtype):
        return decode(x, wanted)
    return clone(b, x if wanted is None else cast(x, wanted))


@lowering("aten.clone", "aten.lift_fresh_copy", "aten.contiguous")
def clone(b: Build, x: Value, **keywords: Any) -> Value:
    """The same values, in memory of their own if anybody needs memory."""
    return elementwise(lambda a: a, (x,), None, x.dtype, 0)


@lowering("aten.copy")
def copy(b: Build, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """`source` with the dtype and sizes of `x`."""
    return clone(b, expand(b, cast(source, x.dtype), x.sizes))


@lowering("aten.lift_fresh", "aten.detach", "aten.alias", "aten._conj", "aten.positive")
@lowering("aten.conj_physical", "aten._conj_physical")
@lowering("aten.detach_copy", "aten.alias_copy", "aten.lift")
def alias(b: Build, x: Value) -> Value:
    """The tensor itself."""
    return reindex(x, x.sizes, lambda p: p)


@lowering("aten.view.dtype")
def view_dtype(b: Build, x: Value, dtype: torch.dtype) -> Value:
    """The same bits as another dtype: computed where registers hold them as memory does, else seen
    in memory."""
    if dtype is x.dtype:
        return x
    if dtype not in TABLE or x.dtype not in TABLE:
        raise CannotLower(f"view of {x.dtype} as {dtype}")
    as_in_memory = {"int", "uint", "float"}
    if dtype.itemsize == x.dtype.itemsize and all(
        TABLE[d].compute is d and TABLE[d].kind in as_in_memory for d in (x.dtype, dtype)
    ):
        return elementwise(lambda a: ops.bitcast(a, dtype), (x,), None, dtype)
    stored = b.program.realise(x)
    layout = stored.layout.rescaled(x.dtype.itemsize, dtype.itemsize)
    if layout is None:
        stored = b.program.copy(stored, Layout.contiguous(x.sizes).strides)
        layout = stored.layout.rescaled(x.dtype.itemsize, dtype.itemsize)
    if layout is None:
        raise CannotLower(f"view of {x.dtype} as {dtype}")
    return Stored(stored.buffer.seen_as(dtype), layout)
