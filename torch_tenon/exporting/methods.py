"""A method of a program: an exported graph as a plan, and what the plan takes and gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils._sympy.functions import ToFloat

from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.plan import Plan
from torch_tenon.exporting.channels import convolve_by_channel
from torch_tenon.exporting.computed_sizes import NoWords, computed_words
from torch_tenon.exporting.errors import ExportError, depends_on_data
from torch_tenon.exporting.graphs import Result
from torch_tenon.exporting.held import Given, Graph, Held, fixed_of, place_of
from torch_tenon.exporting.laid_out import LaidOut
from torch_tenon.frontends.graph import BuiltGraph, Output, build
from torch_tenon.frontends.sizes import SizeSource
from torch_tenon.ir.index import Index, var
from torch_tenon.ir.size_words import words_of
from torch_tenon.ops.lowerings.table import NO_LOWERING, CannotLower, find
from torch_tenon.ops.variants import draws_numbers, known_of
from torch_tenon.runtime.interface import MOST_DIMENSIONS, NO_BOUND
from torch_tenon.runtime.size_words import (
    ADD,
    CONSTANT,
    MAXIMUM,
    MINIMUM,
    MODULO,
    MULTIPLY,
    SCALE,
    SYMBOL,
    size_text,
)

RUNTIME, TORCH = "runtime", "torch"  # what a program runs by
# As `SizeCheck::Comparison` in csrc/runtime/program_file.h has them.
EQUAL, DIFFERENT, AT_MOST, LESS = range(4)
Words = list[int]
_COMPARISONS = {
    "Equality": (EQUAL, False),
    "Unequality": (DIFFERENT, False),
    "LessThan": (AT_MOST, False),
    "StrictLessThan": (LESS, False),
    "GreaterThan": (AT_MOST, True),
    "StrictGreaterThan": (LESS, True),
}


class SizeSymbol(NamedTuple):
    """A size that a caller chooses, by what it is called, within bounds; or one that is computed of
    those before it, as `value` says."""

    name: str
    least: int
    greatest: int
    value: Sequence[int] = ()


class TensorSpec(NamedTuple):
    """A dense tensor that goes in or out; its sizes are expressions of the symbols, in words."""

    name: str
    dtype: torch.dtype
    sizes: list[Words]


class Check(NamedTuple):
    """What holds of the sizes in every call."""

    left: Words
    comparison: int
    right: Words


@dataclass
class Method:
    """One function of a program.

    `held` are the tensors of the model that the plan takes. `plan_inputs` says of each input of the
    plan whether it is an input of the method or one of `held`, and which.
    """

    name: str
    symbols: list[SizeSymbol]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    held: list[Held]
    plan_inputs: list[tuple[bool, int]]
    plan_outputs: list[int]
    checks: list[Check]
    results: list[Any]  # of the model: a `graphs.Result` or a constant
    is_single: bool  # the model returns one tensor, and no tuple of it
    plan: Plan
    calls: list[str]  # ops that PyTorch alone has

    def as_form_of(self, first: Method) -> Method:
        """This method, with the names that another one gives its results. Raises ExportError where
        it takes or gives something else than other sizes."""

        def kinds(specs: Sequence[TensorSpec]) -> list[tuple[torch.dtype, int]]:
            return [(s.dtype, len(s.sizes)) for s in specs]

        mine, theirs = (
            ([s.name for s in m.inputs], kinds(m.inputs), kinds(m.outputs), m._returned())
            for m in (self, first)
        )
        if mine != theirs:
            raise ExportError("the model returns something else for it")
        pairs = zip(self.outputs, first.outputs, strict=True)
        self.outputs = [s._replace(name=other.name) for s, other in pairs]
        return self

    def facts(self) -> dict[str, Any]:
        """What the model returns, and what a run does, for who looks at the file; as JSON has it.

        Raises ExportError for a constant result that is no plain data.
        """
        return {
            **self._returned(),
            "steps": [k.origin for k in self.plan.kernels],
            "calls": self.calls,
        }

    def _returned(self) -> dict[str, Any]:
        results = []
        for x in self.results:
            if not isinstance(x, Result | bool | int | float | str | None):
                raise ExportError(f"{self.name}: a result is a constant {type(x).__name__}")
            results.append({"output": x.number} if isinstance(x, Result) else {"value": x})
        return {"results": results, "is_single": self.is_single}


def takes_host_kernels(backend: Backend) -> bool:
    """Whether some ops have kernels of their own there, written by hand."""
    return backend.name == "cpu"


def build_method(
    name: str,
    graph: Graph,
    backend: Backend,
    laid_out: LaidOut,
    host: str = RUNTIME,
) -> Method:
    """The method that a prepared graph is, which knows what any method writes. `laid_out` are
    weights that were laid out anew for other methods, and then for this one too. With the host
    TORCH it may call PyTorch's ops. Raises ExportError."""
    if takes_host_kernels(backend):
        convolve_by_channel(graph, laid_out)
        graph.drop_unused()
    for p in graph.placeholders:
        if isinstance(p, Given) and not p.node.meta["val"].is_contiguous():
            raise ExportError(
                f"{name}: the example of the input {p.name!r} is not contiguous: programs take "
                "dense tensors in row-major order"
            )
    for node in graph.module.graph.find_nodes(op="get_attr"):
        if isinstance(getattr(graph.module, str(node.target), None), GraphModule):
            _refuse_parts(name, graph, node)
    try:
        with unset_fake_temporarily():
            built = build(graph.module, standalone=True)
        plan = Plan(built.program, backend)
    except NotImplementedError as error:
        raise ExportError(f"{name}: {depends_on_data(graph, str(error))}") from error
    if built.program.random is not None:
        drawn = dict.fromkeys(n.target for n in graph.module.graph.nodes if draws_numbers(n.target))
        lines = [f"  {op}{place_of(graph, str(op).split('.')[1])}" for op in drawn]
        raise ExportError(
            f"{name}: the model draws random numbers:\n" + "\n".join(lines) + "\nCall "
            "model.eval() before it is exported, where they are a dropout's. Take others as an "
            "input."
        )
    fixed = fixed_of(graph.symbols, [p.node for p in graph.placeholders])
    if fixed:
        raise ExportError(
            f"{name}: the sizes {', '.join(sorted(map(str, fixed)))} are dynamic, and are fixed by "
            "what the model is composed of: leave them out of dynamic_shapes"
        )
    return _Describer(name, graph, built).method(plan, host)


class _Describer:
    def __init__(self, name: str, graph: Graph, built: BuiltGraph) -> None:
        self.name, self.graph, self.built = name, graph, built
        self.table = built.sizes

    def method(self, plan: Plan, host: str) -> Method:
        graph, built = self.graph, self.built
        given = [p for p in graph.placeholders if isinstance(p, Given)]
        held = [p for p in graph.placeholders if isinstance(p, Held)]
        places = [graph.placeholders[k] for k in built.tensor_inputs]
        calls = self._calls(plan, host)
        inputs = [self._spec(p.name, p.node.meta["val"]) for p in given]
        outputs = [
            self._spec(name, node.meta["val"])
            for name, node in zip(graph.names, self._results(), strict=True)
        ]
        conditions = [c for c in map(self._check, graph.conditions) if c is not None]
        symbols = self._symbols()  # of all that was asked for
        return Method(
            self.name,
            symbols,
            inputs,
            outputs,
            held,
            [
                (True, given.index(p)) if isinstance(p, Given) else (False, held.index(p))
                for p in places
            ],
            self._plan_outputs(plan),
            [*self._multiples(), *_bounds(symbols), *conditions],
            graph.results,
            graph.is_single,
            plan,
            calls,
        )

    def _results(self) -> Sequence[Any]:
        (output,) = self.graph.module.graph.find_nodes(op="output")
        found: Sequence[Any] = output.args[0]
        return found

    def _plan_outputs(self, plan: Plan) -> list[int]:
        """For each output of the plan which of the graph's it is."""
        of_storage = {}
        for k, o in enumerate(self.built.outputs):
            assert isinstance(o, Output)
            of_storage[plan.program.outputs[o.number].buffer.storage] = k
        return [of_storage[s] for s in plan.program.storages if s.kind == "output"]

    def _symbols(self) -> list[SizeSymbol]:
        """The sizes of inputs, and what is computed of these. Raises ExportError for a size that no
        program computes."""
        found: list[SizeSymbol] = []
        for source, size in zip(self.table.sources, self.built.program.sizes, strict=True):
            if source.dim >= 0:
                found.append(self._symbol(source))
                continue
            try:
                if source.argument >= 0:
                    raise NoWords
                value = self._computed(source.expression)
            except NoWords:
                raise ExportError(
                    f"{self.name}: the size {source.expression} is computed from others in a way "
                    "that a program cannot"
                ) from None
            text = size_text(value, [s.name for s in found])
            name = text if value[-1] in (MINIMUM, MAXIMUM, SCALE) else _in_brackets(text)
            greatest = NO_BOUND if size.greatest is None else min(size.greatest, NO_BOUND)
            found.append(SizeSymbol(name, max(size.lower, -NO_BOUND), greatest, value))
        return found

    def _computed(self, e: Any) -> Words:
        """The words of a number that is computed of sizes. Raises NoWords."""
        environment = self._environment()

        def of_symbol(symbol: Any) -> Words:
            if symbol not in self.table.known:
                raise NoWords
            return self.words(self.table.known[symbol])

        def never_negative(e: Any) -> bool:
            return bool(environment.bound_sympy(e).lower >= 0)

        return computed_words(e, of_symbol, never_negative)

    def _environment(self) -> Any:
        """What PyTorch knows of the sizes; None where each is a number."""
        sizes = (n for p in self.graph.placeholders for n in p.node.meta["val"].shape)
        return next((n.node.shape_env for n in sizes if isinstance(n, torch.SymInt)), None)

    def _symbol(self, source: SizeSource) -> SizeSymbol:
        """A size of an input. Raises ExportError where the model itself has that tensor."""
        placeholder = self.graph.placeholders[source.argument]
        if not isinstance(placeholder, Given):
            raise ExportError(f"{self.name}: {placeholder.name!r} has a dynamic size")
        size = placeholder.node.meta["val"].shape[source.dim]
        bounds = size.node.shape_env.bound_sympy(size.node.expr)
        greatest = int(bounds.upper) if bounds.upper.is_Integer else NO_BOUND
        return SizeSymbol(_in_brackets(str(size.node.expr)), max(int(bounds.lower), 0), greatest)

    def _spec(self, name: str, value: Tensor) -> TensorSpec:
        if value.dim() > MOST_DIMENSIONS:
            raise ExportError(
                f"{self.name}: {name!r} has {value.dim()} dimensions, and what goes into a program "
                f"and comes out has {MOST_DIMENSIONS} at most"
            )
        return TensorSpec(name, value.dtype, [self.words(self.table.index(n)) for n in value.shape])

    def words(self, e: Index) -> Words:
        """An index in the symbols as the core reads it; what a run is given for one is no more than
        that."""
        symbols = self.built.program.sizes
        for k, symbol in enumerate(symbols):
            factor, offset = symbol.given_as
            if e == var(symbol) * factor + offset:
                return [SYMBOL, k]
        return words_of(e, symbols)

    def _multiples(self) -> Iterator[Check]:
        """Those of which a run is given a multiple: it is one."""
        for k, symbol in enumerate(self.built.program.sizes):
            factor, offset = symbol.given_as
            if factor != 1:
                less = [CONSTANT, -offset, ADD] if offset else []
                rest = [SYMBOL, k, *less, CONSTANT, factor, MODULO]
                yield Check(rest, EQUAL, [CONSTANT, 0])

    def _check(self, condition: Any) -> Check | None:
        """A condition on sizes; None for one that always holds."""
        environment = self._environment()
        if environment is None:
            return None
        condition = _in_whole_numbers(environment.simplify(condition))
        if condition in (True, sympy.true):
            return None
        comparison = _COMPARISONS.get(type(condition).__name__)
        try:
            if isinstance(condition, sympy.Or):
                return self._one_of(condition.args, environment)
            if comparison is None or len(condition.args) != 2:
                raise CannotLower("no comparison of two sizes")
            before = len(self.table.sources)
            left, right = (self.table._convert(e, environment) for e in condition.args)
            for source in self.table.sources[before:]:
                self._computed(source.expression)
        except (CannotLower, NoWords) as reason:
            raise ExportError(
                f"{self.name}: the model holds only where {condition}, which a program cannot "
                f"check: {str(reason) or 'it has no such numbers'}; give the sizes bounds "
                "(torch.export.Dim) that imply it"
            ) from reason
        kind, is_turned = comparison
        if is_turned:
            left, right = right, left
        return Check(self.words(left), kind, self.words(right))

    def _one_of(self, conditions: Sequence[Any], environment: Any) -> Check:
        """That one at least of some equations holds: the product of their differences is zero.
        Raises CannotLower where these are others."""
        product: Words = [CONSTANT, 1]
        for c in conditions:
            if not isinstance(c, sympy.Eq):
                raise CannotLower("no comparison of two sizes")
            left, right = (self.words(self.table._convert(e, environment)) for e in c.args)
            product += [*left, *right, CONSTANT, -1, MULTIPLY, ADD, MULTIPLY]
        return Check(product, EQUAL, [CONSTANT, 0])

    def _calls(self, plan: Plan, host: str) -> list[str]:
        """The ops of the plan that PyTorch alone has, by name. Raises ExportError where the host
        has not got one either, and names each such op and where the model has it."""
        origins = {op: call.origin for call, op in plan.overloads.items()}
        lacking = {op: "" for op in origins if not known_of(op).of_runtime}
        never = {op: why for op in lacking if (why := self._why_not_called(op, origins[op]))}
        lacking = {op: self._why_no_loops(op) for op in lacking}
        if not never and (host == TORCH or not lacking):
            return sorted({op.name() for op in lacking})
        if never:
            what, remedy = "ops of the model are none that a program calls", "Take"
        else:
            what = "ops of the model run by PyTorch alone, which a program is without"
            remedy = 'Give host="torch" for a program that runs with PyTorch. Or take'
        lines = [
            f"  {op}{place_of(self.graph, origins[op])}{why}"
            for op, why in (never or lacking).items()
        ]
        raise ExportError(
            f"{self.name}: {len(lines)} {what}:\n" + "\n".join(lines) + f"\n{remedy} them out of "
            "what is exported: run them before it or after it, or write them by other ops."
        )

    def _why_not_called(self, op: Any, origin: str) -> str:
        """Why no program calls an op, beside what the runtime lacks; nothing where one may."""
        if op is torch.ops.tenon.host_kernel.default:
            return f": the target has no code for {origin}"
        if op.namespace != "aten":
            return ": it is no op of PyTorch's own"
        if torch.Tag.nondeterministic_seeded in op.tags:
            return self._why_no_loops(op) or ": it draws random numbers"
        if any(a.name == "filename" for a in op._schema.arguments):
            return ": it opens a file"
        return ""

    def _why_no_loops(self, op: Any) -> str:
        """Why an op, which others have loops for, has none here."""
        why = self.built.fallbacks.get(str(op), NO_LOWERING)
        return "" if why == NO_LOWERING else f": {why}"


def _refuse_parts(name: str, graph: Graph, part: Node) -> None:
    """Raises ExportError where an op runs a part of the model that no lowering takes."""
    for op in {user.target for user in part.users}:
        if find(op, standalone=True) is None:
            raise ExportError(
                f"{name}: {op} runs parts of the model, and a program has no branches and loops: "
                "compute both branches and choose by torch.where, write a loop out"
            )


def _bounds(symbols: Sequence[SizeSymbol]) -> Iterator[Check]:
    """The bounds of what is computed, which its kernels rely on."""
    for k, symbol in enumerate(symbols):
        if symbol.value and symbol.least > -NO_BOUND:
            yield Check([CONSTANT, symbol.least], AT_MOST, [SYMBOL, k])
        if symbol.value and symbol.greatest < NO_BOUND:
            yield Check([SYMBOL, k], AT_MOST, [CONSTANT, symbol.greatest])


def _in_brackets(name: str) -> str:
    return f"({name})" if " " in name else name


def _in_whole_numbers(condition: Any) -> Any:
    """A condition that PyTorch compares in real numbers: `1.5 * (2 * n)` and `3 * n`."""
    if not condition.has(ToFloat):
        return condition
    return sympy.nsimplify(condition.replace(ToFloat, lambda n: n), rational=True)
