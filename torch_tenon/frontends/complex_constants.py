"""Complex numbers in the code of a graph that runs as eager code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate


def eager_code(module: GraphModule) -> Callable[..., Any]:
    """What runs a graph op by op.

    FX writes a complex constant as Python prints it. Of an infinite part that is a name that
    nothing has, `infj`, and a sum loses the sign of a zero: `-0+1j`. So its parts are written.
    """
    for each in module.modules():
        if isinstance(each, GraphModule) and _by_parts(each):
            each.recompile()
    return module.forward


def _by_parts(module: GraphModule) -> bool:
    """Whether the graph has complex constants; each is made by a node of its own then."""
    found = False
    for node in list(module.graph.nodes):

        def made(value: Any, user: Node = node) -> Any:
            nonlocal found
            if not isinstance(value, complex):
                return value
            found = True
            with module.graph.inserting_before(user):
                return module.graph.call_function(complex, (value.real, value.imag))

        if node.op != "placeholder" and node.target is not complex:
            node.args, node.kwargs = (
                map_aggregate(node.args, made),
                map_aggregate(node.kwargs, made),
            )
    return found
