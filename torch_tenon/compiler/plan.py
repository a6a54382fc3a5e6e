"""The executable form of a program: kernels and calls over slots of memory.

A `Plan` knows the structure; for each set of run-time sizes it makes an `Instance` with offsets in
the arena and tensors for the calls, and keeps it. Running a plan from Python costs one native call
for each stretch of kernels between two calls on whole tensors.
"""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from torch_tenon.compiler.codegen.cpu import CHECKS, Kernel, generate
from torch_tenon.compiler.cpu_compiler import CpuCompiler
from torch_tenon.compiler.memory import place
from torch_tenon.compiler.schedule import Schedule, schedule
from torch_tenon.ir.index import Expr, Index, Symbol, evaluate
from torch_tenon.ir.program import Extern, Program
from torch_tenon.ir.values import Buffer, Layout, Storage, Stored

log = logging.getLogger("torch_tenon.schedule")

LAUNCH = (Path(__file__).parent / "codegen" / "launch.c").read_text()
Allocate = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]


def allocate_cpu(sizes: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory on the host."""
    return torch.empty_strided(sizes, strides, dtype=dtype)


@dataclass
class Step:
    """A kernel or a call."""

    kernel: Kernel | None = None
    call: Extern | None = None


class Plan:
    """A compiled program.

    `run(tensors, sizes)` takes the program's inputs and run-time sizes in their order and gives
    its outputs. `library` maps ops to what to call in their place. Raises IndexError, as
    PyTorch does, when an index inside a kernel is out of range.
    """

    def __init__(
        self,
        program: Program,
        allocate: Allocate = allocate_cpu,
        library: Mapping[Any, Callable[..., Any]] | None = None,
    ) -> None:
        start = time.perf_counter()
        self.program, self.allocate = program, allocate
        self.library = library or {}
        for o in program.outputs:
            if o.buffer.storage.kind == "temporary":
                o.buffer.storage.kind = "output"
        self.schedule: Schedule = schedule(program)
        scheduled = time.perf_counter()
        self.steps = _steps(program, self.schedule)
        self.seconds = {"schedule": scheduled - start, "code": time.perf_counter() - scheduled}
        self._instances: dict[tuple[int, ...], Instance] = {}

    @property
    def sources(self) -> list[str]:
        """The source of every kernel, and of the launcher."""
        return [*(s.kernel.source for s in self.steps if s.kernel is not None), LAUNCH]

    def compile(self, compiler: CpuCompiler) -> Plan:
        """Makes the plan ready to run; kernels that were compiled before are found."""
        start = time.perf_counter()
        addresses = iter(compiler.functions(self.sources))
        self.addresses = [next(addresses) if s.kernel is not None else 0 for s in self.steps]
        numbers = [ctypes.c_void_p, ctypes.c_int64]
        self.launch = ctypes.CFUNCTYPE(None, *numbers, *[ctypes.c_void_p] * 3)(next(addresses))
        self.seconds["compile"] = time.perf_counter() - start
        return self

    def run(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        """Runs once."""
        key = tuple(sizes)
        found = self._instances.get(key)
        if found is None:
            found = self._instances[key] = Instance(self, key)
        return found.run(tensors)

    @property
    def arena_bytes(self) -> int:
        """The largest arena of any instance so far."""
        return max((i.arena_bytes for i in self._instances.values()), default=0)


def _steps(program: Program, order: Schedule) -> list[Step]:
    home = {n: g for g in order.groups for n in g.nodes()}
    kept: set[Buffer] = {o.buffer for o in program.outputs}
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
    steps = []
    for g in order.groups:
        if g.call is not None:
            steps.append(Step(call=g.call))
        else:
            steps.append(Step(kernel=generate(g, kept)))
    return steps


@dataclass
class _Arena:
    """One arena with the tensors that calls see in it."""

    memory: torch.Tensor
    slots: Any
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)


class Instance:
    """A plan for one set of sizes."""

    def __init__(self, plan: Plan, sizes: tuple[int, ...]) -> None:
        self.plan = plan
        program = plan.program
        self.values: dict[Symbol, int] = dict(zip(program.sizes, sizes, strict=True))
        self.sizes = (ctypes.c_int64 * max(len(sizes), 1))(*sizes)
        self.slot = {s: k for k, s in enumerate(program.storages)}
        self._place()
        self.outputs = [self._layout(o.layout) for o in program.outputs]
        self._output_tensors()
        self.stretches = self._stretches()
        self.idle: list[_Arena] = []
        self.layouts: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        self.input_slots = [self.slot[s.buffer.storage] for s in program.inputs]

    def number(self, e: Index) -> int:
        """An index expression in run-time sizes as a number."""
        return evaluate(e, self.values) if isinstance(e, Expr) else e

    def _layout(self, layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        return (
            tuple(self.number(n) for n in layout.sizes),
            tuple(self.number(k) for k in layout.strides),
            self.number(layout.offset),
        )

    def _place(self) -> None:
        ranges: dict[Storage, list[int]] = {}
        for k, step in enumerate(self.plan.steps):
            if step.kernel is not None:
                used = step.kernel.storages
            else:
                assert step.call is not None
                used = [b.storage for b in [*step.call.reads, *step.call.outputs]]
            for s in used:
                ranges.setdefault(s, [k, k])[1] = k
        temporaries = [s for s in ranges if s.kind == "temporary"]
        blocks = [(self.number(s.nbytes), *ranges[s]) for s in temporaries]
        offsets, self.arena_bytes = place(blocks)  # type: ignore[arg-type]
        self.offsets = {self.slot[s]: o for s, o in zip(temporaries, offsets, strict=True)}
        self.last_use = {self.slot[s]: r[1] for s, r in ranges.items() if s.kind == "external"}

    def _output_tensors(self) -> None:
        """Which outputs are fresh memory, and with which sizes and strides to allocate it."""
        self.fresh: list[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]] = []
        made: set[Storage] = set()
        for o, (sizes, strides, offset) in zip(
            self.plan.program.outputs, self.outputs, strict=True
        ):
            storage = o.buffer.storage
            if storage.kind != "output" or storage in made:
                continue
            made.add(storage)
            span = self.number(storage.nbytes) // o.dtype.itemsize
            count = 1
            for n in sizes:
                count *= n
            if count == span and offset == 0:
                self.fresh.append((self.slot[storage], sizes, strides, o.dtype))
            else:
                self.fresh.append((self.slot[storage], (span,), (1,), o.dtype))

    def _stretches(self) -> list[Any]:
        """Steps for the launcher: arrays of numbers for runs of kernels, calls between them."""
        found: list[Any] = []
        numbers: list[int] = []
        count = 0
        where = {s: k for k, s in enumerate(self.plan.program.sizes)}

        def flush() -> None:
            nonlocal numbers, count
            if count:
                found.append(((ctypes.c_int64 * len(numbers))(*numbers), count))
            numbers, count = [], 0

        for step, address in zip(self.plan.steps, self.plan.addresses, strict=True):
            if step.kernel is None:
                flush()
                found.append(step.call)
                continue
            k = step.kernel
            numbers += [address, len(k.storages), len(k.sizes)]
            numbers += [self.slot[s] for s in k.storages]
            numbers += [where[s] for s in k.sizes]
            count += 1
        flush()
        return found

    def _arena(self) -> _Arena:
        memory = torch.empty(max(self.arena_bytes, 1) + 64, dtype=torch.uint8)
        slots = (ctypes.c_void_p * max(len(self.slot), 1))()
        base = -(-memory.data_ptr() // 64) * 64
        memory = memory[base - memory.data_ptr() :]
        for k, offset in self.offsets.items():
            slots[k] = base + offset
        for s, k in self.slot.items():
            if s.tensor is not None:
                slots[k] = s.tensor.data_ptr()
        return _Arena(memory, slots)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs once; an arena is taken for the time of the call."""
        try:
            arena = self.idle.pop()
        except IndexError:
            arena = self._arena()
        slots = arena.slots
        at: dict[int, torch.Tensor] = {}
        for k, t in zip(self.input_slots, tensors, strict=True):
            slots[k] = t.data_ptr()
            at[k] = t
        allocate = self.plan.allocate
        for k, sizes, strides, dtype in self.fresh:
            t = at[k] = allocate(sizes, strides, dtype)
            slots[k] = t.data_ptr()
        status = (ctypes.c_int64 * 4)()
        launch = self.plan.launch
        for stretch in self.stretches:
            if isinstance(stretch, tuple):
                launch(stretch[0], stretch[1], slots, self.sizes, status)
                if status[0]:
                    raise check_error(status[0], status[1], status[2])
            else:
                self._call(stretch, arena, at)
        results = []
        for o, (sizes, strides, offset) in zip(
            self.plan.program.outputs, self.outputs, strict=True
        ):
            results.append(self._tensor(o, sizes, strides, offset, arena, at))
        self.idle.append(arena)
        return results

    def _tensor(
        self,
        value: Stored,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
        arena: _Arena,
        at: dict[int, torch.Tensor],
    ) -> torch.Tensor:
        k = self.slot[value.buffer.storage]
        base = at.get(k)
        if base is None:
            constant = value.buffer.storage.tensor
            if constant is None:
                found = arena.tensors.get(id(value))
                if found is None:
                    start = self.offsets[k] // value.dtype.itemsize
                    length = arena.memory.numel() // 8 * 8
                    typed = arena.memory[:length].view(value.dtype)
                    found = typed.as_strided(
                        sizes, strides, typed.storage_offset() + start + offset
                    )
                    arena.tensors[id(value)] = found
                return found
            base = constant
        if (
            base.dtype is value.dtype
            and offset == 0
            and base.shape == sizes
            and base.stride() == strides
        ):
            return base
        if base.dtype is not value.dtype:
            base = base.view(value.dtype)
        return base.detach().as_strided(sizes, strides, base.storage_offset() + offset)

    def _argument(self, x: Any, arena: _Arena, at: dict[int, torch.Tensor]) -> Any:
        if isinstance(x, Stored):
            found = arena.tensors.get(id(x))
            if found is None:
                layout = self.layouts.get(id(x))
                if layout is None:
                    layout = self.layouts[id(x)] = self._layout(x.layout)
                found = self._tensor(x, *layout, arena, at)
            return found
        if isinstance(x, Expr):
            return self.number(x)
        if isinstance(x, list | tuple):
            return type(x)(self._argument(y, arena, at) for y in x)
        return x

    def _call(self, node: Extern, arena: _Arena, at: dict[int, torch.Tensor]) -> None:
        arguments = [self._argument(x, arena, at) for x in node.arguments]
        keywords = {k: self._argument(x, arena, at) for k, x in node.keywords.items()}
        target = self.plan.library.get(node.target, node.target)
        with torch.no_grad():
            if node.into:
                out = node.results[0]
                assert out is not None
                target(*arguments, **keywords, out=self._argument(out, arena, at))
                return
            got = target(*arguments, **keywords)
        results = list(got) if isinstance(got, list | tuple) else [got]
        for want, t in zip(node.results, results, strict=False):
            if want is None:
                continue
            layout = self.layouts.get(id(want))
            if layout is None:
                layout = self.layouts[id(want)] = self._layout(want.layout)
            sizes, strides, _ = layout
            k = self.slot[want.buffer.storage]
            if t.stride() != strides or t.is_conj() or t.is_neg() or _aliases(t, arguments):
                fresh = torch.empty_strided(sizes, strides, dtype=want.dtype)
                t = fresh.copy_(t)
            at[k] = t
            arena.slots[k] = t.data_ptr()


def _aliases(t: torch.Tensor, arguments: Sequence[Any]) -> bool:
    pointer = t.untyped_storage().data_ptr()
    for x in arguments:
        if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() == pointer:
            return True
        if isinstance(x, list | tuple) and _aliases(t, x):
            return True
    return False


def check_error(check: int, value: int, size: int) -> Exception:
    """The exception that PyTorch raises where a kernel's check failed."""
    if check == CHECKS["embedding"]:
        return IndexError("index out of range in self")
    if check == CHECKS["gather"]:
        return RuntimeError(f"index {value} is out of bounds for dimension 0 with size {size}")
    if check == CHECKS["division"]:
        return RuntimeError("ZeroDivisionError")
    # A negative index was counted from the end before it was checked.
    shown = value - size if value < 0 else value
    return IndexError(f"index {shown} is out of bounds for dimension 0 with size {size}")
