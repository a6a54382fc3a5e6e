"""Ops on lists of tensors: `_foreach_add` is `add` on each."""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon.ops import manifest
from torch_tenon.ops.lowerings.table import LOWERINGS, Build, Lowering, lowering
from torch_tenon.ops.variants import known_of


def _on_each(function: Lowering) -> Lowering:
    """The lowering of a list's op. A fourth argument is `value=` of the op on one tensor."""

    def lower(b: Build, *args: Any, **keywords: Any) -> list[Any]:
        found = []
        for k, meta in enumerate(b.results):
            row = [x[k] if isinstance(x, list) else x for x in args]
            named = {n: x[k] if isinstance(x, list) else x for n, x in keywords.items()}
            if len(row) > 3:
                named["value"] = row.pop()
            found.append(function(Build(b.program, [meta]), *row, **named))
        return found

    return lower


for _op, _entry in manifest.load().items():
    if not _entry.each:
        continue
    _name = _op.removeprefix("aten::_foreach_")
    _function = LOWERINGS[f"aten.{_name if _entry.each == manifest.THE_SAME else _entry.each}"]
    _packet = getattr(torch.ops.aten, f"_foreach_{_name}")
    for _overload in _packet.overloads():
        _target = getattr(_packet, _overload)
        # With scalars that are a tensor of the host's it is a call.
        if not _target._schema.is_mutable and not known_of(_target).host_arguments:
            lowering(str(_target))(_on_each(_function))
