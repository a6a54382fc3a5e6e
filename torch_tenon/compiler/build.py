"""Programs of calls: the builder that every front end translates its descriptions to.

`ProgramBuilder.lower` makes values of an op: by its lowering, by the ops that it is composed of, or
by a call of PyTorch's kernel. What a tensor holds is a `Contents`; the other methods read, replace
and write it. A value is computed where it is used until storing it costs less, and before memory
that it reads is overwritten.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from torch_tenon.compiler.composition import Composition, StandIns
from torch_tenon.compiler.failing import why_not
from torch_tenon.compiler.parts import (
    is_dense,
    is_simple,
    parts_of,
    ranges,
    same_places,
    view_of,
    whole_of,
    with_part,
)
from torch_tenon.ir.index import Index, product
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import (
    BodyError,
    Buffer,
    Layout,
    Lazy,
    Storage,
    Stored,
    Value,
    name_origin,
    reshape,
    size_hint,
    traced,
    weigh,
)
from torch_tenon.ops.compositions import composition_of, other_way
from torch_tenon.ops.lowerings.complex_numbers import complex_lowering, is_composed_of_complex
from torch_tenon.ops.lowerings.creation import constant
from torch_tenon.ops.lowerings.table import (
    LINKED,
    NO_LOWERING,
    UNSIGNED,
    Build,
    CannotLower,
    TensorMeta,
    are_empty,
    broadcast_to,
    cast,
    find,
    float_type,
    promote,
)
from torch_tenon.ops.variants import draws_numbers, is_out, known_of, refused_dtype

log = logging.getLogger("torch_tenon.program")

# Where a result goes, which its metadata says.
_OPTIONS = ("device", "layout", "pin_memory", "memory_format", "non_blocking")


@dataclass(eq=False)
class Contents:
    """What a tensor of the front end's holds while a program is built.

    Its elements are those of `value`, laid out by `layout` from the start of its storage; where
    that is None they are in memory, which is a version of `home`. `memory` tells storages apart:
    contents of equal ones are views of each other. `last` is the number of the last step that
    reads the contents (see `ProgramBuilder.step`), `nbytes` their storage's size.
    """

    memory: Any
    nbytes: Index = 0
    last: float = math.inf
    fresh: bool = True  # the program makes it: it may have any memory
    home: Buffer | None = None
    value: Value | None = None
    layout: Layout | None = None
    changed: int = -1  # grows with every replacement


class ProgramBuilder:
    """A program while it is built.

    The front end sets `step`, a number that grows, before each of its calls, and the program's
    `origin` to the call's op. Ops whose origin is `refused` become calls, for that reason. A
    `standalone` program shall run without PyTorch: an op with loops, or composed of others, is no
    call of a library. While `seeds_calls` is true, calls that draw numbers are seeded by the
    program's.
    """

    def __init__(self, refused: Mapping[str, str] | None = None, standalone: bool = False) -> None:
        self.program = Program()
        self.refused = refused or {}
        self.program.standalone = standalone
        self.stand_ins = StandIns()
        self.fallbacks: dict[str, str] = {}  # op and why it is a call
        self.inputs: list[Any] = []  # for each input of the program what memory it is
        self.owners: dict[Storage, Any] = {}  # what memory of the front end's a storage is
        self.step = 0
        self.seeds_calls = False
        self._changes = 0
        self._all: list[Contents] = []
        # Contents whose value may read a storage. What is in `_unlisted` may be read by others as
        # well: values were made before it was known that they read it.
        self._readers: dict[Storage, list[Contents]] = {}
        self._unlisted: set[Storage] = set()

    # Ops

    def lower(
        self,
        op: Any,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
        into: bool = False,
        changes: Contents | None = None,
    ) -> Any:
        """The results of a functional op: a value, or a list of them where its schema says so.

        `results` describes them; with `into` it describes the tensors that they are written to.
        `changes` is the op's first argument if its contents may be changed where they lie. Raises
        CannotLower for what can be computed only on its own.
        """
        if not into and _checks_alone(positional, keywords, results) and _may_check(op):
            return self.call(op, positional, keywords, results)
        taken = self.program.taken
        if changes is not None and changes.value is None and changes.home is not None:
            self._keep_old(changes)
            self.program.taken = changes.home.storage
        try:
            found = self._lowered(op, list(positional), keywords, results, into)
        finally:
            self.program.taken = taken  # of the op that this one is a part of
        name_origin(found, self.program.origin, self.program.call_index)
        each = found if isinstance(found, list | tuple) else [found]
        for value, meta in zip(each, results, strict=False):  # some give lists beside tensors
            if isinstance(value, Lazy) and meta is not None and meta.sizes == value.sizes:
                # A call that reads it gets it as it lies in eager code, and so takes as long.
                value.strides = value.strides or tuple(meta.strides)
            if weigh(value, users=1):
                self.program.realise(value, None if meta is None else meta.strides)
        return found

    def _lowered(
        self,
        op: Any,
        positional: list[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
        into: bool,
    ) -> Any:
        first = results[0] if into and results else None
        if first is not None and len(first.sizes) != 1 and known_of(op).fills_in_order:
            row = TensorMeta(first.dtype, (product(first.sizes),), (1,))
            found = self._lowered(op, positional, keywords, [row], into)
            return reshape(found, first.sizes)
        build = Build(self.program, results)
        program = self.program
        held = program.taken and (program.taken, program.taken.current)
        random_ops = program.random_ops
        written = [m.dtype for m in results if m]
        try:
            if program.origin in self.refused:
                raise CannotLower(self.refused[program.origin])
            given = _values([positional, list(keywords.values())])
            if any(v.is_number for v in given) and not known_of(op).run_time_numbers:
                raise CannotLower("a number that is known only when it runs")
            if why := refused_dtype(op, positional, keywords):
                raise CannotLower(why)
            if known_of(op).numbers_fit and results and results[0] is not None:
                for number in tree_leaves((positional, list(keywords.values()))):
                    build.fitting(number, results[0].dtype)
            dtypes = [x.dtype for x in [*given, *results] if x is not None]
            if not takes_unsigned(op) and any(x.dtype in UNSIGNED for x in given):
                raise CannotLower("whole numbers without sign, which most kernels refuse")
            is_complex = any(d.is_complex for d in dtypes)
            if is_complex and program.standalone and is_composed_of_complex(op):
                return self._composed_of_loops(op, positional, keywords)
            if is_complex and (program.standalone or str(op) not in LINKED):
                function = complex_lowering(op, dtypes)
            else:
                function = find(op, program.standalone and not is_complex)
            linked = into and str(op) in LINKED
            if linked and self._dtypes(op, positional, keywords) not in ([], written):
                raise CannotLower("a call of the library converts no result")
            if function is not None:
                plain = {k: v for k, v in keywords.items() if k not in _OPTIONS}
                try:
                    return _of_ranks(function(build, *positional, **plain), results)
                except CannotLower:
                    composed = other_way(op) if program.standalone else None
                    if composed is None:
                        raise
            elif isinstance(op, torch._ops.OpOverload):
                composed = composition_of(op, program.standalone)
            else:
                composed = None
            if composed is None:
                raise CannotLower(NO_LOWERING)
            return _of_ranks(Composition(self).run(composed, positional, keywords), results)
        except (BodyError, MemoryError):
            raise
        except Exception as error:
            of_nothing = any(x.numel() == 0 for x in _values([positional, list(keywords.values())]))
            reason = why_not(str(op), error, of_nothing)
            if held:  # what was written already is nobody's: the call reads what was there before
                held[0].current = held[1]
            program.random_ops = random_ops
            if into and self._dtypes(op, positional, keywords) != written:  # it may convert
                raise CannotLower(f"{op} writes a tensor of another dtype") from None
            if self.stand_ins.are_of_some_sizes:
                self.stand_ins = StandIns()
            self.fallbacks[str(op)] = reason
            log.debug("%s is a call: %s", op, reason)
            return self.call(op, positional, keywords, results)

    def _composed_of_loops(self, op: Any, positional: list[Any], keywords: dict[str, Any]) -> Any:
        """What PyTorch composes of ops over complex numbers. Raises CannotLower where one of these
        is a call: the whole op is a call then, by the name that the model has for it."""
        fallbacks, self.fallbacks = self.fallbacks, {}
        try:
            found = Composition(self).run(op.decompose, positional, keywords)
            if self.fallbacks:
                raise CannotLower("complex numbers")
            return found
        finally:
            self.fallbacks = fallbacks

    def _dtypes(
        self, op: Any, positional: list[Any], keywords: dict[str, Any]
    ) -> list[torch.dtype]:
        """The dtypes of an op's results; none where PyTorch cannot tell without running it."""

        def stand_in(x: Any) -> Any:
            is_number = isinstance(x, Value) and x.is_number
            return 1.0 if is_number else self.stand_ins.given(x)  # run-time numbers are real

        args, named = tree_map(stand_in, (positional, keywords))
        try:
            result = op(*args, **named)
        except (ArithmeticError, AssertionError, AttributeError, RuntimeError, ValueError):
            return []  # some take no None or number, and some make constants: no stand-in is one
        return [t.dtype for t in tree_leaves(result) if isinstance(t, torch.Tensor)]

    def call(
        self,
        op: Any,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
        route: str = "fallback",
    ) -> Any:
        """The results of PyTorch's kernel on the host."""
        schema = getattr(op, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise NotImplementedError(f"{op} writes its arguments inside a compiled graph")
        if known_of(op).of_memory:  # a call gets what an argument shows of its memory
            raise CannotLower(f"{op} of more memory than its argument shows")
        if keywords.get("device") is not None:
            keywords = keywords | {"device": torch.device("cpu")}
        if schema is not None:
            positional = _numbers_as_tensors(schema, positional, results)
            takes_generator = any(a.name == "generator" for a in schema.arguments)
            if self.seeds_calls and draws_numbers(op) and takes_generator:
                keywords = keywords | {"generator": list(self.program.next_random())}
        returns = [] if schema is None else schema.returns
        if schema is not None and not returns:
            results = []
        if are_empty(results):
            route = "effect"  # such as to raise
        found = Build(self.program, results).call(op, positional, keywords, route)
        single = len(returns) == 1 and isinstance(returns[0].type, torch.TensorType)
        return found[0] if single else found

    def call_in_place(
        self,
        op: Any,
        positional: Sequence[Any],
        keywords: dict[str, Any],
        results: list[TensorMeta | None],
        writes: Sequence[Stored],
    ) -> list[Stored | None]:
        """The results, one by one, of an op that writes arguments and has no functional variant: it
        is called on their memory, which `to_be_written` gave or which nothing else reads."""
        build = Build(self.program, results, writes)
        try:
            # What writes to an `out` that shares memory has the name of a lowering that makes it.
            function = None if any(map(is_out, op._schema.arguments)) else find(op)
            if function is None:
                raise CannotLower(NO_LOWERING)
            found = function(build, *positional, **keywords)
        except (BodyError, MemoryError):
            raise
        except Exception as error:
            self.fallbacks[str(op)] = why_not(str(op), error)
            given = _numbers_as_tensors(op._schema, positional, build.results)
            found = build.call(op, given, keywords, "fallback")
        return list(found) if isinstance(found, list | tuple) else [found]

    # Contents

    def in_memory(self, contents: Contents, dtype: torch.dtype, layout: Layout) -> Stored:
        """A view of the contents in their own memory."""
        return Stored(self._in_memory(contents, dtype), layout)

    def to_be_written(self, contents: Contents, dtype: torch.dtype, layout: Layout) -> Stored:
        """A view of the contents in memory, which an op is about to write."""
        stored = self.in_memory(contents, dtype, layout)
        self._keep_old(contents)
        return stored

    def current(self, contents: Contents) -> Value:
        """All of the contents, as they are now."""
        if contents.value is not None:
            return self.program.current(contents.value)
        assert contents.home is not None and contents.layout is not None
        return self.program.current(Stored(contents.home, contents.layout))

    def tensor(self, contents: Contents) -> Contents:
        """Enters contents that the program has to know."""
        self._all.append(contents)
        return contents

    def given(self, contents: Contents, dtype: torch.dtype, layout: Layout) -> Stored:
        """Makes contents an input of the program, of that layout."""
        stored = self.program.input(dtype, layout)
        contents.home = stored.buffer
        self.inputs.append(contents.memory)
        self.owners[stored.buffer.storage] = contents.memory
        return stored

    def replace(
        self, contents: Contents, value: Value, layout: Layout, users: int, stored: bool = False
    ) -> None:
        """All of the contents is `value` from now on, which that many users will read; it gets
        memory if that costs less than to compute it for each, or where `stored` asks for it."""
        self._changes += 1
        contents.value, contents.layout, contents.changed = value, layout, self._changes
        if stored or weigh(value, users):
            self.program.realise(value, layout.strides)
        for b in value.reads:
            self._readers.setdefault(b.storage, []).append(contents)

    def read(self, contents: Contents, dtype: torch.dtype, layout: Layout) -> Value:
        """A view of the contents, as elements of `dtype`."""
        if product(layout.sizes) == 0:
            return constant(layout.sizes, 0, dtype)
        value = contents.value
        if value is not None:
            held, same = contents.layout, value.dtype is dtype
            assert held is not None
            if same and same_places(layout, held):
                return value
            seen = view_of(value, held, layout) if same else parts_of(value, held, layout, dtype)
            if isinstance(seen, Lazy) and seen is not value:
                seen.eager_strides = layout.strides
            if seen is not None:
                return seen
        return Stored(self._in_memory(contents, dtype), layout)

    def write(
        self, contents: Contents, dtype: torch.dtype, layout: Layout, value: Any, users: int
    ) -> None:
        """Writes a value or a number through a view, which `users` read as far as it is all of the
        contents."""
        if product(layout.sizes) == 0:
            return
        if not isinstance(value, Value):
            value = constant((), value, dtype)
        if contents.value is None and isinstance(value, Stored) and contents.home is not None:
            held = contents.home.storage.current
            is_it = value.buffer is held and value.dtype is dtype
            if is_it and same_places(value.layout, layout):
                contents.home = held  # it was changed where it lies
                return
        source = cast(value, dtype)
        if source.sizes != layout.sizes:
            source = broadcast_to(source, layout.sizes)
        if (
            layout.offset == 0
            and product(layout.sizes) * dtype.itemsize == contents.nbytes
            and is_dense(layout)
        ):
            # All of it: what was there before is nobody's any more.
            self.replace(contents, source, layout, users)
            return
        whole = self._made_anew(contents, dtype, layout, source)
        if whole is not None:
            box = ranges(layout, whole)
            assert box is not None
            value = with_part(self.read(contents, dtype, whole), box, source)
            self.replace(contents, value, whole, users)
            return
        buffer = self._in_memory(contents, dtype)
        self._keep_old(contents)
        contents.home = self.program.write(Stored(buffer, layout), source).buffer

    def _made_anew(
        self, contents: Contents, dtype: torch.dtype, view: Layout, source: Value
    ) -> Layout | None:
        """The layout of all of the contents, if to compute them again costs less than to write the
        part of them that a view shows."""
        value, home = contents.value, contents.home
        stored = value.realised if isinstance(value, Lazy) else value
        count = contents.nbytes // dtype.itemsize
        known = value is not None and value.dtype is dtype
        whole = contents.layout if known else whole_of(view, count)
        box = None if whole is None else ranges(view, whole)
        if box is None or any(r.step != 1 for r in box) or not is_simple(source):
            return None
        share = size_hint(product(view.sizes)) / size_hint(count)
        if value is None:
            less = home is not None and self.program.copies_first(
                Stored(self._in_memory(contents, dtype), view), source, count
            )
        elif stored is None:  # it has no memory yet
            less = known and share >= 0.5
        elif home is not None:  # it would have to go there first
            less = known and share >= 0.75
        else:
            assert isinstance(stored, Stored) and contents.layout is not None
            less = same_places(stored.layout, contents.layout) and self.program.copies_first(
                Stored(stored.buffer.seen_as(dtype), view), source, count
            )
        return whole if less else None

    def _in_memory(self, contents: Contents, dtype: torch.dtype) -> Buffer:
        """The newest contents in memory, as elements of `dtype`."""
        if contents.value is not None:
            self.flush(contents)
        if contents.home is None:
            layout = Layout((_elements(contents.nbytes, dtype),), (1,))
            if contents.fresh:
                # Nothing was written yet: what is read is as undefined as it is anywhere.
                contents.home = self.program.temporary(dtype, layout).buffer
                self.owners[contents.home.storage] = contents.memory
            else:
                self.given(contents, dtype, layout)
        newest = contents.home.storage.current if contents.home is not None else None
        assert newest is not None
        return newest.seen_as(dtype)

    def flush(self, contents: Contents) -> None:
        """Puts the contents into their own memory."""
        value, layout = contents.value, contents.layout
        assert value is not None and layout is not None
        contents.value = None
        if contents.fresh and contents.home is None:
            contents.home = self.own(contents.memory, value, layout, contents.nbytes).buffer
            return
        target = Stored(self._in_memory(contents, value.dtype), layout)
        self._keep_old(contents, value)
        new = self.program.write(target, value)
        self._lies_in(value, new)
        contents.home = new.buffer

    def own(self, memory: Any, value: Value, layout: Layout, nbytes: Index | None = None) -> Stored:
        """`value` by that layout, in memory that belongs to `memory` alone; with `nbytes` that is
        all of the storage."""
        made = self.laid_out(value, layout)
        storage = made.buffer.storage
        whole = nbytes is None or (made.layout.offset == 0 and storage.nbytes == nbytes)
        if (
            self.owners.get(storage, memory) != memory
            or storage.kind == "constant"
            or made.buffer.base is not storage.current
            or not whole
        ):
            made = self.program.copy_as(made, layout)
        self.owners[made.buffer.storage] = memory
        self._lies_in(value, made)
        return made

    def laid_out(self, value: Value, layout: Layout) -> Stored:
        """`value` in memory, by the layout's sizes and strides."""
        if product(layout.sizes) == 0:
            return self.program.temporary(value.dtype, layout)
        stored = self.program.realise(value, layout.strides)
        at = stored.layout.offset
        if same_places(stored.layout, Layout(layout.sizes, layout.strides, at)):
            return Stored(stored.buffer, Layout(layout.sizes, layout.strides, at))
        return self.program.copy_as(stored, Layout(layout.sizes, layout.strides))

    def _lies_in(self, value: Value, memory: Stored) -> None:
        """From now on `value` is read from memory that is some tensor's own."""
        if isinstance(value, Lazy):
            value.realised = value.realised or memory
            self._unlisted.add(memory.buffer.storage)

    def _keep_old(self, contents: Contents, writing: Value | None = None) -> None:
        """Computes what still has to read the contents that are about to be overwritten; `writing`
        is what they become, and may be read from there."""
        assert contents.home is not None
        storage = contents.home.storage
        readers = self._readers.pop(storage, [])
        if storage in self._unlisted:
            self._unlisted.discard(storage)
            readers = self._all
        for other in readers:
            value = other.value
            if value is None or other.last <= self.step:
                continue
            if isinstance(value, Lazy) and value.realised is None:
                if value is not writing and _loads_from(value, storage):
                    self.program.realise(value)
                continue
            held = value.realised if isinstance(value, Lazy) else value
            if (
                isinstance(held, Stored)
                and held.buffer.storage is storage
                and other.memory != contents.memory
            ):
                # What is computed of it later may read the new contents as well.
                other.value = self.program.copy(held, held.layout.strides)


def _of_ranks(found: Any, results: Sequence[TensorMeta | None]) -> Any:
    """What was lowered, which has as many dimensions as the kernel's results. Raises CannotLower
    where it has more: PyTorch's kernels broadcast less in some places than its rules say."""
    each = found if isinstance(found, list | tuple) else [found]
    for value, meta in zip(each, results, strict=False):
        if isinstance(value, Value) and meta is not None and len(value.sizes) > len(meta.sizes):
            raise CannotLower(f"{len(value.sizes)} dimensions, and {len(meta.sizes)} are wanted")
    return found


def takes_unsigned(op: Any) -> bool:
    """Whether an op has loops over whole numbers without sign, which most kernels refuse."""
    is_op = isinstance(op, torch._ops.OpOverload)
    return not is_op or op.is_view or known_of(op).unsigned


def _elements(nbytes: Index, dtype: torch.dtype) -> Index:
    """How many elements that many bytes reach into."""
    size = dtype.itemsize
    return -(-nbytes // size) if isinstance(nbytes, int) else nbytes // size


def _loads_from(value: Lazy, storage: Storage) -> bool:
    """Whether computing an element reads that storage; what is realised is read instead."""
    loads = (s for s in traced(value).scalars if s.op == "load")
    return any(s.args[0].storage is storage for s in loads)


def _numbers_as_tensors(
    schema: Any, positional: Sequence[Any], results: Sequence[TensorMeta | None]
) -> list[Any]:
    """The arguments of a call, where a run-time number stands for a tensor in the dtype that it is
    computed in: a quotient of whole numbers is one of fractions."""
    given = _values(list(positional))
    of_fractions = any(m is not None and m.dtype.is_floating_point for m in results)
    found = list(positional)
    for k, (x, a) in enumerate(zip(positional, schema.arguments, strict=False)):
        if isinstance(x, Value) and x.is_number and isinstance(a.type, torch.TensorType):
            dtype = promote(*given)
            found[k] = cast(x, float_type(dtype) if of_fractions else dtype)
    return found


def _may_check(op: Any) -> bool:
    """Whether a kernel may look at what its tensors hold before it computes: those that go element
    by element do not, and PyTorch's `_unsafe` ops are for what was looked at."""
    name = str(op).partition(".")[2]
    return torch.Tag.pointwise not in getattr(op, "tags", ()) and not name.startswith("_unsafe")


def _checks_alone(
    positional: Sequence[Any], keywords: Mapping[str, Any], results: Sequence[TensorMeta | None]
) -> bool:
    """Whether an op has nothing to compute and may be given indices: its kernel checks them, and
    loops over nothing do not."""
    given = _values([*positional, *keywords.values()])
    if len(given) < 2 or not results or not are_empty(results):
        return False
    return any(
        not v.dtype.is_floating_point
        and not v.dtype.is_complex
        and v.dtype is not torch.bool
        and product(v.sizes) != 0
        for v in given
    )


def _values(x: Any) -> list[Value]:
    if isinstance(x, list | tuple):
        return [v for y in x for v in _values(y)]
    return [x] if isinstance(x, Value) else []
