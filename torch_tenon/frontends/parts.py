"""A graph in parts, between which the target's own library runs ops.

The library's kernels (`Target.library`) are fused with nothing. So a graph is cut at the ops that
they are for: what lies between is compiled, and these ops are called as eager code calls them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.node import map_arg

from torch_tenon import device
from torch_tenon.compiler.backend import Backend
from torch_tenon.ops.variants import known_of

Boxed = Callable[[list[Any]], list[Any]]
Values = list[Any]
Step = Callable[[Values], None]


def is_of_library(node: Node, backend: Backend) -> bool:
    """Whether the target's library runs a node of a graph of the device. What is around a product
    is fused into it where the backend multiplies."""
    op = node.target
    if not isinstance(op, OpOverload) or op.name() not in device.target().library:
        return False
    given = (n.meta.get("val") for n in node.all_input_nodes)
    dtypes = {x.dtype for x in given if isinstance(x, Tensor)}
    return not known_of(op).product or not dtypes <= backend.product_dtypes


class GraphInParts:
    """A graph as a callable on tensors and run-time numbers, in the order of its placeholders.

    Parts and calls run in the order of the graph's nodes. `called` are the nodes that the library
    runs; `compile_part` makes a callable of the graph between two of them. Views of what is there
    before a part are made anew in each part that reads them.
    """

    def __init__(
        self, module: GraphModule, called: set[Node], compile_part: Callable[[GraphModule], Boxed]
    ) -> None:
        self.module, self.called = module, called
        self.parts: list[Boxed] = []
        self.places: dict[Node, int] = {}  # of the nodes' values
        given = module.graph.find_nodes(op="placeholder")
        (output,) = module.graph.find_nodes(op="output")
        self.results: Sequence[Any] = output.args[0]
        for n in given:
            self._place(n)
        sources = _sources_of_sizes(given)
        groups = _groups(module, called)
        apart = {n for group in groups for n in _apart(group, called)}
        parts = [_extract(module, group, called, apart, sources) for group in groups]
        wanted = set(output.all_input_nodes).union(*(part.given for part in parts))
        for n in reversed(module.graph.nodes):
            if n in called or (n in apart and n in wanted):
                wanted.update(n.all_input_nodes)
        steps: list[tuple[Step, list[Node]]] = []
        for group, part in zip(groups, parts, strict=True):
            steps += [self._call(n) for n in group if n in called or (n in apart and n in wanted)]
            if part.made:
                self.parts.append(compile_part(part.module))
                steps.append(self._part(part, self.parts[-1]))
        last = {n: k for k, (_, nodes) in enumerate(steps) for n in nodes}
        kept = set(output.all_input_nodes)
        self.steps = [
            (step, [self.places[n] for n in set(nodes) - kept if last[n] == k])
            for k, (step, nodes) in enumerate(steps)
        ]

    def __call__(self, args: list[Any]) -> list[Any]:
        values: Values = [None] * len(self.places)
        values[: len(args)] = args
        args.clear()
        for step, ended in self.steps:
            step(values)
            for k in ended:
                values[k] = None
        return [values[self.places[r]] if isinstance(r, Node) else r for r in self.results]

    def _place(self, n: Node) -> int:
        return self.places.setdefault(n, len(self.places))

    def _call(self, n: Node) -> tuple[Step, list[Node]]:
        """A step that calls a node's own function, and the nodes whose values it uses and makes."""
        used = [x for x in n.all_input_nodes if x.op != "get_attr"]
        places = {x: self._place(x) for x in used}
        place, function, library = self._place(n), n.target, n in self.called
        assert callable(function)

        def value(values: Values, x: Node) -> Any:
            if x.op == "get_attr":
                return operator.attrgetter(str(x.target))(self.module)
            return values[places[x]]

        def step(values: Values) -> None:
            args, keywords = map_arg((n.args, n.kwargs), lambda x: value(values, x))
            with torch.no_grad():
                made = function(*args, **keywords)
            values[place] = _as_traced(n, n.meta.get("val"), made) if library else made

        return step, [*used, n]

    def _part(self, part: Part, run: Boxed) -> tuple[Step, list[Node]]:
        """A step that runs a part, and the nodes whose values it uses and makes."""
        given = [self._place(n) for n in part.given]
        made = [self._place(n) for n in part.made]

        def step(values: Values) -> None:
            for k, value in zip(made, run([values[k] for k in given]), strict=True):
                values[k] = value

        return step, [*part.given, *part.made]


class Part(NamedTuple):
    """Some nodes of a graph as a graph, and those that its placeholders and results stand for."""

    module: GraphModule
    given: list[Node]
    made: list[Node]


def _groups(module: GraphModule, called: set[Node]) -> list[list[Node]]:
    """The nodes that compute something, in order: each of `called` by itself, and all between two.
    What picks a result of a node out of several is in the node's group."""
    groups: list[list[Node]] = [[]]
    group_of: dict[Node, list[Node]] = {}
    for n in module.graph.nodes:
        if n.op != "call_function":
            continue
        if n in called:
            groups += [[n], []]
            group_of[n] = groups[-2]
            continue
        picks = n.target is operator.getitem and isinstance(n.args[0], Node)
        group = group_of.get(n.args[0], groups[-1]) if picks else groups[-1]
        group.append(n)
        group_of[n] = group
    return groups


def _is_cheap(n: Node) -> bool:
    """Whether a node computes no elements: a view, one of several results, a size."""
    if isinstance(n.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return True
    view = isinstance(n.target, OpOverload) and n.target.is_view
    return view or n.target is operator.getitem


def _apart(group: Sequence[Node], called: set[Node]) -> list[Node]:
    """The nodes of a group that compute no elements, and of nothing that its part computes."""
    found: list[Node] = []
    computed = set(group) - called
    for n in group:
        if n not in called and _is_cheap(n) and not any(x in computed for x in n.all_input_nodes):
            computed.remove(n)
            found.append(n)
    return found


def _extract(
    module: GraphModule,
    group: Sequence[Node],
    called: set[Node],
    apart: set[Node],
    sources: Mapping[Any, Node],
) -> Part:
    """The graph of what a group computes. What it reads of `apart`, of this group or another, is
    made anew in it."""
    nodes = [n for n in group if n not in called and n not in apart]
    inside = set(nodes)
    made = [n for n in nodes if any(u not in inside for u in n.users)]
    given: dict[Node, None] = {}
    again: dict[Node, None] = {}  # in the order in which they can be made

    def need(n: Node) -> None:
        if n in inside or n in given or n in again:
            return
        picks = n.target is operator.getitem and n.args[0] not in apart
        if n.op != "get_attr" and (n not in apart or picks):
            given[n] = None
            return
        for x in n.all_input_nodes:
            need(x)
        again[n] = None

    for n in nodes:
        for x in n.all_input_nodes:
            need(x)
    known: set[Any] = set()
    for n in given:
        known.update(_sizes_of(n))
    used = set().union(*(free_symbols(n.meta.get("val")) for n in (*given, *again, *nodes)))
    given.update((sources[s], None) for s in sorted(used - known, key=str) if s in sources)
    graph = Graph()
    copies: dict[Node, Node] = {}
    for n in given:
        copies[n] = graph.placeholder(n.name)
        copies[n].meta = dict(n.meta)
    for n in (*again, *nodes):
        copies[n] = graph.node_copy(n, copies.__getitem__)
    graph.output([copies[n] for n in made])
    return Part(GraphModule(module, graph), list(given), made)


def _sizes_of(n: Node) -> list[Any]:
    """The symbols whose values are an argument of that kind or one of its sizes."""
    value = n.meta.get("val")
    sizes: list[Any] = [value] if isinstance(value, torch.SymInt | torch.SymFloat) else []
    if isinstance(value, Tensor):
        sizes = [s for s in value.shape if isinstance(s, torch.SymInt)]
    return [s.node.expr for s in sizes if s.node.expr.is_Symbol]


def _sources_of_sizes(given: Sequence[Node]) -> dict[Any, Node]:
    """For each symbol an argument that tells its value: a number rather than a tensor."""
    in_order = sorted(given, key=lambda n: isinstance(n.meta.get("val"), Tensor), reverse=True)
    return {symbol: n for n in in_order for symbol in _sizes_of(n)}


def _as_traced(n: Node, traced: Any, made: Any) -> Any:
    """What the library made, laid out as in the trace: that is what parts are compiled for.

    Raises RuntimeError for results of other sizes or another dtype.
    """
    if isinstance(traced, list | tuple):
        return [_as_traced(n, t, m) for t, m in zip(traced, made, strict=True)]
    if not isinstance(traced, Tensor):
        return made
    fits = made.dim() == traced.dim() and all(
        isinstance(size, torch.SymInt) or size == got
        for size, got in zip(traced.shape, made.shape, strict=True)
    )
    if not fits or made.dtype is not traced.dtype:
        raise RuntimeError(
            f"the library's kernel for {n.target} gave {tuple(made.shape)} of {made.dtype}; "
            f"its results are {tuple(traced.shape)} of {traced.dtype}"
        )
    order = sorted(range(traced.dim()), key=lambda d: _hint(traced.stride(d)), reverse=True)
    expected, step = [0] * traced.dim(), 1
    for d in reversed(order):
        expected[d] = step
        step *= max(made.shape[d], 1)
    if all(
        s == e or size <= 1 for s, e, size in zip(made.stride(), expected, made.shape, strict=True)
    ):
        return made
    laid_out = torch.empty_strided(made.shape, expected, dtype=made.dtype, device=made.device)
    return laid_out.copy_(made)


def _hint(size: Any) -> int:
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size
