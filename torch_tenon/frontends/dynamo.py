"""`torch.compile(backend="tenon")`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd.schemas import OutputType
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from torch_tenon import _C, config
from torch_tenon import device as devices
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.build import takes_unsigned
from torch_tenon.compiler.explain import GraphSummary, describe, summarise_graph
from torch_tenon.compiler.failing import why_not
from torch_tenon.compiler.lost import follows_from_failure
from torch_tenon.compiler.plan import HOST, Plan
from torch_tenon.frontends.common_nodes import merge_equal_nodes
from torch_tenon.frontends.complex_constants import eager_code
from torch_tenon.frontends.flex_attention import inline_flex_attention
from torch_tenon.frontends.graph import BuiltGraph, Float, Output, build
from torch_tenon.frontends.in_place import writes_beside_out, writes_shared_elements
from torch_tenon.frontends.nodes import is_of_device, is_token
from torch_tenon.frontends.parts import Boxed, GraphInParts, is_of_library
from torch_tenon.frontends.refused_sizes import refuses_sizes
from torch_tenon.frontends.sizes import evaluator
from torch_tenon.frontends.view_results import View
from torch_tenon.frontends.written_results import writes_other_results
from torch_tenon.ir.index import Expr, evaluate
from torch_tenon.ops.batch_norms import is_surely
from torch_tenon.ops.compositions import decompositions
from torch_tenon.ops.derived_products import derived
from torch_tenon.ops.lowerings.table import UNSIGNED, fits, has_narrow_numbers
from torch_tenon.ops.traced import in_own_memory, laid_out
from torch_tenon.ops.variants import known_of, overload
from torch_tenon.targets.target import TargetError

log = logging.getLogger("torch_tenon.program")
schedule_log = logging.getLogger("torch_tenon.schedule")
aten = torch.ops.aten

GraphCompiler = Callable[[GraphModule, Sequence[Any]], Boxed]


class CompiledGraph:
    """A graph as a callable on tensors and run-time sizes, in the order of its placeholders."""

    def __init__(
        self, built: BuiltGraph, plan: Plan, places: Places, otherwise: Callable[..., Any]
    ) -> None:
        self.built, self.plan = built, plan
        # What runs the graph where a number is none of a dtype that has to have it: PyTorch's
        # kernels say whether that is an error.
        self.otherwise = otherwise if built.fitting else None
        self.device, self.host_outputs = places
        # Where the results are the plan's and no size is to be found out, a call is the plan's run.
        outputs = [Output(k) for k in range(len(built.outputs))]
        self.results_are_outputs = built.outputs == outputs and not self.host_outputs
        self.gives_arguments = any(isinstance(o, View) for o in built.outputs)
        table = built.sizes
        self.native = None if table.sources else plan.native(())
        # Which of the graph's tensors it writes.
        stored = built.program.inputs[: len(built.tensor_inputs)]
        self.written = [x.buffer.storage.current is not x.buffer.base for x in stored]
        # Of these, what holds anything once a run has failed.
        lost = follows_from_failure(plan.schedule.groups)
        self.lost = [
            k
            for k, (x, written) in enumerate(zip(stored, self.written, strict=True))
            if written and x.buffer.storage in lost
        ]
        self.numbers = None
        if table.sources or table.floats:
            self.numbers = evaluator(table.sources, table.given, list(table.floats))

    def __call__(self, args: list[Any]) -> list[Any]:
        built = self.built
        sizes, floats = self.numbers(args) if self.numbers is not None else ([], [])
        if self.otherwise is not None and not self._all_fit(sizes, floats):
            given = list(args)
            args.clear()
            return list(self.otherwise(*given))
        tensors = [args[k] for k in built.tensor_inputs]
        copied: list[tuple[Tensor, Tensor]] = []  # of what is written, with the copy
        if any(map(Tensor.is_neg, tensors)) or any(map(Tensor.is_conj, tensors)):
            given, tensors = tensors, [in_memory(t) for t in tensors]
            pairs = zip(given, tensors, self.written, strict=True)
            copied = [(t, copy) for t, copy, written in pairs if written and copy is not t]
        if built.program.random is not None:
            tensors += random_state(self.device, built.program.random_ops)
        dtypes = (torch.float64, torch.float32) if has_narrow_numbers() else (torch.float64,)
        numbers = [torch.tensor(x, dtype=torch.float64) for x in floats]
        tensors += [x.to(dtype) for x in numbers for dtype in dtypes]
        arguments = list(args) if self.gives_arguments else []
        args.clear()
        native = self.native or self.plan.native(tuple(sizes))
        if torch._C._len_torch_dispatch_stack():
            # PyTorch watches a graph's first run so. A call that a mode hands on has no kernels for
            # conjugates, and what an op is composed of takes them for what they lie over.
            with _disable_current_modes():
                got = self._run(native, tensors, copied)
        else:
            got = self._run(native, tensors, copied)
        if self.results_are_outputs:
            return got
        values = dict(zip(built.program.sizes, sizes, strict=True))
        results: list[Any] = [
            got[o.number]
            if isinstance(o, Output)
            else floats[o.number]
            if isinstance(o, Float)
            else evaluate(o, values)
            if isinstance(o, Expr)
            else o.made(arguments, got, values)
            if isinstance(o, View)
            else o
            for o in built.outputs
        ]
        for k in self.host_outputs:
            if results[k] is not None:  # else a token, which orders calls that have effects
                results[k] = results[k].cpu()
        return results

    def _all_fit(self, sizes: Sequence[int], floats: Sequence[float]) -> bool:
        """Whether the run's numbers are some of the dtypes that have to have them."""
        values = dict(zip(self.built.program.sizes, sizes, strict=True))
        return all(
            fits(floats[x.number] if isinstance(x, Float) else evaluate(x, values), dtype)
            for x, dtype in self.built.fitting
        )

    def _run(
        self, native: _C.Plan, tensors: list[Tensor], copied: Sequence[tuple[Tensor, Tensor]]
    ) -> list[Any]:
        """The plan's results. What it has written is given back to tensors that were copied."""
        got: list[Any] = native.run(tensors, self.device, self.lost)
        with torch.no_grad():
            for t, copy in copied:
                t.copy_(copy)
        return got


def in_memory(x: Tensor) -> Tensor:
    """A conjugate or negative of other memory, whose own holds its numbers at the same places: that
    is what a plan reads. Any other tensor as it is."""
    if not (x.is_neg() or x.is_conj()) or not x.numel():
        return x
    length = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    with torch.no_grad():
        row = x.detach().as_strided((length,), (1,), x.storage_offset())
        return row.resolve_conj().resolve_neg().as_strided(x.shape, x.stride(), 0)


def random_state(device: torch.device, count: int) -> list[torch.Tensor]:
    """Seed and offset for a run with `count` random ops, taken from the generator of the device:
    each op has the number that it would have if it ran on its own. For a graph of the host, whose
    generator cannot be advanced by a number of ops, a seed drawn from it."""
    if device == HOST:
        return [torch.empty((), dtype=torch.int64).random_(), torch.zeros((), dtype=torch.int64)]
    return [torch.tensor(n) for n in _C.draw(device.index, count)]


def compile_graph(
    module: GraphModule, inputs: Sequence[Any], backend: Backend | None = None
) -> Boxed:
    """A functional ATen graph as a compiled callable (boxed: it takes a list, and empties it).

    `backend` is that of the graph's device where none is given. What the target's library has is
    called between plans (see `parts.py`).
    """
    try:
        device = places_of(module).device
    except NotImplementedError as error:
        return _refused(module, inputs, error)
    inline_flex_attention(module, _decompositions())
    used = backend or devices.backend(device)
    called: set[Node] = set()
    if used is not None and device != HOST:
        called = {n for n in module.graph.nodes if is_of_library(n, used)}
    if not called:
        return _compile_whole(module, inputs, backend, _views(module))
    in_parts = GraphInParts(module, called, lambda part: _compile_whole(part, (), backend, {}))

    def run(args: list[Any]) -> list[Any]:
        return in_parts(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    run.parts = in_parts.parts  # type: ignore[attr-defined]
    return run


def _compile_whole(
    module: GraphModule, inputs: Sequence[Any], backend: Backend | None, views: Mapping[int, int]
) -> Boxed:
    """A graph as one plan; `views` are its results that the caller makes anew (see `build`)."""
    try:
        places = places_of(module)
        backend = backend or devices.backend(places.device)
        if backend is None:
            name = devices.target().name
            raise NotImplementedError(f"the target {name!r} has no backend")
        with unset_fake_temporarily():  # constants of the graph are real tensors
            built = build(module, views)
            plan = Plan(built.program, backend).compile()
            compiled = CompiledGraph(built, plan, places, eager_code(module))
            log.debug("%s", module.graph)
            if schedule_log.isEnabledFor(logging.DEBUG):
                schedule_log.debug("%s", describe(plan, built.fallbacks))
    except (NotImplementedError, TargetError) as error:
        return _refused(module, inputs, error)

    def run(args: list[Any]) -> list[Any]:
        return compiled(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    run.compiled = compiled  # type: ignore[attr-defined]
    return run


def _refused(module: GraphModule, inputs: Sequence[Any], error: Exception) -> Boxed:
    log.warning("a graph of %d ops runs by reference: %s", len(module.graph.nodes), error)
    return run_by_reference(module, inputs)


def _views(module: GraphModule) -> dict[int, int]:
    """The results that AOTAutograd makes anew as views of an argument: what the graph gives for
    them is asked for its layout alone. By position, with the argument's. Tokens, which AOTAutograd
    does not count, come first among both."""
    context = TracingContext.try_get()
    facts = context.fw_metadata if context is not None else None
    given = module.graph.find_nodes(op="placeholder")
    if facts is None or any(n.name.startswith("tangents") for n in given):
        return {}
    tokens = sum(map(is_token, given))
    first = tokens + len(facts.mutated_inp_runtime_indices)
    return {
        first + k: tokens + o.base_idx
        for k, o in enumerate(facts.output_info)
        if o.output_type is OutputType.alias_of_input and o.base_idx is not None
    }


class Places(NamedTuple):
    """Where a graph runs: a tenon device, or the host for a graph of the host's tensors alone; and
    which results of a graph of a device the host gets, by position."""

    device: torch.device
    host_outputs: list[int]


def places_of(module: GraphModule) -> Places:
    """Where a graph runs, by the tensors that it is given and makes.

    Raises NotImplementedError for a graph of several tenon devices.
    """
    (output,) = module.graph.find_nodes(op="output")
    results = [n.meta.get("val") if isinstance(n, Node) else None for n in output.args[0]]
    values = tree_leaves([n.meta.get("val") for n in module.graph.nodes])
    found = {v.device for v in values if is_of_device(v)}
    if len(found) > 1:
        names = ", ".join(sorted(map(str, found)))
        raise NotImplementedError(f"it is of several devices, {names}")
    if not found:
        return Places(HOST, [])
    host = [k for k, v in enumerate(results) if isinstance(v, torch.Tensor) and not is_of_device(v)]
    return Places(found.pop(), host)


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OPTIONS = {"reference": (bool, "run graphs op by op, as eager code runs")}


def tenon_backend(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The backend function that Dynamo calls: AOTAutograd around `compile_graph`.

    `mode` is one of torch.compile's; a plan has no overhead to reduce and matrix products are
    always tuned, so all mean the same. `options` are those of OPTIONS. Raises ValueError for
    others.
    """
    compiler: GraphCompiler = compile_graph
    asked = check_options(mode, options).get("reference", False)
    why = ""
    if writes_shared_elements(module):
        why = "it writes elements that share memory"
    elif writes_beside_out(module):
        why = "an op with an out= writes another argument as well"
    elif writes_other_results(module):
        why = "it writes tensors of another dtype or other sizes than it computes"
    elif refuses_sizes(module):
        why = "a kernel refuses the sizes of its arguments"
    if why:
        log.warning("a graph of %d ops runs as eager code: %s", len(module.graph.nodes), why)
        return eager_code(module)
    if asked or config.EXECUTE.read() == "reference":
        compiler = run_by_reference
    return _autograd(compiler, compiler, compiler)(module, inputs)


def run_by_reference(module: GraphModule, inputs: Sequence[Any]) -> Boxed:
    """The graph op by op, as eager code runs."""
    return make_boxed_func(eager_code(module))


def check_options(mode: str | None, options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The options, if they are some. Raises ValueError, naming what is known."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile: mode={mode!r} is none of {', '.join(MODES)}")
    options = options or {}
    for name, value in options.items():
        if name not in OPTIONS:
            known = "; ".join(f"{k} ({t.__name__}): {doc}" for k, (t, doc) in OPTIONS.items())
            raise ValueError(f"torch.compile: the backend tenon has no option {name!r}: {known}")
        kind = OPTIONS[name][0]
        if not isinstance(value, kind):
            raise ValueError(f"torch.compile: option {name!r} is a {kind.__name__}, not {value!r}")
    return options


def _autograd(forward: GraphCompiler, backward: GraphCompiler, inference: GraphCompiler) -> Any:
    return aot_autograd(
        fw_compiler=forward,
        bw_compiler=backward,
        inference_compiler=inference,
        decompositions=_decompositions(),
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """The table that a trace decomposes ops by: what the target's library has stays whole."""
    table = {op: _or_whole(op, _as_eager(op, f)) for op, f in decompositions().items()}
    library = devices.target().library
    for op in library:
        table.pop(overload(op), None)
    return table | {overload(op): function for op, function in derived(library).items()}


@functools.cache
def _as_eager(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose results lie as those of eager code, and in memory of their own."""
    rule = known_of(op).lies_as_on_cpu
    laid = laid_out(op, function, rule) if rule not in ("", "kernel") else function
    return in_own_memory(op, laid)


@functools.cache
def _or_whole(op: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; but where it fails, by arguments that it was not written for, the op stays in
    the graph: PyTorch's kernel takes them, or says what is wrong with them. So does one of whole
    numbers without sign, which many kernels refuse of the ops that it would come apart into."""

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        if not takes_unsigned(op) and any(
            isinstance(x, Tensor) and x.dtype in UNSIGNED for x in tree_leaves((args, keywords))
        ):
            return NotImplemented
        try:
            return function(*args, **keywords)
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError) as error:
            given = [x for x in tree_leaves((args, keywords)) if isinstance(x, Tensor)]
            of_nothing = any(is_surely(x.numel() == 0) for x in given)
            log.debug("%s", why_not(str(op), error, of_nothing))
            return NotImplemented

    return run


def partition(joint: GraphModule, *args: Any, **keywords: Any) -> tuple[GraphModule, GraphModule]:
    """Forward and backward graph of a joint one: what is cheap is computed again.

    Random numbers never are, checkpoint or not: the backward gets those of the forward.
    """
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            # Saved are tensors, not the tuples that they come in.
            saved = [node]
            if isinstance(node.meta.get("val"), tuple):
                saved = list(node.users)
                node.meta.pop("recompute", None)
            for each in saved:
                each.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    merge_equal_nodes(joint.graph)
    # PyTorch's own merging does the same, but imports all of Inductor for it, more than a second.
    with functorch_config.patch(cse=False):
        return min_cut_rematerialization_partition(joint, *args, **keywords)


def explain_graphs(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[GraphSummary]:
    """What the compiler makes of a call, graph by graph, in the order in which they are compiled.

    Runs the function once (and, where a result needs gradients, its backward). The function is
    compiled afresh; graphs compiled before stay as they are.
    """
    seen: list[GraphSummary] = []

    def recording(kind: str) -> Callable[..., Any]:
        def compile_and_keep(module: GraphModule, example: Sequence[Any]) -> Any:
            run = compile_graph(module, example)
            for part in getattr(run, "parts", [run]):
                compiled: CompiledGraph | None = getattr(part, "compiled", None)
                if compiled is not None:  # else it runs by reference, as the log says
                    seen.append(summarise_graph(kind, compiled.plan, compiled.built.fallbacks))
            return run

        return compile_and_keep

    backend = _autograd(recording("forward"), recording("backward"), recording("inference"))
    results = torch.compile(function, backend=backend)(*args, **kwargs)
    for r in tree_leaves(results):
        if isinstance(r, torch.Tensor) and r.requires_grad:
            r.sum().backward(retain_graph=True)
    return seen


def register() -> None:
    """Makes `torch.compile(backend="tenon")` find the backend."""
    from torch._dynamo import list_backends, register_backend

    if "tenon" not in list_backends(exclude_tags=()):
        register_backend(tenon_backend, "tenon")
