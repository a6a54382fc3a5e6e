"""Every core op that computes has loops, a library kernel, or a decomposition."""

from __future__ import annotations

import torch

from torch_tenon.frontends.dynamo import decompositions
from torch_tenon.ops import native
from torch_tenon.ops.lowerings.table import find

# They compute nothing, or what they give depends on data and is no tensor of a known shape.
WITHOUT = {
    "aten::resize_": "changes memory, not values; Dynamo does not trace it",
    "aten::sym_numel": "a size",
    "aten::sym_size.int": "a size",
    "aten::sym_stride.int": "a size",
    "aten::sym_storage_offset": "a size",
    "aten::sym_is_contiguous": "a size",
    "aten::_local_scalar_dense": "a number that the host waits for",
    "aten::nonzero": "a shape that depends on data: such a graph runs by reference",
}


def test_core_ops_are_lowered() -> None:
    known = decompositions()  # loads the table
    missing = []
    for op in native.load().values():
        if "core" not in op.tags or op.name in WITHOUT:
            continue
        name, _, overload = op.name.removeprefix("aten::").partition(".")
        target = getattr(getattr(torch.ops.aten, name), overload or "default")
        if find(target) is None and target not in known:
            missing.append(op.name)
    assert not missing


def test_what_has_none_is_core() -> None:
    core = {op.name for op in native.load().values() if "core" in op.tags}
    assert set(WITHOUT) <= core
