"""Eager code: windows of recorded calls become programs, and plans in the background.

A window is (number, calls, slots), as `compiler/wire` reads what the core writes. A slot is a
storage: (bytes, made in the window, outlives it, written). A call is (op, 0, arguments, results);
an argument is one of

  ("constant", value)
  ("tensor", slot, dtype, sizes, strides, offset in elements)
  ("number", place among the window's run-time numbers, dtype, Python number?, real?)
  ("list", arguments)

and a result ("argument", place), a tensor, ("list", results) or None.

Bytes, sizes, strides, offsets and constants may be indices of symbols: the window's sizes of any
value.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_tenon.compiler.build import Contents, ProgramBuilder
from torch_tenon.compiler.composition import as_called
from torch_tenon.compiler.failing import without_failing
from torch_tenon.compiler.parts import may_overlap, same_places
from torch_tenon.frontends import foreach
from torch_tenon.ir.index import Symbol, product
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Layout, Lazy, Stored, Value, dense_layout
from torch_tenon.ops import manifest, variants
from torch_tenon.ops.compositions import composition_of
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.table import (
    BY_HAND,
    LINKED,
    CannotLower,
    TensorMeta,
    broadcast_to,
    cast,
    find,
    given_number,
    has_narrow_numbers,
)

# As `kInFloat32` in csrc/pytorch/windows/plan_store.h.
IN_FLOAT32 = 1 << 20


@dataclass
class BuiltWindow:
    """A program, and which slots and numbers its inputs and outputs are."""

    program: Program
    inputs: list[int]  # a slot, or -1 - the place of a number, - IN_FLOAT32 for that in float32
    outputs: list[int]
    fallbacks: dict[str, str]


def build(description: tuple[Any, ...], symbols: Sequence[Symbol] = ()) -> BuiltWindow:
    """The program of a window, whose sizes may have any value in terms of `symbols`. Raises
    CannotLower for one that only reference execution runs."""
    load_all()

    def made(refused: Mapping[str, str]) -> BuiltWindow:
        window = _Window(description, refused)
        window.program.sizes += symbols
        return window.build()

    return without_failing(made)


class _Window:
    """A window's description, as calls of the builder of programs."""

    def __init__(self, description: tuple[Any, ...], refused: Mapping[str, str]) -> None:
        _, self.calls, slots = description
        self.builder = ProgramBuilder(refused)
        self.program = self.builder.program
        self.slots = [
            self.builder.tensor(Contents(k, nbytes, len(self.calls) if alive else -1, fresh))
            for k, (nbytes, fresh, alive, _) in enumerate(slots)
        ]
        self.numbers: dict[int, Value] = {}
        self.users: dict[tuple[int, int], int] = {}
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Finds the last call that uses each slot, and how many read what call k left there."""
        writer: dict[int, int] = {}
        for k, (name, _, arguments, results) in enumerate(self.calls):
            op = variants.overload(name)
            schema = op._schema.arguments
            for a, x in zip(schema, arguments, strict=True):
                for _, n, *_ in _tensors(x):
                    self.slots[n].last = max(self.slots[n].last, k)
                    if n in writer and not variants.is_out(a):
                        key = writer[n], n
                        self.users[key] = self.users.get(key, 0) + 1
            written = [
                x
                for a, x in zip(schema, arguments, strict=True)
                if variants.is_written(a) and not variants.is_left(op, a.name)
            ]
            written += _mutated(name, arguments)
            for x in [*results, *written]:
                writer |= {n: k for _, n, *_ in _tensors(x)}
        for n, k in writer.items():
            if self.slots[n].last == len(self.calls):  # it outlives the window
                self.users[k, n] = self.users.get((k, n), 0) + 1

    def build(self) -> BuiltWindow:
        for k, (name, _, arguments, results) in enumerate(self.calls):
            time.sleep(0)  # the program that runs meanwhile wants the interpreter
            self.program.call_index = self.builder.step = k
            self._call(name, arguments, results)
        self.program.call_index = -1
        alive = [s for s in self.slots if s.last == len(self.calls)]
        for s in sorted(alive, key=lambda s: s.changed):
            if s.value is not None and s.nbytes:
                self.builder.flush(s)
        for s in alive:
            if s.fresh and s.home is not None:
                storage = s.home.storage
                storage.kind = "output"
                assert storage.current is not None
                layout = Layout((s.nbytes // storage.current.dtype.itemsize,), (1,))
                self.program.outputs.append(Stored(storage.current, layout))
        owners = self.builder.owners
        outputs = [owners[s] for s in self.program.storages if s.kind == "output"]
        return BuiltWindow(self.program, self.builder.inputs, outputs, self.builder.fallbacks)

    # Calls

    def _call(self, name: str, arguments: list[Any], results: list[Any]) -> None:
        op = variants.overload(name)
        if manifest.of(name).functional:
            self._moving_statistics(name, arguments, results)
            return
        schema = op._schema.arguments
        written = [i for i, a in enumerate(schema) if variants.is_written(a)]
        if name == "aten::copy_" and arguments[0] == arguments[1]:
            return  # the kernel changes nothing, and takes elements that share memory
        if name == "aten::copy_" and not _overlaps(arguments[0]):
            self._write(arguments[0], self._argument(arguments[1]))
            return
        outs = [i for i in written if variants.is_out(schema[i])]
        if written and not outs and (calls := foreach.one_by_one(name, arguments, written)):
            self.builder.step -= 1  # what one of them reads, the next may read as well
            for one in calls:
                self._call(name, one, results)
            return
        functional = variants.functional_of(op)
        # Of a functional op's result each element has a value of its own, computed before any is
        # written. Where elements share memory, what stays there is the kernel's to say.
        shared = any(_overlaps(arguments[i]) for i in written) or _reads_list(arguments, outs)
        known = manifest.of(name)
        of_nothing = known.takes_nothing and product(arguments[0][3]) == 0
        if functional is None or known.mutates or shared or of_nothing:
            self._call_in_place(op, arguments, results)
            return
        # The CPU's kernel writes it in order; a plan that knew better would do something else.
        if known.flat_out and not _is_contiguous(arguments[-1]):
            raise CannotLower(f"{name} takes what it writes for contiguous")
        if known.sized_by_out and tuple(arguments[-1][3]) != tuple(arguments[0][3]):
            raise CannotLower(f"{name} computes as much as what it writes had room for")
        self.program.origin = _origin(name)
        given = {
            a.name: self._argument(x)
            for i, (a, x) in enumerate(zip(schema, arguments, strict=True))
            if i not in outs
        }
        if variants.known_of(functional).of_memory:
            given[schema[0].name] = self._memory(arguments[0])
        targets = [arguments[i] for i in outs + [i for i in written if i not in outs]]
        left = [arguments[i] for i in written if variants.is_left(op, schema[i].name)]
        in_place = written == [0] and variants.known_of(functional).partial
        changes = self.slots[arguments[0][1]] if in_place else None
        self._run(functional, given, results, targets, bool(written), changes, left)

    def _call_in_place(self, op: Any, arguments: list[Any], results: list[Any]) -> None:
        """An op that writes arguments where its functional variant does not tell what these become:
        a call on their memory."""
        schema, mutates = op._schema.arguments, manifest.of(op.name()).mutates
        self.program.origin = _origin(op.name())
        writes = []
        for a, x in zip(schema, arguments, strict=True):
            for _, number, dtype, sizes, strides, offset in _tensors(x):
                written = variants.is_written(a) or a.name in mutates
                if written and product(sizes) != 0:
                    contents = self.slots[number]
                    layout = Layout(tuple(sizes), tuple(strides), offset)
                    writes.append((contents, self.builder.to_be_written(contents, dtype, layout)))
        given = {a.name: self._argument(x) for a, x in zip(schema, arguments, strict=True)}
        positional, keywords = as_called(op, given)
        metas = [m for r in results for m in _metas(r)]
        memory = [stored for _, stored in writes]
        found = iter(self.builder.call_in_place(op, positional, keywords, metas, memory))
        for contents, stored in writes:
            contents.home = stored.buffer.storage.current
        for r in results:
            values = [next(found) for _ in _metas(r)]
            if r is not None and r[0] != "argument":
                self._take(r, values if r[0] == "list" else values[0])

    def _moving_statistics(self, name: str, arguments: list[Any], results: list[Any]) -> None:
        """Batch norm, whose older schema does not say that it writes the running statistics."""
        op = variants.overload(manifest.of(name).functional)
        self.program.origin = _origin(name)
        schema = variants.overload(name)._schema.arguments
        outs = [x for a, x in zip(schema, arguments, strict=True) if variants.is_out(a)]
        moving = _mutated(name, arguments)
        statistics = [x for x in moving if x[0] == "tensor"]
        others = list(outs)
        if any(_overlaps(x) for x in [*outs, *statistics]):
            raise CannotLower(f"{name} writes elements that share memory")
        if not statistics:
            op = torch.ops.aten._native_batch_norm_legit.no_stats
            others += moving
        arguments = [x for x in arguments if not any(x is other for other in others)]
        given = {
            a.name: self._argument(x) for a, x in zip(op._schema.arguments, arguments, strict=True)
        }
        self._run(op, given, results, [*outs, *statistics], into=bool(outs))

    def _run(
        self,
        op: Any,
        given: dict[str, Any],
        results: list[Any],
        targets: list[Any],
        into: bool,
        changes: Contents | None = None,
        left: Sequence[Any] = (),
    ) -> None:
        """Runs a functional op, whose results are new tensors and then what `targets` become, but
        for those of them that are `left` as they are. With `into` the dtypes of the targets are the
        op's business."""
        fresh = [r for r in results if r is None or r[0] != "argument"]
        metas = [m for t in [*fresh, *targets] for m in _metas(t)]
        if metas and all(m is not None and product(m.sizes) == 0 for m in metas):
            return  # nothing is to be computed, and decompositions stumble over it
        positional, keywords = as_called(op, given)
        found = self.builder.lower(op, positional, keywords, metas, into, changes)
        values = found if len(op._schema.returns) != 1 else [found]
        # A call gives the tensors of a list among its results one by one.
        one = iter([v for x in values for v in (x if isinstance(x, list | tuple) else [x])])

        def value_of(t: Any) -> Any:
            return [next(one) for _ in t[1]] if _is_list(t) else next(one)

        for r in fresh:
            self._take(r, value_of(r))
        changed = [(t, value_of(t)) for t in targets]
        changed = [(t, value) for t, value in changed if not any(t is x for x in left)]
        written = Counter(n for t, _ in changed for _, n, *_ in _tensors(t))
        if max(written.values(), default=0) > 1:
            # Computed before the first of them is written.
            for value in tree_leaves([v for _, v in changed]):
                if isinstance(value, Value):
                    self.program.realise(value)
        for t, value in changed:
            self._write(t, value)

    def _argument(self, x: Any) -> Any:
        kind = x[0]
        if kind == "tensor":
            _, number, dtype, sizes, strides, offset = x
            layout = Layout(tuple(sizes), tuple(strides), offset)
            return self.builder.read(self.slots[number], dtype, layout)
        if kind == "list":
            return [self._argument(y) for y in x[1]]
        if kind == "number":
            return self._number(*x[1:])
        value = x[1]
        return constant((), value.item(), value.dtype) if isinstance(value, torch.Tensor) else value

    def _memory(self, t: Any) -> Value:
        """A tensor as it lies in its storage, for an op that speaks of that."""
        _, number, dtype, sizes, strides, offset = t
        if product(sizes) == 0:
            return self._argument(t)
        layout = Layout(tuple(sizes), tuple(strides), offset)
        return self.builder.in_memory(self.slots[number], dtype, layout)

    def _number(self, place: int, dtype: torch.dtype, wrapped: bool, real: bool) -> Value:
        if place >= IN_FLOAT32:
            raise CannotLower(f"more than {IN_FLOAT32:,} numbers")
        found = self.numbers.get(place)
        if found is None:
            held = torch.float64 if real else torch.int64
            stored = self.builder.given(Contents(-1 - place), held, Layout((), ()))
            number: Value = stored
            if real:
                narrow = None
                if has_narrow_numbers():
                    contents = Contents(-1 - place - IN_FLOAT32)
                    narrow = self.builder.given(contents, torch.float32, Layout((), ()))
                number = given_number(stored, narrow, 0)
            value = cast(number, dtype)
            found = Lazy((), dtype, value.load, (value,))
            found.is_number = wrapped
            self.numbers[place] = found
        return found

    # Results

    def _take(self, t: Any, value: Any) -> None:
        """A fresh result."""
        if t is None:
            return
        if t[0] == "list":
            for one, v in zip(t[1], value, strict=True):
                self._take(one, v)
            return
        _, number, dtype, sizes, strides, _ = t
        if self.slots[number].nbytes == 0:
            return
        if value.sizes != tuple(sizes):
            value = broadcast_to(value, tuple(sizes))
        layout = Layout(tuple(sizes), tuple(strides))
        self.builder.replace(self.slots[number], cast(value, dtype), layout, self._users(number))

    def _write(self, t: Any, value: Any) -> None:
        """A write in place, through whatever view `t` is."""
        if t[0] == "list":
            for one, v in zip(t[1], value, strict=True):
                self._write(one, v)
            return
        if t[0] != "tensor" or value is None:
            return
        _, number, dtype, sizes, strides, offset = t
        layout = Layout(tuple(sizes), tuple(strides), offset)
        self.builder.write(self.slots[number], dtype, layout, value, self._users(number))

    def _users(self, number: int) -> int:
        return self.users.get((self.program.call_index, number), 0)


def _mutated(name: str, arguments: list[Any]) -> list[Any]:
    """The arguments that an op writes, though its schema does not say so."""
    schema, mutates = variants.overload(name)._schema.arguments, manifest.of(name).mutates
    return [x for a, x in zip(schema, arguments, strict=True) if a.name in mutates]


def _origin(name: str) -> str:
    return name.removeprefix("aten::").partition(".")[0]


@functools.cache
def route_of(name: str) -> str:
    """How windows run an op (`aten::add_.Tensor`): `lowered`, `library`, `kernel` (written by hand,
    for the target) or `fallback`."""
    load_all()
    try:
        op = variants.functional_of(variants.overload(name))
    except AttributeError:  # its library was unloaded since
        return "fallback"
    if name == "aten::copy_" or manifest.of(name).functional:
        return "lowered"
    if op is None:
        return "fallback"
    if name in BY_HAND and find(op) is not None:
        return "kernel"
    if find(op) is not None:
        return "library" if str(op) in LINKED else "lowered"
    return "lowered" if composition_of(op) is not None else "fallback"


def _is_list(x: Any) -> bool:
    """Whether an argument or a result is a list: one without elements is a constant."""
    return x is not None and (x[0] == "list" or (x[0] == "constant" and x[1] == []))


def _tensors(x: Any) -> Iterator[Any]:
    """The tensors in an argument or a result."""
    if x is not None and x[0] == "tensor":
        yield x
    elif x is not None and x[0] == "list":
        for y in x[1]:
            yield from _tensors(y)


def _metas(x: Any) -> list[TensorMeta | None]:
    """What is known of a result, or of each of a list."""
    if _is_list(x):
        return [m for t in x[1] for m in _metas(t)]
    if x is None or x[0] != "tensor":
        return [None]
    return [TensorMeta(x[2], tuple(x[3]), tuple(x[4]))]


def _overlaps(x: Any) -> bool:
    """Whether a tensor in an argument has elements that share memory."""
    return any(
        may_overlap(Layout(tuple(sizes), tuple(strides))) for *_, sizes, strides, _ in _tensors(x)
    )


def _reads_list(arguments: Sequence[Any], outs: Sequence[int]) -> bool:
    """Whether memory of a list that a call writes, one tensor after the other, is read as well."""
    lists = [arguments[i] for i in outs if arguments[i][0] == "list"]
    read = [x for i, x in enumerate(arguments) if i not in outs]
    slots = {number for x in lists for _, number, *_ in _tensors(x)}
    return any(number in slots for x in read for _, number, *_ in _tensors(x))


def _is_contiguous(t: Sequence[Any]) -> bool:
    sizes, strides = tuple(t[3]), tuple(t[4])
    return same_places(Layout(sizes, strides), dense_layout(sizes))
