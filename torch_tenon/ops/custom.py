"""Custom ops: an op of one's own, with a kernel in source for each target.

    @custom_op(
        "demo::scale(Tensor x, float factor) -> Tensor",
        kernels=[
            KernelSource(
                "host", TEXT, "scale",
                ["float32 result", "float32 x", "float64 factor", "int64 numel(x)"],
            )
        ],
    )
    def scale(x, factor):
        return torch.empty_like(x)  # what the result looks like

The same is declared in YAML (`kernel_file.py`). Calls are recorded as those of other ops, and a
kernel for the target is a step of the window's or the graph's plan. Where there is none, the op
is its decomposition, or runs on the host: by its kernel for that, by its decomposition, or by the
target's kernel on copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from torch_tenon import _C, device, log, targets
from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.handwritten import Launch
from torch_tenon.compiler.parts import same_places
from torch_tenon.ir.program import Extern, Program
from torch_tenon.ir.values import Layout, Stored, Value
from torch_tenon.ops import by_hand
from torch_tenon.ops.declarations import (
    DeclarationError,
    KernelSource,
    Scope,
    Signature,
    parse_schema,
    signature_of,
)
from torch_tenon.ops.expressions import ExpressionError, OpExpression
from torch_tenon.ops.given_values import results_of
from torch_tenon.ops.lowerings.table import BY_HAND, LOWERINGS, Build, CannotLower
from torch_tenon.targets.target import CompilerMissing, TargetError

_log = log.stage("ops")

CUSTOM_OPS: dict[str, CustomOp] = {}
"""The ops of this process, by name as counters have it."""

Gradients = Mapping[str, OpExpression]
Backward = Callable[..., Any] | Gradients | None


class CustomOp:
    """An op, its kernels, and how each way of running it calls them.

    Made in three steps, so that ops of one file may name each other, and all of them are there or
    none: `__init__` defines the op, `build` compiles, `register` gives it what runs it. `undo`
    takes the definition back.
    """

    def __init__(self, schema: str, kernels: Sequence[KernelSource]) -> None:
        self.schema, self.kernels = parse_schema(schema), tuple(kernels)
        self.scope = Scope.of(self.schema)
        self.signatures: list[Signature] = []
        for k, kernel in enumerate(kernels):
            try:
                self.signatures.append(signature_of(kernel, self.scope, self.schema.name))
            except DeclarationError as error:
                raise error.at("kernels", k) from None
        namespace, _, rest = schema.partition("::")
        self.library = torch.library.Library(namespace, "FRAGMENT")
        name = rest.partition("(")[0].strip()
        try:
            self.library.define(rest)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise DeclarationError(f"{namespace}::{name}: {first}", "func") from None
        base, _, suffix = name.partition(".")
        self.op: OpOverload = getattr(
            getattr(getattr(torch.ops, namespace), base), suffix or "default"
        )
        self.name = f"{namespace}::{name}"
        self.decomposition: Callable[..., Any] | None = None
        self.has_gradient = False

    def build(self) -> None:
        """Builds the kernels for the target in use.

        Raises TargetError where nothing compiles them, CompileError where a source does not build.
        """
        own = self.codes(device.backend(), device.target().name)
        backend = device.backend()
        for code in (s.code for s in own):
            if backend is None:
                raise TargetError(
                    f"{self.name} has a kernel for the target {device.target().name!r}, which has "
                    "no backend and so nothing that compiles it"
                )
            try:
                by_hand.compiled(code, backend)
            except CompilerMissing as error:
                _log.warning("%s: its kernel cannot be built yet: %s", self.name, error)
            except NotImplementedError as error:
                raise TargetError(f"{self.name}: {error}") from None

    def undo(self) -> None:
        """Takes the definition back."""
        self.library._destroy()

    def register(
        self,
        make_results: Callable[..., Any],
        decomposition: Callable[..., Any] | None = None,
        backward: Backward = None,
        setup_context: Callable[..., Any] | None = None,
    ) -> OpOverload:
        """Gives the op what runs it; its kernels are built."""
        self.make_results, self.decomposition = make_results, decomposition
        self.makes_memory = not self.signatures  # once a call has shown it; of a kernel's results
        own = self.codes(device.backend(), device.target().name)
        self.library.impl(self.name, self.on_host, "CPU")
        torch.library.register_fake(self.name, self._fake, lib=self.library)
        if backward is not None and not callable(backward):
            backward, setup_context = _by_expressions(self.scope, backward)
        self.has_gradient = backward is not None
        if backward is not None:
            torch.library.register_autograd(
                self.name, backward, setup_context=setup_context, lib=self.library
            )
        if own:
            self.enter()
        elif decomposition is not None:
            from torch_tenon.ops.compositions import enter_composition  # PyTorch's, all of them

            enter_composition(self.op, decomposition)
        if not own and self.signatures:
            _log.warning("%s: %s", self.name, self.way())
        CUSTOM_OPS[self.name] = self
        _C.record_op(self.op._schema.name, self.op._schema.overload_name)
        return self.op

    def enter(self) -> None:
        """Enters the op where programs look for it: they launch its kernels."""
        LOWERINGS[str(self.op)] = self.lower
        BY_HAND.add(self.name)

    # Which kernel

    def codes(self, backend: Backend | None, target: str = "") -> list[Signature]:
        """The kernels for a backend, or for the target that it belongs to."""
        if backend is not None and backend is device.backend():
            target = device.target().name
        names = {target} | ({backend.name} if backend is not None else set())
        return [s for s in self.signatures if s.code.device in names]

    def route(self) -> str:
        """How the target runs the op: `kernel`, `decomposed` or `fallback`."""
        if self.codes(device.backend(), device.target().name):
            return "kernel"
        on_host = device.backend() is None and bool(self.codes(targets.host().backend))
        return "fallback" if self.decomposition is None or on_host else "decomposed"

    def way(self) -> str:
        """The route, with what it is instead of and why, in a few words."""
        name = device.target().name
        if self.route() == "kernel":
            return f"it has a kernel for the target {name!r}"
        missing = f"it has no kernel for the target {name!r}"
        if self.route() == "decomposed":
            return f"{missing}, and is decomposed"
        if self.codes(targets.host().backend):
            return f"{missing}, and runs by the one for the host"
        return f"{missing} and none for the host, and does not run here"

    def expression(self, text: str) -> Callable[..., Any]:
        """A decomposition that is an expression of ops. Raises DeclarationError."""
        try:
            found = OpExpression(text, self.scope.names)
        except ExpressionError as error:
            raise DeclarationError(f"{self.name}: {error}", "decomposition") from None
        return lambda *given: found(self.values(given))

    # In programs

    def values(self, given: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name, with the defaults of those that are left out."""
        arguments = self.schema.arguments
        values = [*given, *(a.default_value for a in arguments[len(given) :])]
        return {a.name: v for a, v in zip(arguments, values, strict=True)}

    def lower(self, build: Build, *given: Any) -> Any:
        """A launch of the target's kernel, as a node of the program at hand."""
        program, values = build.program, self.values(given)
        metas = [m for m in build.results if m is not None]
        dtypes = {n: v.dtype for n, v in values.items() if isinstance(v, Value)}
        dtypes |= {n: m.dtype for n, m in zip(self.scope.results, metas, strict=True)}
        if not any(s.fits(dtypes) for s in self.codes(build.backend)):
            raise CannotLower(f"its kernels are not for {_listed(dtypes)}")
        written = [values[name] for name in self.written()]
        if not all(w is None or (isinstance(w, Stored) and _is_dense(w)) for w in written):
            raise CannotLower("it writes a tensor that is no memory of its own from end to end")
        arguments = [_dense(program, v) if isinstance(v, Value) else v for v in values.values()]
        outputs = [(m.dtype, Layout.contiguous(m.sizes)) for m in metas]
        results = program.call(
            self.op, arguments, {}, outputs, "kernel", launch=self.launch, writes=build.writes
        )
        return results if len(self.schema.returns) != 1 else results[0]

    def launch(self, call: Extern, backend: Backend) -> Launch | None:
        """What a plan of the backend's launches for a node; None where no kernel is for it."""
        values = self.values(call.arguments)
        values |= dict(zip(self.scope.results, call.results, strict=True))
        dtypes = {n: v.dtype for n, v in values.items() if isinstance(v, Stored)}
        for signature in self.codes(backend):
            if signature.fits(dtypes):
                sizes = {n: v.sizes if isinstance(v, Stored) else v for n, v in values.items()}
                tensors = [values[n] for n in signature.tensors]
                return signature.launch(tensors, sizes)
        return None

    # On tensors of the host: reference execution, and calls with such tensors

    def on_host(self, *given: Any) -> Any:
        """Runs the op on tensors of the host. Raises TargetError where nothing can."""
        values = self.values(given)
        made = self._make_results(values)
        fresh = [] if made is None else list(made) if isinstance(made, Sequence) else [made]
        results = dict(zip(self.scope.results, fresh, strict=True))
        tensors = {n: t for n, t in (values | results).items() if isinstance(t, torch.Tensor)}
        dtypes = {n: t.dtype for n, t in tensors.items()}
        if fresh and all(t.numel() == 0 for t in fresh):
            return made
        reachable = [targets.host().backend]
        if device.target().host_memory:
            reachable.insert(0, device.backend())
        missing: CompilerMissing | None = None
        for backend in reachable:
            for signature in self.codes(backend):
                if backend is None or not signature.fits(dtypes):
                    continue
                try:
                    by_hand.run(signature, backend, self.written(), values, results)
                    return made
                except CompilerMissing as error:
                    missing = error
        if self.decomposition is not None:
            return self.decomposition(*values.values())
        if missing is not None:
            raise missing
        backend = device.backend()
        fitting = [s for s in self.codes(backend) if s.fits(dtypes)]
        if backend is None or not fitting:
            raise TargetError(self._nothing_runs(dtypes))
        return self._on_device(backend, values, fresh)

    def _fake(self, *given: Any) -> Any:
        return self._make_results(self.values(given))

    def _make_results(self, values: Mapping[str, Any]) -> Any:
        """The results of a call. A function that gives them values is refused at the first one:
        the memory that a plan has for them holds anything."""
        if self.makes_memory:
            return self.make_results(*values.values())
        made, writer = results_of(self.make_results, list(values.values()))
        if writer is not None:
            raise DeclarationError(
                f"{self.name}: the function gives a result values ({writer}), but its kernel gets "
                "uninitialised memory. Make it with torch.empty, and let the kernel write all of "
                "it; or take a tensor that the kernel writes: `Tensor(a!) x`"
            )
        self.makes_memory = True
        return made

    def written(self) -> list[str]:
        """The arguments that the op writes."""
        written = [a for a in self.schema.arguments if a.alias_info and a.alias_info.is_write]
        return [a.name for a in written]

    def _on_device(self, backend: Backend, values: dict[str, Any], fresh: list[Any]) -> Any:
        """By the target's kernel, on copies of the host's tensors. What it writes comes back."""
        tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
        dense = [v.contiguous() for v in tensors.values()]
        written = [k for k, n in enumerate(tensors) if n in self.written()]
        facts = tuple(
            (v.dtype, tuple(v.shape)) if isinstance(v, torch.Tensor) else v for v in values.values()
        )
        shapes = tuple((t.dtype, tuple(t.shape)) for t in fresh)
        plan = by_hand.plan_of(self, backend, by_hand.Facts.of(facts), shapes)
        results = [torch.empty(t.shape, dtype=t.dtype) for t in fresh]
        inputs, outputs = ([t.data_ptr() for t in several] for several in (dense, results))
        there = torch.device("tenon", _C.current_device())
        plan.run_in_place(inputs, outputs, there, written)
        for k, original in enumerate(tensors.values()):
            if k in written and dense[k] is not original:
                original.copy_(dense[k])
        if not results:
            return None
        return results[0] if len(self.schema.returns) == 1 else tuple(results)

    def program(self, facts: Sequence[Any], shapes: Sequence[Any]) -> Program:
        """One call as a program of its own; a tensor among the `facts` of its arguments is its
        dtype and sizes, as each of the results is."""
        made = Program()
        arguments = [
            made.input(f[0], Layout.contiguous(f[1])) if isinstance(f, tuple) else f for f in facts
        ]
        outputs = [(dtype, Layout.contiguous(sizes)) for dtype, sizes in shapes]
        written = [
            x
            for a, x in zip(self.schema.arguments, arguments, strict=True)
            if a.name in self.written() and isinstance(x, Stored)
        ]
        results = made.call(
            self.op, arguments, {}, outputs, "kernel", launch=self.launch, writes=written
        )
        made.outputs += [r for r in results if r is not None]
        return made

    def _nothing_runs(self, dtypes: Mapping[str, torch.dtype]) -> str:
        there = ", ".join(
            f"{s.code.device} ({', '.join(dict.fromkeys(_short(d) for d in s.dtypes()))})"
            for s in self.signatures
        )
        return (
            f"{self.name} with {_listed(dtypes)} runs nowhere here: its kernels are for "
            f"{there or 'nothing'}, and the target is {device.target().name!r}. Add a kernel for "
            "it or for the host, or a decomposition"
        )


def custom_op(
    schema: str,
    *,
    kernels: Sequence[KernelSource] = (),
    backward: Callable[..., Any] | Mapping[str, str] | None = None,
    setup_context: Callable[..., Any] | None = None,
    decomposition: Callable[..., Any] | str | None = None,
) -> Callable[[Callable[..., Any]], OpOverload]:
    """Decorator that makes a custom op of a function that makes its results, uninitialised.

    `schema` is PyTorch's, with the namespace: "demo::scale(Tensor x, float factor) -> Tensor".
    `backward` and `setup_context` are those of `torch.library.register_autograd`; or `backward` has
    an expression of ops for each argument that has a gradient: {"x": "demo::scale(grad, factor)"}.
    `decomposition` computes the op with others, where no kernel does: a function, or an expression
    of ops. The function also serves as the op's fake kernel, so the op can be traced and compiled.
    Returns the op.

    Raises DeclarationError, a ValueError, for what does not fit together; CompileError where the
    source for the target in use does not build. A call raises TargetError where nothing runs it,
    and DeclarationError where the function gave results values.
    """

    def decorate(make_results: Callable[..., Any]) -> OpOverload:
        if not kernels and decomposition is None:
            raise DeclarationError(
                f"{schema}: without `kernels` or `decomposition` nothing runs it"
            )
        made = CustomOp(schema, kernels)
        try:
            gradients: Any = backward
            if isinstance(backward, Mapping):
                gradients = gradient_expressions(made.scope, backward)
            composed: Any = decomposition
            if isinstance(decomposition, str):
                composed = made.expression(decomposition)
            elif decomposition is not None and not callable(decomposition):
                raise DeclarationError(
                    f"{made.name}: `decomposition` is a function or an expression of ops, not "
                    f"{decomposition!r}",
                    "decomposition",
                )
            made.build()
            return made.register(make_results, composed, gradients, setup_context)
        except BaseException:
            made.undo()
            raise

    return decorate


def gradient_expressions(scope: Scope, texts: Mapping[str, str]) -> Gradients:
    """The gradients of arguments, checked. Raises DeclarationError."""
    names = [*scope.names, *scope.results, *scope.gradients]
    found = {}
    for name, text in texts.items():
        if name not in scope.tensors:
            known = ", ".join(scope.tensors)
            raise DeclarationError(f"`backward` is of {name}; the tensors are {known}", name)
        try:
            found[name] = OpExpression(text, names)
        except ExpressionError as error:
            raise DeclarationError(str(error), name) from None
    return found


def _by_expressions(
    scope: Scope, gradients: Gradients
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    used = set().union(*(e.names for e in gradients.values()))

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        outputs = output if isinstance(output, Sequence) else [output]
        values = dict(zip(scope.names, inputs, strict=True))
        values |= dict(zip(scope.results, outputs, strict=True))
        kept = {n: v for n, v in values.items() if n in used}
        ctx.tensors = [n for n, v in kept.items() if isinstance(v, torch.Tensor)]
        ctx.others = {n: v for n, v in kept.items() if not isinstance(v, torch.Tensor)}
        ctx.save_for_backward(*(kept[n] for n in ctx.tensors))

    def backward(ctx: Any, *grads: Any) -> Any:
        values = ctx.others | dict(zip(ctx.tensors, ctx.saved_tensors, strict=True))
        values |= dict(zip(scope.gradients, grads, strict=True))
        return tuple(
            gradients[n](values) if n in gradients and needed else None
            for n, needed in itertools.zip_longest(scope.names, ctx.needs_input_grad)
        )

    return backward, setup_context


def _dense(program: Program, value: Value) -> Stored:
    """`value` in memory, its elements side by side from the start of a storage."""
    stored = program.realise(value)
    if _is_dense(stored):
        return stored
    made = program.temporary(stored.dtype, Layout.contiguous(stored.sizes))
    program.fill(made, stored)
    return made


def _is_dense(stored: Stored) -> bool:
    return same_places(stored.layout, Layout.contiguous(stored.sizes))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(dtypes: Mapping[str, torch.dtype]) -> str:
    return ", ".join(f"{name}: {_short(dtype)}" for name, dtype in dtypes.items())
