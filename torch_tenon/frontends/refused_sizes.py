"""Ops of graphs whose kernels refuse sizes that a trace does not look at.

Plans take for granted what a trace says. `refuses_sizes` finds such ops before it is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from torch_tenon.frontends.in_place import is_less
from torch_tenon.frontends.written_results import example_of, of_same_sizes

aten = torch.ops.aten


def refuses_sizes(module: GraphModule) -> bool:
    """Whether a graph of Dynamo's has an op whose kernel will refuse its arguments' sizes: a
    `slice_scatter` of a source of other sizes, or an `as_strided` beyond what the graph has of its
    tensor's memory. Where that depends on sizes of any value, the graph is for those that give the
    same answer."""
    graphs = (m.graph for m in module.modules() if isinstance(m, GraphModule))
    return any(_is_refused(n) for graph in graphs for n in graph.nodes)


def _is_refused(n: Node) -> bool:
    name = _name_of(n)
    try:
        if name == "slice_scatter":
            whole, given = _arguments(n, aten.slice_scatter.default)
            source = given.pop("src")
            return not of_same_sizes(aten.slice.Tensor(whole, **given), source)
        if name.rstrip("_") == "as_strided":
            base, given = _arguments(n, aten.as_strided.default)
            return _reaches_beyond(n, base, **given)
    except Exception:  # the op says what is wrong with its arguments
        pass
    return False


def _name_of(n: Node) -> str:
    if n.op not in ("call_function", "call_method"):
        return ""
    return str(getattr(n.target, "__name__", n.target)).partition(".")[0]


def _arguments(n: Node, op: Any) -> tuple[Any, dict[str, Any]]:
    """The first argument of a node, and the others by the names that the op has for them."""
    names = [a.name for a in op._schema.arguments]
    given = dict(zip(names, example_of(n.args), strict=False)) | example_of(n.kwargs)
    first = given.pop("input") if "input" in given else given.pop("self")
    return first, given


def _reaches_beyond(n: Node, base: Any, size: Any, stride: Any, storage_offset: Any = None) -> bool:
    start = base.storage_offset() if storage_offset is None else storage_offset
    end = _end(size, stride, start) * base.itemsize
    # A trace makes memory larger for what is seen of it.
    others = (x for x in n.graph.nodes if _name_of(x).rstrip("_") != "as_strided")
    seen = (x.meta.get("example_value") for x in others)
    memory = base.untyped_storage()._cdata
    return not any(
        isinstance(t, torch.Tensor)
        and t.layout is torch.strided
        and t.untyped_storage()._cdata == memory
        and not is_less(_end(t.shape, t.stride(), t.storage_offset()) * t.itemsize, end)
        for t in seen
    )


def _end(size: Any, stride: Any, start: Any) -> Any:
    """How many elements of its memory a tensor reaches to."""
    if any(n == 0 for n in size):
        return 0
    return start + 1 + sum((n - 1) * k for n, k in zip(size, stride, strict=True))
