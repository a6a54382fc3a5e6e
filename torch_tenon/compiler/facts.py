"""What a profile says of a plan's steps: sizes, dtypes, bytes and operations. Bytes and operations
are expressions where sizes are; `number` gives the sizes that a text names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Expr, Index
from torch_tenon.ir.program import Extern
from torch_tenon.ir.values import Stored, size_hint
from torch_tenon.ops import variants

log = logging.getLogger("torch_tenon.program")

Number = Callable[[Index], int | str]

MOST_TENSORS = 8  # that are named of a call


def loops_of(kernel: Kernel, group: Group, number: Number = size_hint) -> str:
    """The extents of a kernel's loops: `32 x 64 over 128`."""
    loops = " x ".join(str(number(s.extent or 1)) for s in group.outer) or "1"
    if group.inner:
        loops += " over " + " x ".join(str(number(s.extent or 1)) for s in group.inner)
    if kernel.sets > 1:
        loops += f" for each of {kernel.sets} sets of tensors"
    return loops


def kernel_detail(kernel: Kernel, group: Group, number: Number = size_hint) -> str:
    """A kernel's loops, and the dtypes of what it reads and writes."""
    buffers = (b for n in group.nodes() for b in [*n.reads, *n.outputs])
    dtypes = dict.fromkeys(_dtype_name(b.dtype) for b in buffers)
    return f"{loops_of(kernel, group, number)}: {', '.join(dtypes)}"


def call_detail(call: Extern, number: Number = size_hint) -> str:
    """The tensors of a call: `float32[32, 64], float32[64]`."""
    tensors = [x for x in _tensors(call) if x is not None]
    names = [
        f"{_dtype_name(t.dtype)}[{', '.join(str(number(n)) for n in t.sizes)}]"
        for t in tensors[:MOST_TENSORS]
    ]
    hidden = len(tensors) - MOST_TENSORS
    return ", ".join(names + ([f"and {hidden} more"] if hidden > 0 else []))


def call_bytes(call: Extern) -> Index:
    """All of the memory that a call reads or writes."""
    buffers = {b.storage: b for b in [*call.reads, *call.outputs]}
    return sum(s.nbytes for s in buffers)


def call_operations(call: Extern) -> Index:
    """Operations on numbers, by PyTorch's own formulas; 0 where it has none, or none that takes
    sizes of any value."""
    packet = getattr(call.target, "overloadpacket", call.target)
    counted_as = variants.known_of(call.target).counted_as
    if counted_as:  # an op of this package that does what one of PyTorch's does
        packet = variants.overload(counted_as).overloadpacket
    formula = flop_registry.get(packet)
    if formula is None:
        return 0

    def as_shape(x: Any) -> Any:
        if not isinstance(x, Stored):
            return x
        known = [n for n in x.sizes if isinstance(n, int)]
        if len(known) < len(x.sizes):
            return list(x.sizes)  # what most formulas make of a tensor
        return torch.empty(known, dtype=x.dtype, device="meta")

    arguments = tree_map(as_shape, list(call.arguments))
    keywords = {k: as_shape(v) for k, v in call.keywords.items()}
    results = [None if r is None else as_shape(r) for r in call.results]
    out = results[0] if len(results) == 1 else results
    try:
        found = formula(*arguments, **keywords, out_val=out)
    except Exception as error:  # it compares sizes, for instance
        log.debug("nobody knows how many operations %s is: %s", call.name, error)
        return 0
    return found if isinstance(found, Expr) else int(found)


def _tensors(call: Extern) -> list[Stored | None]:
    given = tree_leaves([list(call.arguments), list(call.keywords.values())])
    return [*(x for x in given if isinstance(x, Stored)), *call.results]


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
