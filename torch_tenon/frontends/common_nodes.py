"""Common subexpressions of a graph: nodes that compute the same become one."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torch_tenon.frontends.nodes import memory_of
from torch_tenon.ir.arguments import key_of
from torch_tenon.ops.variants import known_of


def merge_equal_nodes(graph: Graph) -> None:
    """Makes nodes that call one op with equal arguments one node, in a graph of ATen ops.

    Left alone are random and uninitialised numbers, ops that are more than a function of their
    arguments, and nodes that share memory with a result: two results stay two tensors. Nothing is
    merged across a write.
    """
    results = {memory_of(n) for n in graph.output_node().all_input_nodes}
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            known.clear()
        if node.is_impure() or _may_differ(node) or memory_of(node) in results:
            continue
        key = key_of((node.target, node.args, node.kwargs))
        try:
            first = known.setdefault(key, node)
        except TypeError:  # an argument that cannot be compared
            continue
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _may_differ(node: Node) -> bool:
    """Whether a second call may give something else."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    tags = node.target.tags
    return (
        torch.Tag.nondeterministic_seeded in tags
        or torch.Tag.nondeterministic_bitwise in tags
        or known_of(node.target).uninitialised
    )
