"""What a graph computes of weights alone: it is computed once, when the model is exported.

Examples are weights that a norm scales, low-rank updates of weights, and weights that a kernel
reads in another order.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from torch_tenon.exporting.held import Graph, Held
from torch_tenon.exporting.laid_out import LaidOut, enter

aten = torch.ops.aten
# What the file may grow by: for each byte of weights that it no longer has, and in any case.
GROWTH, FREE = 1.25, 4096


def fold_constants(graph: Graph, laid_out: LaidOut) -> None:
    """Replaces what a graph computes of weights alone by its value. Weights of few bits stay, as
    what is computed of them has many."""
    constants = _Constants(graph)
    for results, sources in constants.groups():
        replaced = sum(h.tensor.nbytes for h in sources if constants.is_only_read_by_these(h))
        if sum(_nbytes(n) for n in results) > GROWTH * replaced + FREE:
            continue
        try:
            values = [constants.value(n) for n in results]
        except Exception:  # of an op that does not run here: it stays in the graph
            continue
        for node, value in zip(results, values, strict=True):
            new = enter(graph, sources[0], "computed", laid_out.equal(value))
            node.replace_all_uses_with(new)
    graph.drop_dead()
    graph.drop_unused()


class _Constants:
    def __init__(self, graph: Graph) -> None:
        # For each constant node the weights that it is computed of.
        self.sources: dict[Node, dict[Node, None]] = {}
        self.held: dict[Node, Held] = {}
        self.computed: dict[Node, None] = {}  # those that are more than views of weights
        self.values: dict[Node, Any] = {}
        for p in graph.placeholders:
            if isinstance(p, Held) and p.has_value and not p.is_written:
                self.held[p.node], self.sources[p.node] = p, {p.node: None}
        same: dict[str, Node] = {}  # a model may compute a weight wherever it reads it
        for node in list(graph.module.graph.nodes):
            inputs = node.all_input_nodes
            of_constants = bool(inputs) and all(n in self.sources for n in inputs)
            if of_constants and _is_pure(node) and not _may_be_written(node):
                first = same.setdefault(f"{node.target} {node.args} {node.kwargs}", node)
                if first is not node:
                    node.replace_all_uses_with(first)
                    graph.module.graph.erase_node(node)
                    continue
                self.sources[node] = {h: None for n in inputs for h in self.sources[n]}
                if not _is_view(node) or any(n in self.computed for n in inputs):
                    self.computed[node] = None

    def groups(self) -> Iterator[tuple[list[Node], list[Held]]]:
        """Constants that something else reads, in groups without common weights."""
        groups: list[tuple[list[Node], dict[Node, None]]] = []
        for node in self.computed:
            if _is_view(node) or not self._is_read(node) or not _is_dense(node):
                continue
            results, sources = [node], dict(self.sources[node])
            for other in [g for g in groups if g[1].keys() & sources.keys()]:
                groups.remove(other)
                results, sources = other[0] + results, other[1] | sources
            groups.append((results, sources))
        for results, sources in groups:
            yield results, [self.held[h] for h in sources]

    def _is_read(self, node: Node) -> bool:
        """Whether something reads a constant, or a view of it, that is no constant."""
        return any(
            user not in self.sources or (_is_view(user) and self._is_read(user))
            for user in node.users
        )

    def is_only_read_by_these(self, held: Held) -> bool:
        """Whether nothing else reads a weight, or a view of it."""
        return not self._is_read(held.node)

    def value(self, node: Node) -> Any:
        """What a constant node gives, on the host."""
        if node in self.held:
            return self.held[node].tensor.detach().cpu()
        if node not in self.values:
            args, keywords = map_arg((node.args, node.kwargs), self.value)
            if "device" in keywords:
                keywords = {**keywords, "device": torch.device("cpu")}
            with torch.no_grad():
                found = node.target(*args, **keywords)  # type: ignore[operator]
            self.values[node] = _as_traced(found, node.meta["val"])
        return self.values[node]


def _as_traced(value: Any, traced: Any) -> Any:
    """A value on the host, with the strides that the trace has."""
    if not isinstance(value, Tensor):
        return value
    value = value.cpu()
    if value.stride() == traced.stride():
        return value
    return torch.empty_strided(value.shape, traced.stride(), dtype=value.dtype).copy_(value)


def _is_dense(node: Node) -> bool:
    found = node.meta.get("val")
    return isinstance(found, Tensor) and bool(aten.is_non_overlapping_and_dense(found))


def _is_pure(node: Node) -> bool:
    """Whether a node gives the same each time, of sizes that are known."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or node.target._schema.is_mutable:
        return False
    found = node.meta.get("val")
    tensors = found if isinstance(found, list | tuple) else [found]
    known = all(isinstance(t, Tensor) and all(isinstance(n, int) for n in t.shape) for t in tensors)
    return known and torch.Tag.nondeterministic_seeded not in node.target.tags


def _may_be_written(node: Node) -> bool:
    """Whether an op that writes some of its arguments takes the node, or a view of it."""
    return any(
        (isinstance(u.target, OpOverload) and u.target._schema.is_mutable)
        or (_is_view(u) and _may_be_written(u))
        for u in node.users
    )


def _is_view(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target.is_view


def _nbytes(node: Node) -> int:
    found: Tensor = node.meta["val"]
    return found.numel() * found.dtype.itemsize
