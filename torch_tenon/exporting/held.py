"""What an exported graph takes: what callers give, and what the program holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
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
    is_written: bool = False  # by a method of the program

    @property
    def has_value(self) -> bool:
        """Whether there is anything in its memory."""
        x = self.tensor
        return x.device.type != "meta" and not isinstance(x, torch._subclasses.FakeTensor)


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
    symbols: set[Any] = field(default_factory=set)  # in the inputs' sizes, as they were traced

    def drop_unused(self) -> None:
        """Drops the model's own tensors that nothing takes."""
        unused = [p for p in self.placeholders if isinstance(p, Held) and not p.node.users]
        for p in unused:
            self.placeholders.remove(p)
            self.module.graph.erase_node(p.node)

    def drop_dead(self) -> None:
        """Drops what no result needs, but for nodes that write an input or check values."""
        self.module.graph.eliminate_dead_code(
            lambda n: n.op in ("placeholder", "output") or _has_effect(n.target)
        )


def symbols_of(nodes: Iterable[Node]) -> set[Any]:
    """The symbols in the sizes of some tensors."""
    return {symbol for n in _symbolic(nodes) for symbol in n.node.expr.free_symbols}


def fixed_of(symbols: Iterable[Any], nodes: Iterable[Node]) -> list[Any]:
    """Those symbols that are numbers by now in the sizes of some tensors."""
    environment = next((n.node.shape_env for n in _symbolic(nodes)), None)
    return [s for s in symbols if environment is None or environment.replace(s).is_number]


def _symbolic(nodes: Iterable[Node]) -> list[Any]:
    values = [n.meta.get("val") for n in nodes]
    sizes = [n for v in values if isinstance(v, Tensor) for n in v.shape]
    return [n for n in sizes if isinstance(n, torch.SymInt)]


def _has_effect(target: Any) -> bool:
    schema = target._schema if isinstance(target, OpOverload) else None
    return schema is not None and (schema.is_mutable or not schema.returns)


def length_of(x: Tensor) -> int:
    """From the first of its elements in memory to the last one."""
    if not x.numel():
        return 0
    return 1 + sum((n - 1) * k for n, k in zip(x.shape, x.stride(), strict=True))


def overlap(one: Held, other: Held) -> bool:
    """Whether there is a byte that both have."""
    x, y = one.tensor, other.tensor
    if not one.has_value or not other.has_value or x.device != y.device:
        return False
    (begin, end), (other_begin, other_end) = _stretch(x), _stretch(y)
    if min(end, other_end) <= max(begin, other_begin):
        return False
    first = min(begin, other_begin)
    touched = torch.zeros(max(end, other_end) - first, dtype=torch.bool)
    _bytes_in(touched, x, begin - first).fill_(True)
    return bool(_bytes_in(touched, y, other_begin - first).any())


def _stretch(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.data_ptr() + length_of(x) * x.dtype.itemsize


def _bytes_in(memory: Tensor, x: Tensor, begin: int) -> Tensor:
    """The bytes of a tensor, where its first one is `memory[begin]`."""
    size = x.dtype.itemsize
    return memory.as_strided((*x.shape, size), (*(k * size for k in x.stride()), 1), begin)


def place_of(graph: Graph, op: str) -> str:
    """Where in the model an op is, as far as the graph says."""
    name = op.rpartition("::")[2]
    for node in graph.module.graph.nodes:
        if node.op == "call_function" and name in str(node.target).split("."):
            modules = list(node.meta.get("nn_module_stack", {}).values())
            path = modules[-1][0] if modules else ""
            line = (node.meta.get("stack_trace") or "").strip().splitlines()
            where = line[-2].strip() if len(line) > 1 else ""
            return ", ".join(["", *(x for x in (path and f"in {path}", where) if x)])
    return ""
