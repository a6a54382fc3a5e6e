"""Ops that are neither PyTorch's nor ours, as the builder process knows them.

The process that records them describes them, and the one that makes plans of their windows defines
them from that: by their schema, for calls on whole tensors, and by the sources of the kernels that
plans launch. The text is part of what plans are kept by, so an op that becomes another one under
its old name gets plans of its own.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

import torch

from torch_tenon.ops.variants import overload

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from torch_tenon.ops.custom import CustomOp

_defined: dict[str, tuple[str, torch.library.Library]] = {}  # by name: the text, who defines it


def describe(name: str) -> str | None:
    """What `define` needs for the op of a qualified name; None where plans may look into it and
    that is Python's: a decomposition."""
    if name in _defined:
        return _defined[name][0]
    op, custom = overload(name), _custom(name)
    if custom is None and _is_looked_into(op):
        return None
    route = "" if custom is None else custom.route()
    if route == "decomposed":
        return None
    kernels = custom.kernels if custom is not None and route == "kernel" else ()
    return json.dumps(
        {
            "name": name,
            "schema": str(op._schema),
            "tags": sorted(tag.name for tag in op.tags),
            "kernels": [dataclasses.asdict(k) for k in kernels],
        }
    )


def define(text: str) -> None:
    """Defines the op, in place of one that another process had by that name. Raises ValueError
    where this process has another op of the name for good."""
    told = json.loads(text)
    name = told["name"]
    if name in _defined:
        if _defined[name][0] == text:
            return
        _forget(name)
    try:
        known = overload(name)
    except AttributeError:
        pass
    else:
        if str(known._schema) != told["schema"]:
            raise ValueError(f"{known._schema} is not {told['schema']}")
        return
    if told["kernels"]:
        library = _with_kernels(told["schema"], told["kernels"])
    else:
        namespace, _, rest = told["schema"].partition("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(rest, tags=[getattr(torch.Tag, tag) for tag in told["tags"]])
    _defined[name] = text, library


def _with_kernels(schema: str, kernels: list[dict[str, object]]) -> torch.library.Library:
    from torch_tenon.ops.custom import CustomOp
    from torch_tenon.ops.declarations import KernelSource

    made = CustomOp(schema, [KernelSource(**k) for k in kernels])  # type: ignore[arg-type]
    made.enter()
    return made.library


def _forget(name: str) -> None:
    from torch_tenon.ops.lowerings.table import BY_HAND, LOWERINGS

    LOWERINGS.pop(str(overload(name)), None)
    BY_HAND.discard(name)
    _defined.pop(name)[1]._destroy()


def _custom(name: str) -> CustomOp | None:
    # Only who has such an op has loaded what makes them.
    module = sys.modules.get("torch_tenon.ops.custom")
    return None if module is None else module.CUSTOM_OPS.get(name)


def _is_looked_into(op: OpOverload) -> bool:
    """Whether somebody gave the op a lowering or a composition, in a table that is loaded if so."""
    lowerings = sys.modules.get("torch_tenon.ops.lowerings.table")
    compositions = sys.modules.get("torch_tenon.ops.compositions")
    table = sys.modules.get("torch._decomp")
    return (
        op._can_decompose()
        or (lowerings is not None and lowerings.find(op) is not None)
        or (compositions is not None and op in compositions.COMPOSITIONS)
        or (table is not None and op in table.decomposition_table)
    )
