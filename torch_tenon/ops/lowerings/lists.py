"""Ops on lists of tensors: `_foreach_add` is `add` on each."""

from __future__ import annotations

from typing import Any

import torch

from torch_tenon.ops.lowerings.table import LOWERINGS, Build, Lowering, lowering

_EACH = (
    "abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy cos cosh div erf "
    "erfc exp expm1 floor lerp lgamma log log10 log1p log2 max maximum minimum mm mul neg pow "
    "reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc zero"
)
# Where the op on one tensor has another name.
_NAMED = {
    "max": "amax",
    "maximum": "clamp_min",
    "minimum": "clamp_max",
    "round": "round.default",
    "zero": "zeros_like",
}


def _on_each(function: Lowering, value_last: bool) -> Lowering:
    """The lowering of a list's op; with `value_last` the fourth argument is `value=` of the op on
    one tensor."""

    def lower(b: Build, *args: Any, **keywords: Any) -> list[Any]:
        found = []
        for k, meta in enumerate(b.results):
            row = [x[k] if isinstance(x, list) else x for x in args]
            named = {n: x[k] if isinstance(x, list) else x for n, x in keywords.items()}
            if value_last and len(row) > 3:
                named["value"] = row.pop()
            found.append(function(Build(b.program, [meta]), *row, **named))
        return found

    return lower


for _name in _EACH.split():
    _function = LOWERINGS[f"aten.{_NAMED.get(_name, _name)}"]
    _scaled = _name in ("addcdiv", "addcmul")
    _packet = getattr(torch.ops.aten, f"_foreach_{_name}")
    for _overload in _packet.overloads():
        _target = getattr(_packet, _overload)
        # With scalars that are a tensor of the host's it is a call.
        if not _target._schema.is_mutable and not (_scaled and _overload == "Tensor"):
            lowering(str(_target))(_on_each(_function, _scaled))
