"""What an exported graph takes: what callers give, and what the program holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.fx import GraphModule, Node


@dataclass
class Given:
    """An input that the caller gives."""

    name: str
    node: Node


@dataclass
class Held:
    """A parameter, buffer or constant of the model, which the program holds."""

    name: str
    node: Node
    tensor: Tensor
    is_written: bool = False


@dataclass
class Graph:
    """An exported graph, with what its placeholders and results are.

    `placeholders` are in the graph's order; `results` has for each result of the model the position
    among the graph's outputs, or the constant that it is.
    """

    module: GraphModule
    placeholders: list[Given | Held] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)  # of the graph's outputs
    is_single: bool = False  # there is one result, and no tuple around it
    conditions: list[Any] = field(default_factory=list)  # on sizes, as SymPy has them

    def drop_dead(self) -> None:
        """Drops what no result needs, but for nodes that write an input or check values."""
        self.module.graph.eliminate_dead_code(
            lambda n: n.op in ("placeholder", "output") or _has_effect(n.target)
        )


def _has_effect(target: Any) -> bool:
    schema = target._schema if isinstance(target, OpOverload) else None
    return schema is not None and (schema.is_mutable or not schema.returns)
