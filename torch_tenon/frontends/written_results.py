"""Ops of graphs that write tensors of another dtype, or of other sizes, than they compute.

A trace has such an op as one without the write, and a copy that converts. PyTorch's kernels do not:
most refuse an `out=` of another dtype, some compute in that one, and in place none makes a whole
number of a fraction. To an `out=` of other sizes they give those of the result, and where a trace
does not see that, the copy fails. `writes_other_results` finds these before anything is traced.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from torch_tenon.frontends.in_place import is_known, out_arguments
from torch_tenon.ops.variants import functional_of, known_of

# Python's operators in place, by what they compute.
_OPERATORS = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
    operator.ifloordiv: operator.floordiv,
    operator.imod: operator.mod,
    operator.ipow: operator.pow,
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
    operator.ilshift: operator.lshift,
    operator.irshift: operator.rshift,
}


def writes_other_results(module: GraphModule) -> bool:
    """Whether a graph of Dynamo's has an op with an `out=` of another dtype or other sizes than its
    result's, or one in place whose result its tensor can not have."""
    graphs = (m.graph for m in module.modules() if isinstance(m, GraphModule))
    return any(_converts(n) for graph in graphs for n in graph.nodes)


def _converts(n: Node) -> bool:
    if n.op not in ("call_function", "call_method"):
        return False
    if out := out_arguments(n):
        return _gives_another(n, out) or _fills_memory(n, out)
    functional = _functional(n)
    if functional is None:
        return False
    written = _dtypes([example_of(n.args[0])])
    found = _dtypes(_results_of(functional, n, dict(n.kwargs)))
    return any(not torch.can_cast(x, y) for x, y in zip(found, written, strict=False))


def _gives_another(n: Node, out: dict[str, Any]) -> bool:
    """Whether the result of an op is of another dtype than its `out`, or of other sizes."""
    kwargs = {name: x for name, x in n.kwargs.items() if name not in out}
    if not _tensors((n.args, kwargs)):
        return False  # it makes what `out` says
    function = n.target
    if isinstance(function, OpOverload):
        function = function.overloadpacket
    elif isinstance(function, str):
        function = getattr(torch.Tensor, function)
    found = _results_of(function, n, kwargs)
    written = _tensors(list(out.values()))
    if found is None or _dtypes(found) != _dtypes(written):
        return True
    return not all(of_same_sizes(*pair) for pair in zip(found, written, strict=True))


def _fills_memory(n: Node, out: dict[str, Any]) -> bool:
    """Whether the CPU's kernel writes the memory of an `out` in order, which is not its elements'
    order."""
    apart = any(not t.is_contiguous() for t in _tensors(list(out.values())))
    return apart and any(known_of(op).flat_out for op in _overloads(n.target))


def _overloads(target: Any) -> list[OpOverload]:
    """The ops that a node may call."""
    if isinstance(target, OpOverload):
        return [target]
    name = getattr(target, "__name__", str(target))
    packets = [getattr(torch.ops.aten, x, None) for x in (name, f"_{name}")]
    return [getattr(p, x) for p in packets if p is not None for x in p.overloads()]


def of_same_sizes(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same sizes. Where that depends on sizes of any value, the graph
    is for those that give the same answer."""
    pairs = zip(a.shape, b.shape, strict=False)
    return a.dim() == b.dim() and all(x == y for x, y in pairs if all(map(is_known, (x, y))))


def _functional(n: Node) -> Any:
    """What an op in place computes; None for any other op."""
    target = n.target
    if not n.args or not _tensors(n.args[0]):
        return None
    if target in _OPERATORS:
        return _OPERATORS[target]
    if isinstance(target, OpOverload):
        return functional_of(target) if target._schema.name.endswith("_") else None
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if not name.endswith("_") or name.endswith("__"):
        return None
    place = torch.ops.aten if isinstance(target, OpOverloadPacket) else torch
    return getattr(torch.Tensor if isinstance(target, str) else place, name[:-1], None)


def _results_of(function: Any, n: Node, kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
    """What a function gives for a node's arguments; None where nobody can tell."""
    try:
        args, named = example_of((n.args, kwargs))
        found = tree_leaves(function(*args, **named))
        return [t for t in found if isinstance(t, torch.Tensor)]
    except Exception:  # it has no such variant, or looks at numbers
        return None


def example_of(x: Any) -> Any:
    return map_arg(x, lambda n: n.meta.get("example_value"))


def _tensors(x: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(example_of(x)) if isinstance(t, torch.Tensor)]


def _dtypes(x: Any) -> list[torch.dtype]:
    return [t.dtype for t in tree_leaves(x) if isinstance(t, torch.Tensor)]
