"""Eager code: windows of recorded calls become programs, and plans in the background.

The core hands over a window as (number, calls, slots). A slot is a storage: (bytes, made in the
window, outlives it, written). A call is (op, number of the op with these layouts, arguments,
results); an argument is one of

  ("constant", value)
  ("tensor", slot, dtype, sizes, strides, offset in elements)
  ("number", place among the window's run-time numbers, dtype, Python number?, real?)
  ("list", arguments)

and a result ("argument", place), a tensor, ("list", results) or None.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.frontends import foreach
from torch_tenon.frontends.composition import Composition, as_called, meta_tensor, static
from torch_tenon.ir.index import product, unflatten, var
from torch_tenon.ir.program import Program
from torch_tenon.ir.scalar import Trace, tracing
from torch_tenon.ir.values import (
    Buffer,
    Layout,
    Lazy,
    Storage,
    Stored,
    Value,
    dense_layout,
    loop_symbol,
    name_origin,
    reindex,
    weigh,
)
from torch_tenon.ops import variants
from torch_tenon.ops.compositions import composition_of
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.table import (
    LOWERINGS,
    PARTIAL,
    WHOLE,
    Build,
    CannotLower,
    TensorMeta,
    broadcast_to,
    cast,
    find,
)

log = logging.getLogger("torch_tenon.program")


@dataclass
class Slot:
    """A storage while the program is built.

    Its newest contents are `value`, a tensor laid out by `layout` from the storage's start, or,
    where that is None, what memory holds: `base`.
    """

    number: int
    nbytes: int
    fresh: bool
    alive: bool
    written: bool
    base: Buffer | None = None
    value: Value | None = None
    layout: Layout | None = None
    changed: int = -1  # the call that made `value`


@dataclass
class BuiltWindow:
    """A program, and which slots and numbers its inputs and outputs are."""

    program: Program
    inputs: list[int]  # a slot, or -1 - the place of a number
    outputs: list[int]
    fallbacks: dict[str, str] = field(default_factory=dict)


def build(description: tuple[Any, ...], threads: int = 2) -> BuiltWindow:
    """The program of a window. Raises CannotLower for one that only reference execution runs."""
    load_all()
    return _Builder(description, threads).build()


class _Builder:
    def __init__(self, description: tuple[Any, ...], threads: int) -> None:
        _, self.calls, slots = description
        self.threads = threads
        self.program = Program()
        self.slots = [Slot(k, *facts) for k, facts in enumerate(slots)]
        self.inputs: list[int] = []
        self.numbers: dict[int, Value] = {}
        self.fallbacks: dict[str, str] = {}
        self.outputs: dict[Storage, int] = {}  # memory that is a slot's own
        self.readers: dict[Storage, list[Slot]] = {}  # slots whose value may read it
        self.users = _users(description)

    def build(self) -> BuiltWindow:
        for k, (name, _, arguments, results) in enumerate(self.calls):
            time.sleep(0)  # the program that runs meanwhile wants the interpreter
            self.program.call_index = k
            self._call(k, name, arguments, results)
        self.program.call_index = -1
        dirty = [s for s in self.slots if s.value is not None and s.alive and s.nbytes]
        for s in sorted(dirty, key=lambda s: s.changed):
            self._flush(s)
        for s in self.slots:
            if s.fresh and s.alive and s.base is not None:
                storage = s.base.storage
                storage.kind = "output"
                assert storage.current is not None
                layout = Layout((s.nbytes // storage.current.dtype.itemsize,), (1,))
                self.program.outputs.append(Stored(storage.current, layout))
                self.outputs[storage] = s.number
        self.program.promised = True
        outputs = [self.outputs[s] for s in self.program.storages if s.kind == "output"]
        return BuiltWindow(self.program, self.inputs, outputs, self.fallbacks)

    # Calls

    def _call(self, k: int, name: str, arguments: list[Any], results: list[Any]) -> None:
        op = variants.overload(name)
        if name in _UNSAID:
            self._moving_statistics(k, name, arguments, results)
            return
        if name == "aten::copy_":
            source = self._argument(arguments[1])
            self._write(k, arguments[0], source)
            return
        schema = op._schema.arguments
        written = [i for i, a in enumerate(schema) if variants.is_written(a)]
        outs = [i for i in written if variants.is_out(schema[i])]
        if written and not outs and (calls := foreach.one_by_one(name, arguments, written)):
            for one in calls:
                self._call(k, name, one, results)
            return
        functional = variants.functional_of(op)
        if functional is None:
            raise CannotLower(f"{name} has no functional variant")
        if name in _FLAT_OUT and not _is_contiguous(arguments[-1]):
            raise CannotLower(f"{name} takes what it writes for contiguous")
        self.program.origin = name.removeprefix("aten::").partition(".")[0]
        given = {
            a.name: self._argument(x)
            for i, (a, x) in enumerate(zip(schema, arguments, strict=True))
            if i not in outs
        }
        metas = self._metas(arguments, results, outs + [i for i in written if i not in outs])
        if metas and all(m is not None and product(m.sizes) == 0 for m in metas):
            return  # nothing is to be computed, and decompositions stumble over it
        if written == [0] and str(functional).rpartition(".")[0] in PARTIAL:
            slot = self.slots[arguments[0][1]]
            if slot.value is None and slot.base is not None:
                self._keep_old(slot)
                self.program.taken = slot.base.storage
        values = self._lower(functional, given, metas, own=not written)
        self.program.taken = None
        targets = [arguments[i] for i in outs + [i for i in written if i not in outs]]
        # A call gives the tensors of a list among its results one by one.
        left = iter([v for x in values for v in (x if isinstance(x, list | tuple) else [x])])

        def value_of(t: Any) -> Any:
            return [next(left) for _ in t[1]] if t is not None and t[0] == "list" else next(left)

        for r in results:
            if r is None or r[0] != "argument":
                self._take(k, r, value_of(r))
        for target in targets:
            self._write(k, target, value_of(target))

    def _moving_statistics(
        self, k: int, name: str, arguments: list[Any], results: list[Any]
    ) -> None:
        """Batch norm, whose older schema does not say that it writes the running statistics."""
        op = _UNSAID[name]
        self.program.origin = "native_batch_norm"
        statistics = [x for x in arguments[3:5] if x[0] == "tensor"]
        if not statistics:
            op = torch.ops.aten._native_batch_norm_legit.no_stats
            arguments = arguments[:3] + arguments[5:]
        given = {
            a.name: self._argument(x) for a, x in zip(op._schema.arguments, arguments, strict=True)
        }
        metas = self._metas(statistics, results, list(range(len(statistics))))
        values = self._lower(op, given, metas)
        for r, v in zip(results, values, strict=False):
            self._take(k, r, v)
        for target, v in zip(statistics, values[len(results) :], strict=True):
            self._write(k, target, v)

    def _metas(
        self, arguments: list[Any], results: list[Any], written: list[int]
    ) -> list[TensorMeta | None]:
        found: list[TensorMeta | None] = []
        for r in results:
            if r is None:
                found.append(None)
            elif r[0] == "tensor":
                found.append(TensorMeta(r[2], r[3], r[4]))
            elif r[0] == "list":
                found += [None if e is None else TensorMeta(e[2], e[3], e[4]) for e in r[1]]
        for i in written:
            x = arguments[i]
            for t in x[1] if x[0] == "list" else [x]:
                found.append(TensorMeta(t[2], t[3], t[4]) if t[0] == "tensor" else None)
        return found

    def _lower(
        self, op: Any, given: dict[str, Any], metas: list[TensorMeta | None], own: bool = True
    ) -> list[Any]:
        """The results of a functional op, one for each that its schema has."""
        positional, keywords = as_called(op, given)
        result = self.lowered(op, positional, keywords, metas, own)
        name_origin(result, self.program.origin, self.program.call_index)
        return list(result) if len(op._schema.returns) != 1 else [result]

    def lowered(
        self,
        op: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        metas: list[TensorMeta | None],
        own: bool = True,
    ) -> Any:
        """An op's result: by its lowering, by the ops that it is composed of, or by a call.

        `metas` are its results', or, if not `own`, those of the tensors that take them.
        """
        function = find(op)
        build_ = Build(self.program, metas, self.threads)
        try:
            if any(v.dtype.is_complex for v in _values([positional, list(keywords.values())])):
                raise CannotLower("complex numbers")
            each = foreach.lowering_of(op) if function is None else None
            if each is not None:
                return self._each(each, positional, keywords, metas)
            if function is None:
                composed = composition_of(op)
                if composed is None:
                    raise CannotLower("no lowering")
                return Composition(self).run(composed, positional, keywords)
            plain = {k: v for k, v in keywords.items() if k not in _OPTIONS}
            return function(build_, *positional, **plain)
        except CannotLower as reason:
            if not own and _dtypes(op, positional, keywords) != [m.dtype for m in metas if m]:
                # What an op computes in depends on what it writes, and it may convert.
                raise CannotLower(f"{op} writes a tensor of another dtype") from None
            self.fallbacks[op.name()] = str(reason)
            log.debug("%s is a call: %s", op, reason)
            results = build_.call(op, positional, keywords, "fallback")
            returns = op._schema.returns
            single = len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)
            return results[0] if single else results

    def _each(
        self,
        function: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        metas: list[TensorMeta | None],
    ) -> list[Any]:
        found = []
        for k, meta in enumerate(metas):
            row = [x[k] if isinstance(x, list) else x for x in positional]
            named = {n: x[k] if isinstance(x, list) else x for n, x in keywords.items()}
            if function in (LOWERINGS["aten.addcmul"], LOWERINGS["aten.addcdiv"]):
                named |= dict(zip(("value",), row[3:], strict=False))
                row = row[:3]
            found.append(function(Build(self.program, [meta], self.threads), *row, **named))
        return found

    def _argument(self, x: Any) -> Any:
        kind = x[0]
        if kind == "tensor":
            return self._read(x)
        if kind == "list":
            return [self._argument(y) for y in x[1]]
        if kind == "number":
            return self._number(*x[1:])
        value = x[1]
        return constant((), value.item(), value.dtype) if isinstance(value, torch.Tensor) else value

    def _number(self, place: int, dtype: torch.dtype, wrapped: bool, real: bool) -> Value:
        found = self.numbers.get(place)
        if found is None:
            held = torch.float64 if real else torch.int64
            stored = self.program.input(held, Layout((), ()))
            self.inputs.append(-1 - place)
            value = cast(stored, dtype)
            found = Lazy((), dtype, value.load, (value,))
            found.is_number = wrapped
            self.numbers[place] = found
        return found

    # Memory

    def _read(self, t: Sequence[Any]) -> Value:
        _, number, dtype, sizes, strides, offset = t
        slot = self.slots[number]
        layout = Layout(tuple(sizes), tuple(strides), offset)
        if product(layout.sizes) == 0:
            return constant(layout.sizes, 0, dtype)
        value = slot.value
        if value is not None and value.dtype is dtype:
            assert slot.layout is not None
            if _same_places(layout, slot.layout):
                return value
            seen = _view(value, slot.layout, layout)
            if seen is not None:
                return seen
        return Stored(self._memory(slot, dtype), layout)

    def _memory(self, slot: Slot, dtype: torch.dtype) -> Buffer:
        """The slot's newest contents in memory, as elements of `dtype`."""
        if slot.value is not None:
            self._flush(slot)
        if slot.base is None:
            count = slot.nbytes // dtype.itemsize
            layout = Layout((count,), (1,))
            if slot.fresh:
                # Nothing was written yet: what is read is as undefined as it is anywhere.
                slot.base = self.program.temporary(dtype, layout).buffer
                self.outputs[slot.base.storage] = slot.number
            else:
                slot.base = self.program.input(dtype, layout).buffer
                self.inputs.append(slot.number)
        newest = slot.base.storage.current
        assert newest is not None
        if newest.dtype is not dtype:
            raise CannotLower(f"a storage is seen as {newest.dtype} and as {dtype}")
        return newest

    def _flush(self, slot: Slot) -> None:
        """Gives the slot's newest contents memory: its own."""
        value, layout = slot.value, slot.layout
        assert value is not None and layout is not None
        slot.value = None
        if slot.fresh and slot.base is None:
            stored = value.realised if isinstance(value, Lazy) else value
            if isinstance(stored, Stored) and self._may_be(slot, stored, layout):
                slot.base = stored.buffer
                self.outputs[stored.buffer.storage] = slot.number
                return
            made = self.program.temporary(value.dtype, layout)
            slot.base = made.buffer
            # A copy of it later on has to be one: it cannot take this memory for its own.
            self.outputs[made.buffer.storage] = slot.number
            self.program._fill(made, value)
            self._lies_in(value, made)
            return
        target = Stored(self._memory(slot, value.dtype), layout)
        self._keep_old(slot, value)
        new = self.program.write(target, value)
        self._lies_in(value, new)
        slot.base = new.buffer

    def _lies_in(self, value: Value, memory: Stored) -> None:
        """From now on `value` is read from memory that is some slot's own."""
        if isinstance(value, Lazy) and value.realised is None:
            value.realised = memory
            # Values made of it before do not know that they read this memory.
            waiting = [s for s in self.slots if isinstance(s.value, Lazy)]
            self.readers.setdefault(memory.buffer.storage, []).extend(waiting)

    def _may_be(self, slot: Slot, stored: Stored, layout: Layout) -> bool:
        """Whether memory that a value has already can be the slot's own."""
        storage = stored.buffer.storage
        return (
            storage.kind in ("temporary", "external")
            and storage not in self.outputs
            and stored.buffer is storage.current
            and _same_places(stored.layout, layout)
            and storage.nbytes == slot.nbytes
        )

    def _keep_old(self, slot: Slot, writing: Value | None = None) -> None:
        """Computes what still has to read the contents that are about to be overwritten."""
        assert slot.base is not None
        storage = slot.base.storage
        for other in self.readers.pop(storage, ()):
            v = other.value
            if isinstance(v, Stored) and v.buffer.storage is storage and other is not slot:
                # A view of it: what is computed of that later may read the new contents as well.
                other.value = self.program.copy(v, v.layout.strides)
            elif (
                isinstance(v, Lazy)
                and v is not writing
                and v.realised is None
                and _loads_from(v, storage)
            ):
                self.program.realise(v)

    def _take(self, k: int, t: Any, value: Any) -> None:
        """A fresh result."""
        if t is None:
            return
        if t[0] == "list":
            for one, v in zip(t[1], value, strict=True):
                self._take(k, one, v)
            return
        _, number, dtype, sizes, strides, _ = t
        slot = self.slots[number]
        if slot.nbytes == 0:
            return
        if value.sizes != tuple(sizes):
            value = broadcast_to(value, tuple(sizes))
        self._set(k, slot, cast(value, dtype), Layout(tuple(sizes), tuple(strides)))

    def _set(self, k: int, slot: Slot, value: Value, layout: Layout) -> None:
        slot.value, slot.layout, slot.changed = value, layout, k
        if weigh(value, self.users.get((k, slot.number), 0)):
            self.program.realise(value, layout.strides)
        else:
            for b in value.reads:
                self.readers.setdefault(b.storage, []).append(slot)

    def _write(self, k: int, target: Any, value: Any) -> None:
        """A write in place, through whatever view `target` is."""
        if target[0] == "list":
            for one, v in zip(target[1], value, strict=True):
                self._write(k, one, v)
            return
        if target[0] != "tensor" or value is None:
            return
        _, number, dtype, sizes, strides, offset = target
        slot = self.slots[number]
        if product(tuple(sizes)) == 0:
            return
        if not isinstance(value, Value):
            value = constant((), value, dtype)
        layout = Layout(tuple(sizes), tuple(strides), offset)
        if slot.value is None and isinstance(value, Stored) and slot.base is not None:
            held = slot.base.storage.current
            if value.buffer is held and _same_places(value.layout, layout):
                slot.base = held  # it was changed where it lies
                return
        source = broadcast_to(cast(value, dtype, rounding=True), layout.sizes)
        if (
            offset == 0
            and product(layout.sizes) * dtype.itemsize == slot.nbytes
            and _is_dense(layout)
        ):
            # All of it: what was there before is nobody's any more.
            self._set(k, slot, source, layout)
            return
        buffer = self._memory(slot, dtype)
        self._keep_old(slot, source)
        slot.base = self.program.write(Stored(buffer, layout), source).buffer


# Where a result goes, which its metadata says.
_OPTIONS = ("device", "layout", "pin_memory", "memory_format", "non_blocking")

# Ops that write more than their schema says, and those that return it instead.
_UNSAID = {"aten::native_batch_norm": torch.ops.aten._native_batch_norm_legit_functional.default}

# Ops whose kernels on the host write the memory of `out` in order, whatever its strides. A plan
# that knew better would not do what the reference does.
_FLAT_OUT = ("aten::avg_pool3d.out", "aten::gelu.out", "aten::narrow_copy.out")


@functools.cache
def route_of(name: str) -> str:
    """How windows run an op (`aten::add_.Tensor`): `lowered`, `library` or `fallback`."""
    load_all()
    try:
        op = variants.functional_of(variants.overload(name))
    except AttributeError:  # its library was unloaded since
        return "fallback"
    if name == "aten::copy_" or name in _UNSAID:
        return "lowered"
    if op is None:
        return "fallback"
    if find(op) is not None:
        return "library" if str(op) in WHOLE else "lowered"
    composed = foreach.lowering_of(op) is not None or composition_of(op) is not None
    return "lowered" if composed else "fallback"


def _dtypes(op: Any, positional: list[Any], keywords: dict[str, Any]) -> list[torch.dtype]:
    """The dtypes of an op's results; none where PyTorch cannot tell without running it."""

    def stand_in(x: Any) -> Any:
        is_number = isinstance(x, Value) and x.is_number
        return 1.0 if is_number else meta_tensor(x)  # run-time numbers are real

    args, named = tree_map(stand_in, (positional, keywords))
    try:
        result = op(*args, **named)
    except (NotImplementedError, RuntimeError):
        return []
    return [t.dtype for t in tree_leaves(result) if isinstance(t, torch.Tensor)]


def _is_contiguous(t: Sequence[Any]) -> bool:
    sizes, strides = tuple(t[3]), tuple(t[4])
    return _same_places(Layout(sizes, strides), dense_layout(sizes))


def _is_dense(layout: Layout) -> bool:
    return _same_places(layout, dense_layout(layout.sizes, layout.strides))


def _same_places(a: Layout, b: Layout) -> bool:
    return (
        a.offset == b.offset
        and a.sizes == b.sizes
        and all(n == 1 or x == y for n, x, y in zip(a.sizes, a.strides, b.strides, strict=True))
    )


def _users(description: tuple[Any, ...]) -> dict[tuple[int, int], int]:
    """How many calls read what call k left in a slot, and whether it stays: by (k, slot)."""
    _, calls, slots = description
    found: dict[tuple[int, int], int] = {}
    writer: dict[int, int] = {}

    def tensors(x: Any) -> list[int]:
        if x is None or x[0] in ("constant", "number", "argument"):
            return []
        return [x[1]] if x[0] == "tensor" else [n for y in x[1] for n in tensors(y)]

    for k, (name, _, arguments, results) in enumerate(calls):
        schema = variants.overload(name)._schema.arguments
        for a, x in zip(schema, arguments, strict=True):
            for n in tensors(x) if not variants.is_out(a) else ():
                if n in writer:
                    found[writer[n], n] = found.get((writer[n], n), 0) + 1
        written = [x for a, x in zip(schema, arguments, strict=True) if variants.is_written(a)]
        written += arguments[3:5] if name in _UNSAID else []
        for x in [*results, *written]:
            for n in tensors(x):
                writer[n] = k
    for n, k in writer.items():
        if slots[n][2]:  # it outlives the window
            found[k, n] = found.get((k, n), 0) + 1
    return found


def _view(value: Value, held: Layout, wanted: Layout) -> Value | None:
    """`value`, laid out by `held`, as a tensor of layout `wanted` over the same storage; None
    where the place of an element is no simple expression of its position."""
    order = sorted(range(len(held.sizes)), key=lambda d: (-held.strides[d], d))
    order = [d for d in order if held.sizes[d] != 1]
    sizes = [held.sizes[d] for d in order]

    def position(p: Sequence[Any]) -> list[Any]:
        flat = wanted.index(p)
        found: list[Any] = [0] * len(held.sizes)
        for d, i in zip(order, unflatten(flat, sizes), strict=True):
            found[d] = i
        return found

    if not _is_dense(held) or static(wanted.span()) > static(product(held.sizes)):
        return None
    return reindex(value, wanted.sizes, position)


def _loads_from(value: Lazy, storage: Storage) -> bool:
    """Whether computing an element reads that storage; what is realised is read instead."""
    position = [0 if n == 1 else var(loop_symbol("p", k, n)) for k, n in enumerate(value.sizes)]
    with tracing(Trace()) as trace:
        value.load(position)
    return any(s.op == "load" and s.args[0].storage is storage for s in trace.scalars)


def _values(x: Any) -> list[Value]:
    if isinstance(x, Value):
        return [x]
    if isinstance(x, list | tuple):
        return [v for y in x for v in _values(y)]
    return []
