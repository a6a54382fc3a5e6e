"""`torch_tenon.export`: a model as one file that runs without Python and PyTorch."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils._pytree import keystr, tree_leaves_with_path, tree_map_only

from torch_tenon import device as devices
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.plan import HOST
from torch_tenon.exporting.assigned import assigned_buffers
from torch_tenon.exporting.constants import fold_constants
from torch_tenon.exporting.errors import ExportError, decisions_told
from torch_tenon.exporting.graphs import prepare
from torch_tenon.exporting.held import Graph, Held
from torch_tenon.exporting.laid_out import LaidOut
from torch_tenon.exporting.linear import lay_out_products
from torch_tenon.exporting.methods import RUNTIME, TORCH, Method, build_method, takes_host_kernels
from torch_tenon.exporting.packed import PackedSequences
from torch_tenon.exporting.program_file import ProgramFile, refuse_path
from torch_tenon.exporting.small_sizes import MOST, choices, may_be, with_sizes
from torch_tenon.exporting.weights import Shared, key_of, share_state
from torch_tenon.runtime.program import Program

log = logging.getLogger("torch_tenon.program")

INSIDE, APART = "inside", "apart"
_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")


@dataclass(frozen=True)
class Exported:
    """What was written: the file, its methods, how many bytes it has of what, and which ops of
    PyTorch's it calls."""

    path: Path
    methods: tuple[str, ...]
    processors: tuple[str, ...]
    kernels: int
    code_bytes: int
    weight_bytes: int
    calls: tuple[str, ...] = ()


def export(
    model: nn.Module | ExportedProgram | Mapping[str, Any],
    args: Sequence[Any] | None = None,
    path: str | os.PathLike[str] = "model.tenon",
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    target: str | None = None,
    cpu: str | None = None,
    machine: str | None = None,
    weights: str | os.PathLike[str] = INSIDE,
    host: str = RUNTIME,
) -> Exported:
    """Writes a model to a file that runs without Python and PyTorch (docs/export.md).

    `model` is a module, called with `args` and `kwargs` as `torch.export.export` does, or what that
    gave; or several methods of one file by name, each an ExportedProgram: what they share of
    weights and buffers is there once. Buffers that the model writes are the loaded program's state.
    `dynamic_shapes` is as for `torch.export.export`. Where a size may be 1 or 0, the model is
    traced once more for that.

    `target` is "cpu" or the device's own target (the default). On cpu, kernels are compiled for the
    processors of `cpu`, comma-separated: "x86-64-v3,x86-64-v4" where nothing is said, "native" for
    this one. With `machine`, such as "aarch64-linux-gnu", Debian's cross compiler makes them.
    `weights` is "inside", "apart" for a safetensors file of the same name beside the program, or
    that file's path. `host` is what the program runs by: "runtime", or "torch" for one that may
    call PyTorch's ops, and then runs in Python with PyTorch.

    Raises OSError before anything else is done where `path` cannot be written, or that of
    `weights`; ExportError for a model that runs by PyTorch alone in part, naming the ops;
    ValueError for another `host` or `weights`, and for no method; TypeError for what is no model;
    NotImplementedError for a target without such a form; CompilerMissing and CompileError.
    """
    if host not in (RUNTIME, TORCH):
        raise ValueError(f"host={host!r} is neither {RUNTIME!r} nor {TORCH!r}")
    result = Path(path)
    apart = _apart(result, weights)
    for written in (result, apart) if apart is not None else (result,):
        refuse_path(written)
    backend, name = _backend(target)
    with warnings.catch_warnings():
        # What PyTorch's trace says of PyTorch's own code.
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)
        flat = r"(self(\.\w+)*\._flat_weights\[\d+\](, )?)+"
        warnings.filterwarnings("ignore", f"The tensor attributes? {flat} w(as|ere) assigned")
        programs = _programs(model, args, kwargs, dynamic_shapes, takes_host_kernels(backend))
        methods = _methods(model, programs, backend, host)
    shared = Shared()
    shared.add(_unique_names(methods))
    processors = [p.strip() for p in cpu.split(",")] if cpu else []
    kernels = [k for m in methods for k in m.plan.kernels]
    codes, packed = backend.pack(kernels, processors, machine)
    left = iter(packed)
    file = ProgramFile(
        f"torch-tenon {importlib.metadata.version('torch-tenon')}, PyTorch {torch.__version__}",
        name,
        shared,
        codes,
        [(m, [next(left) for _ in m.plan.kernels]) for m in methods],
        apart,
    )
    file.write(result)
    return Exported(
        result,
        tuple(programs),
        tuple(dict.fromkeys(c.processor for c in codes)),
        len(set(packed)),
        sum(len(c.data) for c in codes),
        sum(w.nbytes for w in shared.weights),
        tuple(dict.fromkeys(call for m in methods for call in m.calls)),
    )


def _backend(target: str | None) -> tuple[Backend, str]:
    """Raises NotImplementedError for a target that is not there, or makes no kernels."""
    own = devices.target()
    if target == "cpu" or (target is None and own.host_memory):
        backend = devices.backend(HOST)
        name = "cpu"
    elif target in (None, own.name):
        backend, name = devices.backend(), own.name
    else:
        raise NotImplementedError(
            f"target={target!r} is neither 'cpu' nor this process's target, {own.name!r} "
            "(TENON_TARGET says which that is)"
        )
    if backend is None:
        raise NotImplementedError(f"the target {name!r} has no backend, which makes kernels")
    return backend, name


def _programs(
    model: Any,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    by_hand: bool,
) -> dict[str, ExportedProgram]:
    is_exported = isinstance(model, Mapping | ExportedProgram)
    for word, given in (("args", args), ("kwargs", kwargs), ("dynamic_shapes", dynamic_shapes)):
        if is_exported and given is not None:
            raise TypeError(f"{word}: give them to torch.export.export, which made the program")
    if isinstance(model, Mapping):
        for name, program in model.items():
            if not isinstance(program, ExportedProgram):
                raise TypeError(
                    f"the method {name!r} is {type(program).__name__}: give "
                    "torch.export.export(...) of it"
                )
        if not model:
            raise ValueError("a program has at least one method")
        for name, program in model.items():
            _refuse_one_for_two(str(name), program)
            if hasattr(Program, str(name)):
                log.warning(
                    "program.%s is something else in Python: call program.methods[%r]", name, name
                )
        return {str(name): program for name, program in model.items()}
    if isinstance(model, ExportedProgram):
        _refuse_one_for_two("forward", model)
        return {"forward": model}
    if not isinstance(model, nn.Module):
        raise TypeError(f"a model is a module or an ExportedProgram, not {type(model).__name__}")
    if args is None:
        raise TypeError("args: a module is exported by an example of its arguments")
    if not isinstance(args, tuple | list):
        raise TypeError(f"args: a tuple of arguments is expected, not {type(args).__name__}")
    if model.training:
        log.warning("the model is exported as it trains; model.eval() makes it ready for use")
    examples, named = tree_map_only(
        torch.Tensor, _Examples(model), (tuple(args), dict(kwargs or {}))
    )
    with torch.no_grad(), PackedSequences(by_hand), assigned_buffers(model), decisions_told():
        program = torch.export.export(
            model, examples, named or None, dynamic_shapes=dynamic_shapes, strict=False
        )
    return {"forward": program}


def _methods(
    model: Any, programs: Mapping[str, ExportedProgram], backend: Backend, host: str
) -> list[Method]:
    """The methods, and behind them their forms for sizes of 1 and 0."""
    by_hand = takes_host_kernels(backend)
    graphs = {(name, ""): prepare(p, by_hand) for name, p in programs.items()}
    for name, program in programs.items():
        module = model if isinstance(model, nn.Module) else None
        graphs |= {(name, which): g for which, g in _forms(name, module, program, by_hand)}
    share_state([p for p in g.placeholders if isinstance(p, Held)] for g in graphs.values())
    laid_out = LaidOut()
    for graph in graphs.values():
        fold_constants(graph, laid_out)
    if by_hand:
        lay_out_products(list(graphs.values()), laid_out)
    methods: dict[tuple[str, str], Method] = {}
    for (name, which), graph in graphs.items():
        first = methods.get((name, ""))
        try:
            made = build_method(name, graph, backend, laid_out, host)
            methods[name, which] = made if first is None else made.as_form_of(first)
        except ExportError as reason:
            if first is None:
                raise
            _is_without(name, which, reason)
    return list(methods.values())


def _forms(
    name: str, model: nn.Module | None, program: ExportedProgram, by_hand: bool
) -> Iterator[tuple[str, Graph]]:
    """The graphs of a method for sizes of 1 and 0, where it may have these, and which sizes are.
    Without the model itself it is what the program makes of it."""
    module: nn.Module | None = model
    for left in may_be(program, 1)[MOST:]:
        _is_without(name, f"{left} = 1", f"{MOST} other sizes may be 1")
    for values in choices(program):
        if module is None:
            module = program.module()
        which = ", ".join(f"{symbol} = {value}" for symbol, value in values.items())
        try:
            with PackedSequences(by_hand), _quiet(_FAKE_TENSORS):
                traced = with_sizes(module, program, values)
            yield which, prepare(traced, by_hand)
        except Exception as reason:  # of the model's own, or of PyTorch's trace
            _is_without(name, which, reason)


@contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """While it is entered, a logger says nothing: of sizes that a model may not take."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _is_without(name: str, which: str, reason: object) -> None:
    said = (str(reason).strip() or type(reason).__name__).splitlines()[0]
    # Where no least size is named it is 0: few who leave it out ask for that.
    level = logging.INFO if which.endswith(" = 0") else logging.WARNING
    log.log(level, "%s does not take the size %s: %s (docs/export.md)", name, which, said)


class _Examples:
    """Examples as programs take them. PyTorch's trace takes two inputs for one where they are one
    tensor, and an input for a weight: the second one is another object."""

    def __init__(self, model: nn.Module) -> None:
        self.known = {id(x) for x in (*model.parameters(), *model.buffers())}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        found = x.contiguous()
        if found.is_complex() and found._is_view():
            found = found.clone()  # of one that is a view of real numbers the trace asks for these
        if id(found) in self.known:
            found = found.detach().requires_grad_(x.requires_grad)
        self.known.add(id(found))
        return found


def _refuse_one_for_two(method: str, program: ExportedProgram) -> None:
    """Raises ExportError for a program that was traced with one tensor in two places."""
    known = {
        id(x): f"the model's {k!r}" for k, x in (program.constants | program.state_dict).items()
    }
    for path, x in tree_leaves_with_path(program.example_inputs or ()):
        name = f"the example {keystr(path)}"
        if isinstance(x, torch.Tensor) and known.setdefault(id(x), name) != name:
            raise ExportError(
                f"{method}: {name} is the same tensor as {known[id(x)]}, and PyTorch's trace "
                "takes them for one input: give torch.export.export a copy"
            )


def _unique_names(methods: Sequence[Method]) -> list[list[Held]]:
    """What the methods hold; where different tensors have one name, the later ones get others."""
    known: dict[str, Any] = {}
    for method in methods:
        for held in method.held:
            memory = key_of(held.tensor)
            while known.setdefault(held.name, memory) != memory:
                held.name = f"{method.name}.{held.name}"
    return [m.held for m in methods]


def _apart(path: Path, weights: str | os.PathLike[str]) -> Path | None:
    if weights == INSIDE:
        return None
    found = path.with_suffix(".safetensors") if weights == APART else Path(cast(Any, weights))
    if found.resolve() == path.resolve():
        raise ValueError(f"{path} is the file of the weights too: give the program another name")
    if found.suffix != ".safetensors" or found.parent.resolve() != path.parent.resolve():
        raise ValueError(
            f"weights={str(weights)!r}: it is {INSIDE!r}, {APART!r}, or a .safetensors file in the "
            "folder of the program"
        )
    return found
