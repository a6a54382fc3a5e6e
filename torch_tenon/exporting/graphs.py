"""An exported graph as the compiler takes it: mutations as writes, no checks of what is known."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from torch_tenon.exporting import fourier, recurrent, resampled
from torch_tenon.exporting.channels import NORM
from torch_tenon.exporting.errors import ExportError, depends_on_data
from torch_tenon.exporting.held import Given, Graph, Held, overlap, symbols_of
from torch_tenon.exporting.numbers import ITEMS, NoTensor, in_tensor
from torch_tenon.frontends.nodes import memory_of
from torch_tenon.ops.compositions import decompositions
from torch_tenon.ops.lowerings.table import find

aten = torch.ops.aten

# Checks of what was known when the model was exported: of dtypes and devices, and of sizes, which
# the program checks before a run.
_CHECKS = (
    *(aten._assert_scalar.default, aten._assert_tensor_metadata.default),
    *(aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default),
)
# Layers whose kernels for the host are written by hand, and what composes them.
_BY_HAND: tuple[tuple[Collection[Any], Callable[[], dict[Any, Any]]], ...] = (
    (recurrent.RECURRENT, recurrent.compositions),
    (resampled.RESAMPLED, resampled.compositions),
    (fourier.FOURIER, fourier.compositions),
)
_COMPOSITION = DispatchKey.CompositeImplicitAutograd
_AS_STRIDED = [a.name for a in aten.as_strided.default._schema.arguments]
_SLICE = [a.name for a in aten.slice_scatter.default._schema.arguments]
_WEIGHTS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Result:
    """The position of a result among the graph's outputs."""

    number: int


def prepare(program: ExportedProgram, by_hand: bool = False) -> Graph:
    """The graph of a program, decomposed; the program stays as it is. `by_hand`: the target takes
    kernels for the host, so that some layers have theirs. Raises ExportError."""
    table = dict(decompositions(standalone=True)) | {aten.copy.default: _copy}
    if by_hand:
        table.pop(NORM, None)  # which may become part of a convolution
        targets = {n.target for n in program.graph.nodes}
        for ops, compositions in _BY_HAND:
            if not targets.isdisjoint(ops):
                table |= compositions()
    misread = {n.target for n in program.graph.nodes if _is_misread(n.target, table)}
    table |= {op: functools.partial(op._op_dk, _COMPOSITION) for op in misread}
    symbols = symbols_of(program.graph.find_nodes(op="placeholder"))
    try:
        with torch.no_grad():
            lowered = program.run_decompositions(table)
    except AssertionError as error:
        _refuse_aliases(program, error)
        raise
    module = lowered.graph_module  # which is nobody else's
    graph = Graph(module, symbols=symbols)
    _take_inputs(graph, lowered)
    _take_outputs(graph, lowered)
    graph.conditions += [*_guards(module), *_replaced_slices(module), *_reached(module)]
    _drop_checks(graph)
    graph.drop_unused()
    return graph


def _is_misread(op: Any, table: Mapping[Any, Any]) -> bool:
    """Whether PyTorch's trace computes an op by a function that takes other arguments, where sizes
    may have any value: "sum" for the number that the op has, or names where it has an order."""
    function = decomposition_table.get(op)
    return (
        function is not None
        and op not in table
        and function.__module__.startswith("torch._refs")
        and find(op, standalone=True) is None
        and op.has_kernel_for_dispatch_key(_COMPOSITION)
    )


def _copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Any:
    """What a tensor is that another one is copied into. PyTorch's trace takes the source for it
    where the model's buffers are written, whatever its sizes and dtype."""
    pairs = zip(source.shape, x.shape, strict=False)
    is_expanded = source.dim() != x.dim() or any(statically_known_true(a != b) for a, b in pairs)
    if not is_expanded and source.dtype is x.dtype:
        return NotImplemented
    converted = source.to(x.dtype)
    return aten.copy.default(
        x, converted.expand(x.shape) if is_expanded else converted, non_blocking
    )


def _refuse_aliases(program: ExportedProgram, error: AssertionError) -> None:
    """Raises ExportError for a program with tensors that share memory: PyTorch fails where one of
    them is written."""
    specs = [s for s in program.graph_signature.input_specs if s.kind in _WEIGHTS]
    nodes = program.graph.find_nodes(op="placeholder")  # the model's own come first
    held = [_held(program, n, s) for n, s in zip(nodes, specs, strict=False)]
    for one, other in itertools.combinations(held, 2):
        if overlap(one, other):
            raise ExportError(
                f"the model's {one.name!r} and {other.name!r} share memory, of which PyTorch's "
                "trace cannot tell what writes change: let one of them be a view that is taken "
                "where it is needed"
            ) from error


def _held(program: ExportedProgram, node: Node, spec: InputSpec) -> Held:
    name = str(spec.target)
    found = program.state_dict.get(name)
    if found is None:
        found = program.constants.get(name)
    if not isinstance(found, Tensor):
        raise ExportError(f"the model's {name!r} is {type(found).__name__}, no tensor")
    if found.layout is not torch.strided or found.is_quantized:
        kind = "quantized" if found.is_quantized else str(found.layout)
        raise ExportError(f"the model's {name!r} is a {kind} tensor: export a dense one")
    return Held(name, node, found.detach())


def _take_inputs(graph: Graph, program: ExportedProgram) -> None:
    nodes = graph.module.graph.find_nodes(op="placeholder")
    for node, spec in zip(nodes, program.graph_signature.input_specs, strict=True):
        if spec.kind in _WEIGHTS:
            graph.placeholders.append(_held(program, node, spec))
        elif spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, TensorArgument):
            graph.placeholders.append(Given(spec.arg.name, node))
        elif spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            # A value that was fixed when the model was exported: nothing of the graph reads it.
            graph.module.graph.erase_node(node)
        else:
            raise ExportError(
                f"the input {spec.arg.name!r} is a {type(spec.arg).__name__}: a program takes "
                "tensors; give a number as a tensor without dimensions"
            )


def _take_outputs(graph: Graph, program: ExportedProgram) -> None:
    (output,) = graph.module.graph.find_nodes(op="output")
    held = {p.name: p for p in graph.placeholders if isinstance(p, Held)}
    kept: list[Node] = []
    writes: list[Node] = []
    places = _output_names(program)
    with graph.module.graph.inserting_before(output):
        for value, spec in zip(output.args[0], program.graph_signature.output_specs, strict=True):
            value = _before(writes, value)
            if spec.kind in (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION):
                owner = held[str(spec.target)]
                owner.is_written = True
                write = graph.module.graph.call_function(aten.copy_.default, (owner.node, value))
                write.meta["val"] = owner.node.meta["val"]
                writes.append(write)
            elif spec.kind is not OutputKind.USER_OUTPUT:
                raise ExportError(
                    f"the model writes its input {spec.target!r}: return the changed tensor, or "
                    "make it a buffer"
                    if spec.kind is OutputKind.USER_INPUT_MUTATION
                    else f"a result is a {spec.kind.name}, which a program cannot give"
                )
            elif isinstance(value, Node):
                if not isinstance(value.meta.get("val"), Tensor):
                    raise ExportError(
                        f"the result {value.name!r} is a size: give it as a tensor "
                        "(torch.scalar_tensor)"
                    )
                graph.results.append(Result(len(kept)))
                graph.names.append(places[len(graph.results) - 1])
                kept.append(value)
            else:
                graph.results.append(value)
    output.args = (tuple(kept),)
    spec = program.call_spec.out_spec
    graph.is_single = spec is not None and spec.is_leaf()


def _before(writes: list[Node], value: Any) -> Any:
    """A value as it is before some writes: a graph without writes has a tensor that the model
    overwrites, or a view of it, for what was there."""
    written = {memory_of(w) for w in writes}
    if not isinstance(value, Node) or memory_of(value) not in written:
        return value
    with value.graph.inserting_before(writes[0]):
        copy = value.graph.call_function(aten.clone.default, (value,))
    copy.meta["val"] = aten.clone.default(value.meta["val"])
    return copy


def _output_names(program: ExportedProgram) -> list[str]:
    """What people know results by: the path to each in what the model returns."""
    spec = program.call_spec.out_spec
    assert spec is not None
    leaves = list(range(spec.num_leaves))
    tree = tree_unflatten(leaves, spec)
    found = tree_flatten_with_path(tree)[0]
    names = [keystr(path) for path, _ in found]
    return [_plain(name) or f"output{k or ''}" for k, name in enumerate(names)]


def _plain(path: str) -> str:
    """`['logits']` or `.logits` as logits, `[0]` as output0."""
    name = path.strip(".[]'")
    return f"output{name}" if name.isdigit() else name.replace("']['", ".").replace("'].", ".")


def _guards(module: GraphModule) -> Iterator[Any]:
    """What was taken to hold of the sizes while the model was traced."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                yield from (guard.expr for guard in environment.guards)
                return


def _replaced_slices(module: GraphModule) -> Iterator[Any]:
    """What has to hold of the sizes where a tensor takes the place of a slice. The kernel looks at
    it, and the trace does not. A slice whose end the trace cut off has the size that it says."""
    for node in module.graph.find_nodes(op="call_function", target=aten.slice_scatter.default):
        given = dict(zip(_SLICE, node.args, strict=False)) | node.kwargs
        given = {k: x.meta["val"] if isinstance(x, Node) else x for k, x in given.items()}
        dim, step = given.get("dim", 0), given.get("step", 1)
        n, m = given["self"].shape[dim], given["src"].shape[dim]
        if isinstance(m, torch.SymInt) and m.node.expr.has(sympy.Min, sympy.Max):
            continue
        start, end = given.get("start"), given.get("end")
        end = n if end is None or statically_known_true(end >= n) else _from_front(end, n)
        start = 0 if start is None else _from_front(start, n)
        last, stop = start + (m - 1) * step, start + m * step
        nearer = end if _hint(end) <= _hint(n) else n
        wanted = [start >= 0, last < n, last < end, nearer <= stop]
        yield from (c.node.expr for c in wanted if isinstance(c, torch.SymBool))


def _hint(n: Any) -> int:
    """A size, or what it was in the example."""
    return n if isinstance(n, int) else int(n.node.hint)


def _reached(module: GraphModule) -> Iterator[Any]:
    """What has to hold of the sizes where a tensor is seen by any strides: it has memory up to
    there. A trace makes the memory larger. Raises ExportError where it never has."""
    first: dict[int | None, Node] = {}
    for node in module.graph.nodes:
        first.setdefault(memory_of(node), node)
        if node.target is not aten.as_strided.default:
            continue
        base = first[memory_of(node.args[0])].meta["val"]
        given = dict(zip(_AS_STRIDED, node.args, strict=False)) | node.kwargs
        size, stride, start = (
            [x.meta["val"] if isinstance(x, Node) else x for x in given.get(name) or ()]
            if name != "storage_offset"
            else given.get(name)
            for name in _AS_STRIDED[1:]
        )
        start = node.args[0].meta["val"].storage_offset() if start is None else start
        start = start.meta["val"] if isinstance(start, Node) else start
        holds = _end(size, stride, start) <= _end(base.shape, base.stride(), base.storage_offset())
        if holds is False:
            raise ExportError(f"{node.target} of more memory than there is")
        if isinstance(holds, torch.SymBool):
            yield holds.node.expr


def _end(size: Any, stride: Any, start: Any) -> Any:
    """How many elements of its memory a tensor reaches to."""
    if any(statically_known_true(n == 0) for n in size):
        return 0
    return start + 1 + sum((n - 1) * k for n, k in zip(size, stride, strict=True))


def _from_front(place: Any, n: Any) -> Any:
    return place if statically_known_true(place >= 0) else place + n


def _drop_checks(graph: Graph) -> None:
    for node in list(graph.module.graph.nodes):
        if node.target in _CHECKS:
            if isinstance(node.args[0], Node):
                _keep_check(graph, node, node.args[0])
            graph.module.graph.erase_node(node)
    # What holds of numbers that are known only in a run, the nodes kept for it look at.
    graph.conditions = [c for c in graph.conditions if not free_unbacked_symbols(c)]
    graph.drop_dead()


def _keep_check(graph: Graph, check: Node, condition: Node) -> None:
    """Keeps what a check asks: of a value in a tensor as an op, of sizes for their checks."""
    truth, value = _truth_in_tensor(condition), condition.meta.get("val")
    if truth is not None and condition.target is operator.le:
        return  # as it always is
    if truth is None:
        if not isinstance(value, torch.SymBool):
            return  # a range, of which there are comparisons as well
        if not free_unbacked_symbols(value):
            graph.conditions.append(value.node.expr)
            return
    with graph.module.graph.inserting_before(check):
        text = check.args[1] if len(check.args) > 1 else "a value is not what it has to be"
        if truth is None:
            try:
                truth = in_tensor(condition)
            except NoTensor as reason:
                raise ExportError(
                    depends_on_data(
                        graph,
                        f"the model checks {condition.meta['val']}, which a program cannot: "
                        f"{reason}; check a tensor instead (torch._assert_async)",
                    )
                ) from None
        graph.module.graph.call_function(aten._assert_async.msg, (truth, text))


def _truth_in_tensor(condition: Node) -> Node | None:
    """The tensor of one truth value that a condition compares with 1, as
    `torch._check_tensor_all` has it: `sym_ite(x.item(), 1, 0) >= 1`, `<= 1` and `== 1`."""
    if condition.target not in (operator.ge, operator.le, operator.eq) or condition.args[1] != 1:
        return None
    number = condition.args[0]
    if not isinstance(number, Node) or number.target is not torch.sym_ite:
        return None
    item, *values = number.args
    is_item = isinstance(item, Node) and item.target in ITEMS
    return item.args[0] if is_item and values == [1, 0] else None  # type: ignore[return-value,union-attr]
