"""`torch.compile(backend="tenon")`."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves

from torch_tenon import config
from torch_tenon.compiler.autotune import Tuner
from torch_tenon.compiler.build import BuiltGraph, Output, SizeSource, build
from torch_tenon.compiler.cache import Cache
from torch_tenon.compiler.cpu_compiler import CpuCompiler
from torch_tenon.compiler.explain import describe
from torch_tenon.compiler.plan import HOST, Plan
from torch_tenon.ir.index import Expr, evaluate
from torch_tenon.ops import attention
from torch_tenon.ops.compositions import COMPOSITIONS
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import LOWERINGS

log = logging.getLogger("torch_tenon.program")
aten = torch.ops.aten


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions, less those of ops that the table lowers itself."""
    load_all()
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    more: list[Any] = [
        aten.native_batch_norm,
        aten._native_batch_norm_legit_functional,
        aten._native_batch_norm_legit,
        aten._native_batch_norm_legit_no_training,
        aten.native_batch_norm_backward,
        aten._batch_norm_with_update_functional,
        aten._batch_norm_no_update,
        aten.batch_norm_backward,
        aten.native_group_norm_backward,
        aten.native_layer_norm_backward,
        aten.upsample_bilinear2d.vec,
        aten.upsample_nearest2d.vec,
        aten.hardswish,
        aten.hardsigmoid,
        aten._adaptive_avg_pool2d,
        aten.adaptive_max_pool2d,
        aten.adaptive_max_pool3d,
        aten.addmv,
        aten.dist,
        aten.ldexp,
        aten.linalg_vector_norm,
        aten.max_pool2d_with_indices,
        aten.max_pool2d_with_indices_backward,
        aten.max_pool3d_with_indices,
        aten.rrelu_with_noise_backward,
        aten.tril_indices,
        aten.triu_indices,
        aten.unfold,
        aten.upsample_bicubic2d,
        aten.upsample_bilinear2d,
        aten.upsample_trilinear3d,
    ]
    table.update(get_decompositions(more))
    table.update(attention.DECOMPOSITIONS)
    table.update(COMPOSITIONS)
    for op in list(table):
        name = str(op)
        if name in LOWERINGS or name.rpartition(".")[0] in LOWERINGS:
            del table[op]
    return table


@functools.cache
def default_compiler(directory: str | None = None) -> CpuCompiler:
    """The C compiler of the settings, over the user's cache directory."""
    folder = Path(directory or config.cache_directory()) / "kernels"
    return CpuCompiler(Cache(folder), config.CC.read() or "gcc")


_TUNED = torch.library.Library("tenon_tuned", "FRAGMENT")
_tuners = itertools.count()


@functools.cache
def library(compiler: CpuCompiler) -> dict[Any, Any]:
    """The ops that run in place of PyTorch's own."""
    overload = f"tuner{next(_tuners)}"
    _TUNED.define(f"mm.{overload}(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)")
    _TUNED.impl(f"mm.{overload}", Tuner(compiler).mm, "CPU")
    return {aten.mm: getattr(torch.ops.tenon_tuned.mm, overload)}


class CompiledGraph:
    """A graph as a callable on tensors and run-time sizes, in the order of its placeholders."""

    def __init__(self, built: BuiltGraph, plan: Plan, device: torch.device | None = None) -> None:
        self.built, self.plan, self.device = built, plan, device or HOST
        # Where the results are the plan's and no size is to be found out, a call is the plan's run.
        self.results_are_outputs = built.outputs == [Output(k) for k in range(len(built.outputs))]
        self.native = None if built.size_sources else plan.native(())

    def __call__(self, args: list[Any]) -> list[Any]:
        built = self.built
        tensors = [args[k] for k in built.tensor_inputs]
        if built.program.random is not None:
            tensors += random_state()
        sizes = _sizes(built.size_sources, args) if self.native is None else []
        args.clear()
        native = self.native or self.plan.native(tuple(sizes))
        got = native.run(tensors, self.device)
        if self.results_are_outputs:
            return got
        values = dict(zip(built.program.sizes, sizes, strict=True))
        return [
            got[o.number]
            if isinstance(o, Output)
            else evaluate(o, values)
            if isinstance(o, Expr)
            else o
            for o in built.outputs
        ]


def random_state() -> list[torch.Tensor]:
    """A seed from PyTorch's generator, and offset 0: one draw for each run of a graph."""
    return [torch.empty((), dtype=torch.int64).random_(), torch.zeros((), dtype=torch.int64)]


def _sizes(sources: Sequence[SizeSource], args: Sequence[Any]) -> list[int]:
    found: list[int] = []
    known: dict[Any, int] = {}
    for s in sources:
        if s.dim >= 0:
            value = int(args[s.argument].shape[s.dim])
        elif s.argument >= 0:
            value = int(args[s.argument])
        else:
            value = int(s.expression.xreplace(known))
        known[s.expression] = value
        found.append(value)
    return found


def compile_graph(
    module: GraphModule, inputs: Sequence[Any], compiler: CpuCompiler | None = None
) -> Callable[[list[Any]], list[Any]]:
    """A functional ATen graph as a compiled callable (boxed: it takes a list, and empties it)."""
    with unset_fake_temporarily():  # constants of the graph are real tensors
        device = _device_of(module)
        try:
            built = build(module, torch.get_num_threads())
            compiler = compiler or default_compiler()
            plan = Plan(built.program, library(compiler)).compile(compiler)
            compiled = CompiledGraph(built, plan, device)
        except NotImplementedError as error:
            return _by_reference(module, str(error))

    def run(args: list[Any]) -> list[Any]:
        return compiled(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    run.compiled = compiled  # type: ignore[attr-defined]
    return run


def _by_reference(module: GraphModule, reason: str) -> Callable[[list[Any]], list[Any]]:
    """The graph as PyTorch runs it, op by op, for what cannot be compiled."""
    log.warning("a graph of %d ops runs by reference: %s", len(module.graph.nodes), reason)
    return make_boxed_func(module.forward)


def _device_of(module: GraphModule) -> torch.device | None:
    """The tenon device that a graph's results are on, None for a graph of the host's tensors.

    Raises NotImplementedError for a graph whose results are on several devices.
    """
    (output,) = module.graph.find_nodes(op="output")
    values = [n.meta.get("val") for n in output.all_input_nodes if "effects" not in str(n.args[:1])]
    devices = {v.device for v in values if isinstance(v, torch.Tensor)}
    if len(devices) > 1 and any(d.type == "tenon" for d in devices):
        raise NotImplementedError(
            "torch.compile(backend='tenon'): a graph has results on several devices, "
            f"{', '.join(map(str, devices))}; move them outside of the compiled function"
        )
    return next((d for d in devices if d.type == "tenon"), None)


def tenon_backend(module: GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
    """The backend function that Dynamo calls: AOTAutograd around `compile_graph`."""
    return aot_autograd(
        fw_compiler=compile_graph,
        bw_compiler=compile_graph,
        inference_compiler=compile_graph,
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(module, inputs)


def explain(function: Callable[..., Any], *inputs: Any) -> str:
    """What the compiler makes of a call: kernels, what was fused, what was not and why, traffic.

    Runs the function once (and, where a result needs gradients, its backward). The function is
    compiled afresh; graphs compiled before stay as they are.
    """
    seen: list[tuple[str, Plan, BuiltGraph]] = []

    def recording(kind: str) -> Callable[..., Any]:
        def compile_and_keep(module: GraphModule, example: Sequence[Any]) -> Any:
            run = compile_graph(module, example)
            compiled: CompiledGraph | None = getattr(run, "compiled", None)
            if compiled is not None:  # else it runs by reference, as the log says
                seen.append((kind, compiled.plan, compiled.built))
            return run

        return compile_and_keep

    backend = aot_autograd(
        fw_compiler=recording("forward"),
        bw_compiler=recording("backward"),
        inference_compiler=recording("inference"),
        decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    results = torch.compile(function, backend=backend)(*inputs)
    for r in tree_leaves(results):
        if isinstance(r, torch.Tensor) and r.requires_grad:
            r.sum().backward(retain_graph=True)
    return "\n\n".join(
        f"{kind} graph {k}\n{describe(plan, built.fallbacks)}"
        for k, (kind, plan, built) in enumerate(seen)
    )


def register() -> None:
    """Makes `torch.compile(backend="tenon")` find the backend."""
    from torch._dynamo import list_backends, register_backend

    if "tenon" not in list_backends(exclude_tags=()):
        register_backend(tenon_backend, "tenon")
