"""Ops that write arguments, in graphs.

A trace has such an op as `auto_functionalized_v2(op, **arguments)`: called on copies of the tensors
that it writes, the bases, of which its arguments may be views. The node gives the op's results and
then the copies as they are after it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.ops.variants import is_written

FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2


@dataclass
class WritingCall:
    """The op, its other arguments by name, the bases, and what is said of each written argument:
    a view of one of them, a list of such views, or None."""

    op: OpOverload
    arguments: dict[str, Any]
    bases: list[Node]
    written: dict[str, Any]


def writing_call(n: Node) -> WritingCall:
    """What a node of that kind says. Raises CannotLower for what is no op of the dispatcher's."""
    from torch._higher_order_ops import auto_functionalize

    (op,) = n.args
    if not isinstance(op, OpOverload):
        raise CannotLower(f"{op} writes its arguments inside a compiled graph")
    given = dict(n.kwargs)
    bases: Any = given.pop("_all_bases")
    changed = [a for a in op._schema.arguments if is_written(a)]
    types: Any = [a.type for a in changed]
    written = auto_functionalize.read_view_information_from_args(
        [a.name for a in changed], types, given, bases
    )
    return WritingCall(op, given, list(bases), written)


def changed_base(n: Any) -> Node | None:
    """The base that a node is as the op has left it, of an op that reads it in no other way; None
    for another node."""
    if not isinstance(n, Node) or n.target is not operator.getitem:
        return None
    call, number = n.args
    if not isinstance(call, Node) or call.target is not FUNCTIONALIZED:
        return None
    bases: Any = call.kwargs["_all_bases"]
    first = len(call.meta["val"]) - len(bases)
    base = bases[number - first] if number >= first else None  # type: ignore[operator]
    others = [x for name, x in call.kwargs.items() if name != "_all_bases"]
    return base if isinstance(base, Node) and base not in tree_leaves(others) else None
