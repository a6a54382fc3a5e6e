"""The executable form of a program: kernels and calls over slots of memory.

A `Plan` knows the structure. For each set of run-time sizes it makes plain data, with offsets in
the arena and all sizes as numbers, and of that bytes (`wire/`) and a plan of the C++ core, which
runs it and is kept.
"""

from __future__ import annotations

import functools
import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import torch

from torch_tenon import _C, device
from torch_tenon.compiler.asked_backend import handles_of, kernel_of
from torch_tenon.compiler.backend import Backend, KernelFile
from torch_tenon.compiler.bounded import BoundedCache
from torch_tenon.compiler.facts import (
    Number,
    call_bytes,
    call_detail,
    call_operations,
    kernel_detail,
)
from torch_tenon.compiler.handwritten import Asked, Next
from torch_tenon.compiler.host_kernels import call_of
from torch_tenon.compiler.kernel import Kernel, ops_of
from torch_tenon.compiler.memory import place
from torch_tenon.compiler.schedule import Group, Schedule, schedule
from torch_tenon.compiler.wire import plan_bytes
from torch_tenon.ir.index import Expr, Index, Symbol, evaluate, var
from torch_tenon.ir.program import Extern, Program
from torch_tenon.ir.size_words import words_of
from torch_tenon.ir.values import Buffer, Storage, Stored

log = logging.getLogger("torch_tenon.schedule")
memory_log = logging.getLogger("torch_tenon.memory")

HOST = torch.device("cpu")

# A temporary of this many bytes has a block of its own: a plan that runs then holds no more than it
# needs at each step, and what an allocation costs is little beside what its kernel does.
OWN_BYTES = 1 << 16

MOST_SIZES = 64  # for which a plan is ready at once


class PlanData(TypedDict):
    """A plan for one set of sizes: strings, numbers, lists and dicts of them, as JSON has them.

    slots       for each slot its kind and a number: the bytes of an output or of a block (a large
                temporary, which has its memory for as long as it is used), a temporary's offset in
                the arena in bytes, a constant's place among the plan's constants; then the bytes
                that steps use of an input, a temporary and what a call makes
    inputs      slots of the tensors that the caller passes, in order
    outputs     slots that the caller passes memory for, or that are allocated
    results     tensors over slots that a run returns
    steps       kernels: the number of the source, slots of the pointers, sizes, and for each check
                that may fail the recorded calls that fail with it; calls: the op, its arguments by
                name, a tensor or None for each result, the route and the op to count, and the
                recorded call that it is part of. Recorded calls are counted in their window; a
                compiled graph has none, and -1 stands there. Each step has a name (the ops that it
                came from), the slots that are allocated before it and those that are released
                after it, and for profiles its sizes and dtypes (detail, with a `?` for each of
                detail_sizes), the recorded calls that it computes, the bytes that it moves and its
                operations on numbers.

    A tensor over a slot is a dict: slot, dtype, sizes, strides and offset (in elements). Arguments
    that are dtypes, layouts and memory formats are {"torch": name}, complex numbers
    {"complex": [real, imaginary]}.
    """

    slots: list[list[Any]]
    inputs: list[int]
    outputs: list[int]
    results: list[dict[str, Any]]
    arena_bytes: int
    steps: list[dict[str, Any]]


@dataclass(eq=False)
class Step:
    """A kernel or a call; `group` is the kernel's, or the first of its sets'."""

    group: Group
    kernel: Kernel | None = None
    call: Extern | None = None

    def storages(self) -> list[Storage]:
        """What it reads and writes."""
        if self.kernel is not None:
            return self.kernel.storages
        assert self.call is not None
        return [b.storage for b in [*self.call.reads, *self.call.outputs]]


class Plan:
    """A program as kernels and calls of a backend's.

    `run(tensors, sizes)` takes the program's inputs and run-time sizes in their order and gives
    its outputs, on `device`. Raises NotImplementedError for a program that calls what is not a
    PyTorch op; running raises IndexError, as PyTorch does, when an index inside a kernel is out of
    range.
    """

    def __init__(self, program: Program, backend: Backend) -> None:
        start = time.perf_counter()
        self.program, self.backend = program, backend
        for o in program.outputs:
            storage = o.buffer.storage
            # Who runs a program by itself passes memory for each output, whatever makes it.
            if storage.kind == "temporary" or (program.standalone and storage.kind == "external"):
                storage.kind = "output"
        self.schedule: Schedule = schedule(program, backend)
        scheduled = time.perf_counter()
        self.why_on_host: dict[str, str] = {}  # by the ops of a group that has no kernel
        self.steps = _steps(program, self.schedule, backend, self.why_on_host)
        self.seconds = {"schedule": scheduled - start, "code": time.perf_counter() - scheduled}
        self.overloads = {
            s.call: _overload(s.call.target, s.call.into) for s in self.steps if s.call is not None
        }
        self.peak_bytes = 0  # the most that temporaries and outputs take, of any instance so far
        self._native = BoundedCache[tuple[int, ...], _C.Plan]("plans by size", MOST_SIZES)

    @property
    def kernels(self) -> list[Kernel]:
        """The kernels of the steps, in their order."""
        return [s.kernel for s in self.steps if s.kernel is not None]

    @property
    def sources(self) -> list[str]:
        """The source of every kernel."""
        return [k.source for k in self.kernels]

    def compile(self) -> Plan:
        """Makes the plan ready to run; kernels that were compiled before are found. Raises what
        `Backend.compile` does."""
        start = time.perf_counter()
        self.handles = handles_of(self.backend, self.kernels)
        self.files = self.backend.files(self.kernels)
        self.seconds["compile"] = time.perf_counter() - start
        return self

    def run(
        self,
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
        device: torch.device = HOST,
    ) -> list[torch.Tensor]:
        """Runs once."""
        return self.native(tuple(sizes)).run(list(tensors), device)

    def native(self, sizes: tuple[int, ...]) -> _C.Plan:
        """What runs for these sizes."""
        found = self._native.get(sizes)
        if found is None:
            constants = [s.tensor for s in self.program.storages if s.tensor is not None]
            found = native(self.instance(sizes), self.handles, constants, self.files)
            self._native.put(sizes, found)
        return found

    def kept(self) -> tuple[_C.SizedPlan, bytes]:
        """What runs for all sizes that the program is for, and the bytes of it that other processes
        read: its sizes have any value from 2 on, if it has any."""
        made = self.sized_bytes(self.files or ())
        return _C.SizedPlan(made, self.handles, owners=_owners(self.handles)), made

    def sized_bytes(self, files: Sequence[KernelFile]) -> bytes:
        """The plan for all sizes, with its constants, and with kernels in these files."""
        constants = [s.tensor for s in self.program.storages if s.tensor is not None]
        sizes = [s.hint for s in self.program.sizes]
        data = _Instance(self, sizes, sized=bool(sizes)).data()
        return plan_bytes(data, files, constants)

    def run_alone(self, steps: Sequence[Step]) -> None:
        """Runs some of the plan's kernels, each on memory of its own, of any contents; for sizes of
        any value as their examples are. Raises what a run of these kernels may."""
        instance = _Instance(self, [s.hint for s in self.program.sizes])
        storages = self.program.storages
        nbytes = [max(instance.number(s.nbytes), 1) for s in storages]
        alone = [
            {**found, "allocated": found["slots"], "released": found["slots"]}
            for step, found in zip(self.steps, instance.data()["steps"], strict=True)
            if step in steps
        ]
        data: PlanData = {
            "slots": [["block", n] for n in nbytes],
            "inputs": [],
            "outputs": [],
            "results": [],
            "arena_bytes": 0,
            "steps": alone,
        }
        native(data, self.handles, []).run_in_place([], [], HOST)

    def instance(self, sizes: Sequence[int] = ()) -> PlanData:
        """The plan for these sizes as plain data."""
        return _Instance(self, sizes).data()


def _overload(target: Any, into: bool) -> Any:
    """The one op to call; with `into`, the one that writes into memory that is there."""
    if into and isinstance(target, torch._ops.OpOverloadPacket):
        target = target.out
    if not isinstance(target, torch._ops.OpOverload):
        raise NotImplementedError(
            f"{target} inside a compiled graph: it is no single op of PyTorch"
        )
    return target


def _steps(
    program: Program, order: Schedule, backend: Backend, why_on_host: dict[str, str]
) -> list[Step]:
    home = {n: g for g in order.groups for n in g.nodes()}
    kept: set[Buffer] = {o.buffer.base for o in program.outputs}
    for g in order.groups:
        for n in g.nodes():
            for b in n.outputs:
                if b.storage.kind != "temporary" or b.previous is not None:
                    kept.add(b)
                if b.storage.current is not b:
                    kept.add(b)
                if any(home.get(r, g) is not g for r in b.readers):
                    kept.add(b)
            if isinstance(n, Extern):
                kept.update(n.reads)
    has_own_memory = backend is device.backend() and not device.target().host_memory
    kernels: list[Kernel | None] = []
    on_host: dict[Group, Extern] = {}
    pending, order.groups = order.groups[::-1], []
    while pending:
        g = pending.pop()
        order.groups.append(g)
        time.sleep(0)  # where plans are made in the background, others want the interpreter
        if g.call is not None:
            kernels.append(_by_hand(program, g.call, backend))
            if kernels[-1] is None and has_own_memory and g.call.route == "library":
                g.call.route = "fallback"  # the host runs it, on copies
            continue
        try:
            kernels.append(kernel_of(backend, g, kept))
        except NotImplementedError as error:
            if g.prologue:
                log.debug("the operands of a product are computed before it: %s", error)
                kept.update(loop.buffer for loop in g.prologue)
                pending += [order.groups.pop(), *order.apart(g)]
                continue
            if not has_own_memory:
                raise
            why_on_host[ops_of(g)] = str(error)
            log.debug("a group runs on the host: %s: %s", ops_of(g), error)
            on_host[g] = call_of(g, kept)
            kernels.append(None)
    return [
        Step(g, kernel, None if kernel is not None else on_host.get(g, g.call))
        for g, kernel in backend.batches(order, kernels)
    ]


def _by_hand(program: Program, call: Extern, backend: Backend) -> Kernel | None:
    """The kernel that somebody wrote for the target and this call, if there is one."""
    launch = call.launch(call, backend) if call.launch is not None else None
    if launch is None:
        return None
    kernel = launch.kernel(program, backend, call.origin or call.name)
    kernel.calls, kernel.operations = list(call.calls), call_operations(call)
    return kernel


class _Instance:
    """A plan for one set of sizes, on its way to plain data; with `sized` these are examples, and
    the numbers that depend on them are {"example": number, "words": its expression}."""

    def __init__(self, plan: Plan, sizes: Sequence[int], sized: bool = False) -> None:
        self.plan, self.sized = plan, sized
        self.values: dict[Symbol, int] = dict(zip(plan.program.sizes, sizes, strict=True))
        self.slot = {s: k for k, s in enumerate(plan.program.storages)}

    def number(self, e: Index) -> int:
        """An index expression in run-time sizes as a number."""
        return evaluate(e, self.values) if isinstance(e, Expr) else e

    def plain(self, e: Index) -> Any:
        """The same as plain data."""
        if not (self.sized and isinstance(e, Expr)):
            return self.number(e)
        return {"example": self.number(e), "words": words_of(e, self.plan.program.sizes)}

    def _is_known(self, s: Storage) -> bool:
        """Whether the storage is of one size."""
        return not (self.sized and isinstance(s.nbytes, Expr))

    def data(self) -> PlanData:
        program = self.plan.program
        ranges: dict[Storage, list[int]] = {}
        for k, step in enumerate(self.plan.steps):
            for s in step.storages():
                ranges.setdefault(s, [k, k])[1] = k
        nbytes = {s: self.number(s.nbytes) for s in ranges}
        temporaries = [
            s
            for s in ranges
            if s.kind == "temporary" and nbytes[s] < OWN_BYTES and self._is_known(s)
        ]
        blocks = [(nbytes[s], *ranges[s]) for s in temporaries]
        alignment = self.plan.backend.capabilities.alignment
        places, arena_bytes = place(blocks, alignment)  # type: ignore[arg-type]
        offsets = dict(zip(temporaries, places, strict=True))
        memory_log.debug(
            "arena of %d bytes for %d; at (bytes, first step, last step): %s",
            arena_bytes,
            sum(b[0] for b in blocks),
            ", ".join(f"{p} {b}" for p, b in zip(places, blocks, strict=True)),
        )
        results = {o.buffer.storage for o in program.outputs}
        allocated: list[list[int]] = [[] for _ in self.plan.steps]
        released: list[list[int]] = [[] for _ in self.plan.steps]
        for s, (first, last) in ranges.items():
            block = s.kind == "temporary" and s not in offsets
            if block or s.kind == "output":
                allocated[first].append(self.slot[s])
            if block or (s.kind in ("external", "input") and s not in results):
                released[last].append(self.slot[s])
        self._note_peak(arena_bytes if blocks else 0, ranges, nbytes, offsets)
        steps, kernels = [], 0
        for k, step in enumerate(self.plan.steps):
            if step.kernel is not None:
                found = self._kernel(step.kernel, kernels, step.group, self._after(k))
                kernels += 1
            else:
                assert step.call is not None
                found = self._call(step.call)
            steps.append({**found, "allocated": allocated[k], "released": released[k]})
        return {
            "slots": self._slots(offsets, nbytes),
            "inputs": [self.slot[v.buffer.storage] for v in program.inputs],
            "outputs": [self.slot[s] for s in program.storages if s.kind == "output"],
            "results": [self._tensor(o) for o in program.outputs],
            "arena_bytes": arena_bytes if blocks else 0,
            "steps": steps,
        }

    def _note_peak(
        self,
        arena_bytes: int,
        ranges: Mapping[Storage, Sequence[int]],
        nbytes: Mapping[Storage, int],
        placed: Mapping[Storage, Any],
    ) -> None:
        changes = [0] * (len(self.plan.steps) + 1)
        for s, (first, last) in ranges.items():
            if s.kind == "output" or (s.kind == "temporary" and s not in placed):
                changes[first] += nbytes[s]
                changes[last + 1 if s.kind == "temporary" else -1] -= nbytes[s]
        most = max(itertools.accumulate(changes), default=0)
        self.plan.peak_bytes = max(self.plan.peak_bytes, arena_bytes + most)

    def _slots(
        self,
        offsets: Mapping[Storage, int],
        nbytes: Mapping[Storage, int],
    ) -> list[list[Any]]:
        found: list[list[Any]] = []
        constants = 0
        for s in self.plan.program.storages:
            number = 0
            if s.kind == "output":
                found.append(["output", self.plain(s.nbytes)])
                continue
            if s.kind == "temporary":
                if s in nbytes and s not in offsets:
                    found.append(["block", self.plain(s.nbytes)])
                    continue
                number = offsets.get(s, -1)
            elif s.kind == "constant":
                number, constants = constants, constants + 1
            used = self.plain(s.nbytes) if s in nbytes else 0
            found.append(["unused", 0] if number < 0 else [s.kind, number, used])
        return found

    def _after(self, step: int) -> Next:
        """What comes after a step: a call is the host's."""
        if step + 1 == len(self.plan.steps):
            return Next.NOTHING
        return Next.DEVICE if self.plan.steps[step + 1].kernel is not None else Next.HOST

    def _facts(
        self,
        detail: Callable[[Number], str],
        calls: Sequence[int],
        nbytes: Index,
        operations: Index,
    ) -> dict[str, Any]:
        """What a profile has of a step."""
        sizes: list[Any] = []

        def number(e: Index) -> str:
            sizes.append(self.plain(e))
            return "?"

        return {
            "detail": detail(number),
            "detail_sizes": sizes,
            "calls": calls,
            "bytes": self.plain(nbytes),
            "operations": self.plain(operations),
        }

    def _kernel(self, kernel: Kernel, number: int, group: Group, after: Next) -> dict[str, Any]:
        def size(s: Symbol | Index | Asked) -> Any:
            if isinstance(s, Asked):
                return int(after)
            return self.plain(var(s) if isinstance(s, Symbol) else s)

        def detail(number: Number) -> str:
            if group.call is not None:
                return call_detail(group.call, number)
            return kernel_detail(kernel, group, number)

        return {
            **self._facts(detail, kernel.calls, kernel.bytes_moved, kernel.operations),
            "name": kernel.origin,
            "kernel": number,
            "slots": [self.slot[s] for s in kernel.storages],
            "sizes": [size(s) for s in kernel.sizes],
            "grid": [self.plain(n) for n in kernel.grid],
            "group": [self.plain(n) for n in kernel.group],
            "scratch": self.plain(kernel.scratch),
            "checks": kernel.checks,
        }

    def _call(self, call: Extern) -> dict[str, Any]:
        op = self.plan.overloads[call]
        names = [a.name for a in op._schema.arguments]
        arguments = {n: self._plain(x) for n, x in zip(names, call.arguments, strict=False)}
        arguments.update({n: self._plain(x) for n, x in call.keywords.items()})
        results = call.results
        if call.into:
            arguments[op._schema.arguments[-1].name] = self._plain(results[0])
            results = []
        detail = functools.partial(call_detail, call)
        return {
            **self._facts(detail, call.calls, call_bytes(call), call_operations(call)),
            "name": call.origin or call.name,
            "op": op._schema.name,
            "overload": op._schema.overload_name,
            "route": call.route,
            "counted": _op_name(call.target),
            "call": call.call_index,
            "arguments": arguments,
            "results": [None if r is None else self._tensor(r) for r in results],
        }

    def _tensor(self, value: Stored) -> dict[str, Any]:
        layout = value.layout
        return {
            "slot": self.slot[value.buffer.storage],
            "dtype": _torch_name(value.dtype),
            "sizes": [self.plain(n) for n in layout.sizes],
            "strides": [self.plain(k) for k in layout.strides],
            "offset": self.plain(layout.offset),
        }

    def _plain(self, x: Any) -> Any:
        """An argument of a call as plain data."""
        if isinstance(x, Stored):
            return self._tensor(x)
        if isinstance(x, Expr):
            return self.plain(x)
        if isinstance(x, list | tuple):
            return [self._plain(y) for y in x]
        if isinstance(x, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": _torch_name(x)}
        if isinstance(x, torch.device):
            return str(x)
        if isinstance(x, complex):
            return {"complex": [x.real, x.imag]}
        if x is None or isinstance(x, bool | int | float | str):
            return x
        raise NotImplementedError(f"a plan cannot hold {x!r}, an argument of a call")


def native(
    data: PlanData,
    handles: Sequence[int],
    constants: Sequence[torch.Tensor],
    files: Sequence[KernelFile] | None = None,
) -> _C.Plan:
    """What runs a plan with kernels of these handles, as `Backend.compile` gives them; `files` are
    where other processes find them."""
    return _C.Plan(plan_bytes(data, files or ()), handles, constants, _owners(handles))


def _owners(handles: Sequence[int]) -> list[_C.KernelOwner]:
    """What the kernels are in that are there only as long as somebody holds it."""
    found = (getattr(handle, "owner", None) for handle in handles)
    return list({id(owner): owner for owner in found if owner is not None}.values())


def _torch_name(x: Any) -> str:
    return str(x).removeprefix("torch.")


def _op_name(target: Any) -> str:
    """`aten::index.Tensor`, as counters have it."""
    if isinstance(target, torch._ops.OpOverload):
        return target.name()
    return f"{target._qualified_op_name}"
