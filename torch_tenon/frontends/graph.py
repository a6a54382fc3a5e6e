"""FX graphs of ATen ops, as calls of the builder of programs."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_tenon.compiler.build import Contents, ProgramBuilder
from torch_tenon.compiler.composition import as_called
from torch_tenon.compiler.failing import without_failing
from torch_tenon.frontends.in_place import FUNCTIONALIZED, changed_base, lists_in, writing_call
from torch_tenon.frontends.nodes import is_of_device, is_token, memory_of, with_effects
from torch_tenon.frontends.sizes import SizeSource, SizeTable
from torch_tenon.frontends.view_results import (
    memory_of_results,
    view_of_argument,
    view_of_output,
    viewed,
)
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, less, product
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Layout, Stored, Value
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import CannotLower, TensorMeta
from torch_tenon.ops.variants import draws_numbers, known_of


@dataclass
class BuiltGraph:
    """A program with how its inputs and outputs stand in the graph's."""

    program: Program
    tensor_inputs: list[int]  # positions of tensors among the graph's placeholders
    sizes: SizeTable
    outputs: list[Any]  # an Output, a Float, an Index, a View or a constant
    fitting: list[tuple[Any, torch.dtype]]  # a Float or an Index, and a dtype that has to have it
    fallbacks: dict[str, str]  # op and why it is a call


@dataclass(frozen=True)
class Output:
    """The position of a tensor among the program's outputs."""

    number: int


@dataclass(frozen=True)
class Float:
    """The position of a number among the floats that are computed for a run."""

    number: int


def build(
    module: GraphModule, views: Mapping[int, int] | None = None, standalone: bool = False
) -> BuiltGraph:
    """The program of a functional graph whose nodes carry fake tensors in `meta["val"]`.

    `views` are the results that the caller makes anew, as views of an argument: it asks for their
    layouts alone. A `standalone` program shall run without PyTorch: see `ProgramBuilder`; each of
    its results is dense, row-major and in memory of its own. Raises NotImplementedError for a graph
    with sizes that depend on data.
    """
    load_all()
    try:
        return without_failing(
            lambda refused: _Graph(module, views or {}, refused, standalone).build()
        )
    except CannotLower as reason:
        raise NotImplementedError(str(reason)) from reason


class _Graph:
    """A graph's nodes, as calls of the builder of programs.

    A node is a tensor's contents, a list of them, or what is no tensor. Nodes that share memory in
    the trace share it here (`memory_of`).
    """

    def __init__(
        self,
        module: GraphModule,
        views: Mapping[int, int],
        refused: Mapping[str, str],
        standalone: bool,
    ) -> None:
        self.module, self.views = module, views
        self.builder = ProgramBuilder(refused, standalone)
        self.program = self.builder.program
        self.sizes = SizeTable(self.program)
        self.env: dict[Node, Any] = {}
        self.outputs: list[Any] = []
        nodes = list(module.graph.nodes)
        self.order: dict[Node, int] = {n: k for k, n in enumerate(nodes)}
        self.first: dict[int | None, Node] = {}  # the nodes that make memory, by it
        for n in nodes:
            self.first.setdefault(memory_of(n), n)
        self.makers = memory_of_results(nodes)
        self.stored = set(self.makers.values())
        self.in_place = _changed_in_place(nodes, self.order)
        # The memory of what is changed in place is the input's.
        self.same = {memory_of(n): held for n, held in self.in_place.items()}
        self.given: dict[int | None, Contents] = {}  # inputs by their memory
        self.owned: dict[Node, Stored] = {}  # results, and what they are views of, in memory
        self.of_device = any(is_of_device(n.meta.get("val")) for n in nodes)

    def build(self) -> BuiltGraph:
        nodes = list(self.order)
        self._placeholders([n for n in nodes if n.op == "placeholder"])
        for n in nodes:
            self.builder.step = self.order[n]
            if n.op == "get_attr":
                self.env[n] = self._attribute(n)
            elif n.op == "call_function":
                self.env[n] = self._call(n)
            elif n.op == "output":
                self._output(n)
        self.program.drop_unused_random()
        return BuiltGraph(
            self.program,
            self.builder.inputs,
            self.sizes,
            self.outputs,
            self._fitting(),
            self.builder.fallbacks,
        )

    def _fitting(self) -> list[tuple[Any, torch.dtype]]:
        """The run-time numbers of which a dtype may have none. Raises CannotLower for one that is
        computed within the program."""
        floats = {id(number): k for k, number in enumerate(self.sizes.floats.values())}
        found: dict[Any, None] = {}
        for number, dtype in self.program.fitting:
            if not isinstance(number, Value):
                found[number, dtype] = None
            elif id(number) in floats:
                found[Float(floats[id(number)]), dtype] = None
            elif dtype is not torch.float32:  # which has all that sizes give
                raise CannotLower(f"a number for {dtype} that is computed of sizes")
        return list(found)

    # What is given

    def _placeholders(self, nodes: Sequence[Node]) -> None:
        for k, n in enumerate(nodes):
            value = n.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.sizes.define(value, SizeSource(value.node.expr, k))
            elif isinstance(value, torch.SymFloat) and value.node.expr.is_Symbol:
                self.sizes.given[value.node.expr] = k
        dims = [
            (size, k, d)
            for k, n in enumerate(nodes)
            if isinstance(n.meta.get("val"), torch.Tensor)
            for d, size in enumerate(n.meta["val"].shape)
            if isinstance(size, torch.SymInt)
        ]
        for size, k, d in dims:
            self.sizes.define(size, SizeSource(size.node.expr, k, d))
        if self.program.standalone:  # others get each size that a graph has
            for size, k, d in dims:
                self.sizes.define_by_multiple(size, SizeSource(size.node.expr, k, d))
        for k, n in enumerate(nodes):
            value = n.meta.get("val")
            if is_token(n):
                self.env[n] = None
            elif isinstance(value, torch.Tensor):
                meta = self._meta(value)
                layout = Layout(meta.sizes, meta.strides)
                held = self._contents(n, fresh=False, nbytes=layout.span() * meta.dtype.itemsize)
                held.layout = layout
                self.builder.given(held, meta.dtype, layout)
                self.builder.inputs[-1] = k
                self.env[n] = self.given[memory_of(n)] = held
            elif isinstance(value, torch.SymInt):
                self.env[n] = self.sizes.index(value)
            else:
                self.env[n] = value

        # What the host's kernels draw within a graph of the host has its generator.
        draws = draws_numbers if self.of_device else lambda op: known_of(op).random
        if any(draws(n.target) for n in self.order):
            scalar = Layout((), ())
            self.program.random = (
                self.program.input(torch.int64, scalar, "seed"),
                self.program.input(torch.int64, scalar, "offset"),
            )

    def _attribute(self, n: Node) -> Any:
        found: Any = self.module
        for part in str(n.target).split("."):
            found = getattr(found, part)
        if not isinstance(found, torch.Tensor):
            return found
        # On the host: what makes a device's tensor may be recorded and not have run.
        held = self._contents(n)
        held.value = self.program.constant(found.detach().cpu())
        return held

    def _contents(self, n: Node, fresh: bool = True, nbytes: Index = 0) -> Contents:
        last = max((self.order[u] for u in n.users), default=-1)
        if n in self.stored:  # results are read from it
            last = len(self.order)
        memory = memory_of(n)
        return self.builder.tensor(Contents(self.same.get(memory, memory), nbytes, last, fresh))

    def _meta(self, t: torch.Tensor) -> TensorMeta:
        if t.layout is not torch.strided:
            raise CannotLower(f"layout {t.layout}")
        return TensorMeta(
            t.dtype,
            tuple(self.sizes.index(n) for n in t.shape),
            tuple(self.sizes.index(n) for n in t.stride()),
        )

    def _results(self, n: Node) -> list[TensorMeta | None]:
        value = n.meta.get("val")
        many = value if isinstance(value, list | tuple) else [value]
        return [self._meta(v) if isinstance(v, torch.Tensor) else None for v in many]

    def _argument(self, x: Any) -> Any:
        if isinstance(x, Node):
            x = self.env[x]
        if isinstance(x, Contents):
            return self.builder.current(x)
        if isinstance(x, list | tuple):
            return [self._argument(y) for y in x]
        if isinstance(x, torch.SymInt):
            return self.sizes.index(x)
        return self.sizes.number(x) if isinstance(x, torch.SymFloat) else x

    # Calls

    def _call(self, n: Node) -> Any:
        if n.target is operator.getitem:
            return self._held(n, self.env[n.args[0]][n.args[1]], self._results(n))  # type: ignore[index]
        if n.target is with_effects:
            return self._effect(n)
        if n.target is FUNCTIONALIZED:
            return self._call_in_place(n)
        value = n.meta.get("val")
        if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            return self.sizes.index(value)
        if isinstance(value, torch.SymFloat | float):
            return value
        name = str(n.target)
        space, _, rest = name.partition(".")
        op = rest.partition(".")[0]
        self.program.origin = op if space == "aten" else f"{space}::{op}"
        if name.startswith("aten.copy_."):
            return self._copy_into(n)
        known = known_of(n.target)
        if known.quantised or space == "quantized":
            raise CannotLower(f"{name} makes a quantised tensor")
        args = [self._argument(a) for a in n.args]
        keywords = {k: self._argument(a) for k, a in n.kwargs.items()}
        if known.of_memory and isinstance(args[0], Value):
            self._lay_out(n, args)
        if known.ends_range:
            given = [a.meta.get("val") if isinstance(a, Node) else a for a in n.args]
            at = [k for k, x in enumerate(given) if isinstance(x, int | torch.SymInt)]
            start = given[at[0]] if len(at) > 1 else 0
            args[at[-1]] = self.sizes.end_of_range(start, given[at[-1]])
        if name == "aten.sym_numel.default" or isinstance(value, torch.SymBool):
            raise CannotLower(f"{name} gives a symbolic {type(value).__name__}")
        changes = self.given[self.in_place[n]] if n in self.in_place else None
        results = self._results(n)
        self.builder.seeds_calls = self.of_device and is_of_device(value)
        if draws_numbers(n.target) and self.of_device and not is_of_device(value):
            # The host's own numbers, as they are drawn beside a graph.
            return self._held(n, self.builder.call(n.target, args, keywords, results), results)
        found = self.builder.lower(n.target, args, keywords, results, changes=changes)
        if isinstance(n.target, HigherOrderOperator) and isinstance(value, torch.Tensor):
            (found,) = found  # it has no schema that tells one tensor from a list of one
        if any(lists := lists_in(value)) and lists != lists_in(found):
            raise CannotLower(f"{name}, a call, gives lists of tensors")
        return self._held(n, found, results)

    def _call_in_place(self, n: Node) -> list[Any]:
        """The results of an op that writes arguments, and then what its bases are after it."""
        call, results = writing_call(n), self._results(n)
        space, name = call.op.namespace, call.op._schema.name.partition("::")[2]
        self.program.origin = f"{space}::{name}"
        memory = [self._base(n, base) for base in call.bases]

        def view(info: Any) -> Any:
            if isinstance(info, list):
                return [view(x) for x in info]
            if info is None or info.base_index is None:
                return None
            stored, base = memory[info.base_index][0], call.bases[info.base_index]
            return Stored(stored.buffer, self._part(stored.layout, base, info))

        given = {k: self._argument(x) for k, x in call.arguments.items()}
        given |= {k: view(info) for k, info in call.written.items()}
        positional, keywords = as_called(call.op, given)
        metas = results[: len(call.op._schema.returns)]
        writes = [stored for stored, _ in memory]
        found = self.builder.call_in_place(call.op, positional, keywords, metas, writes)
        changed = []
        for stored, contents in memory:
            newest = stored.buffer.storage.current
            assert newest is not None
            changed.append(Stored(newest.seen_as(stored.dtype), stored.layout))
            if contents is not None:
                contents.home = newest
        return [*(found if metas else [None]), *changed]

    def _base(self, call: Node, base: Node) -> tuple[Stored, Contents | None]:
        """Memory for an op to write: an input's own, with its contents, where nobody reads what was
        there, else a copy."""
        (meta,) = self._results(base)
        assert meta is not None
        layout = Layout(meta.sizes, meta.strides)
        value = self._argument(base)
        user = next((u for u in call.users if changed_base(u) is base), None)
        if user in self.in_place:
            contents = self.given[self.in_place[user]]
            home = contents.home
            if isinstance(value, Stored) and home and value.buffer.storage is home.storage:
                return self.builder.to_be_written(contents, meta.dtype, value.layout), contents
        made = self.program.temporary(meta.dtype, layout)
        self.program.fill(made, value)
        return made, None

    def _part(self, layout: Layout, base: Node, info: Any) -> Layout:
        """The layout of a view that `info` speaks of."""
        if hasattr(info, "dim"):
            start, end = self._argument(info.start), self._argument(info.end)
            sizes = [end - start if d == info.dim else n for d, n in enumerate(layout.sizes)]
            offset = layout.offset + start * layout.strides[info.dim]
            return Layout(tuple(sizes), layout.strides, offset)
        if hasattr(info, "storage_offset"):
            # Counted from the start of the traced storage, of which we have a part.
            start = self.sizes.index(base.meta["val"].storage_offset())
            offset = layout.offset + self._argument(info.storage_offset) - start
            shape, strides = (tuple(map(self._argument, x)) for x in (info.size, info.stride))
            return Layout(shape, strides, offset)
        return layout

    def _held(self, n: Node, value: Any, results: Sequence[TensorMeta | None]) -> Any:
        """What a node is: contents, where it is one tensor."""
        if not isinstance(value, Value):
            return value
        held, meta = self._contents(n), results[0]
        assert meta is not None
        layout = Layout(meta.sizes, meta.strides)
        self.builder.replace(held, value, layout, len(n.users), n in self.stored)
        return held

    def _lay_out(self, n: Node, args: list[Any]) -> None:
        """Prepares `as_strided`, which speaks of memory: that has to be laid out as the graph's
        maker saw it, all of it that the op may reach."""
        base = n.args[0]
        assert isinstance(base, Node)
        maker = self.first[memory_of(base)]
        if maker.op != "call_function":
            stored = self._laid_out(base, args[0])  # around it is more of what was given
        elif not _is_all(maker):
            raise CannotLower(f"{n.target} of memory of which the graph has a part")
        else:
            whole = self._laid_out(maker, self.builder.current(self.env[maker]))
            part = whole if maker is base else self._part_of(whole, maker, base)
            if part is None:
                raise CannotLower(f"{n.target} of other numbers' memory")
            stored = part
        args[0] = stored
        schema: Any = getattr(n.target, "_schema", None)
        offset = len(schema.arguments) - 1
        if len(args) > offset and args[offset] is not None:
            # Counted from the start of the traced storage, of which we have a part.
            start = self.sizes.index(base.meta["val"].storage_offset())
            args[offset] = args[offset] - start + stored.layout.offset

    def _laid_out(self, n: Node, value: Value) -> Stored:
        (meta,) = self._results(n)
        assert meta is not None
        return self.builder.laid_out(value, Layout(meta.sizes, meta.strides))

    def _effect(self, n: Node) -> list[Any]:
        """A call for what it does (a check that raises), with its results if it has some; tokens
        only keep the order of such calls, which a program keeps anyway."""
        target, *rest = n.args[1:]
        given = [self._argument(a) for a in rest]
        named = {k: self._argument(a) for k, a in n.kwargs.items()}
        if any(isinstance(x, list | tuple) for x in n.meta["val"]):
            raise CannotLower(f"{target} has an effect, and gives a list")
        found = self.builder.call(target, given, named, self._results(n)[1:], "effect")
        many = found if isinstance(found, list) else [found]
        return [None, *(many or [None])]

    def _copy_into(self, n: Node) -> Contents:
        """A write to an input, or to a view of one."""
        assert isinstance(n.args[0], Node)
        target = self.env[n.args[0]]
        place = self.builder.current(target)
        owner = target if target.home is not None else self.given.get(target.memory)
        if owner is None or not isinstance(place, Stored):
            raise CannotLower(f"{n.target} writes what is no input")
        value = self._argument(n.args[1])
        self.builder.write(owner, place.dtype, place.layout, value, users=1)
        if owner.value is not None:
            self.builder.flush(owner)
        return target

    # Results

    def _output(self, n: Node) -> None:
        numbers: dict[Any, int] = {}
        for k, item in enumerate(n.args[0]):  # type: ignore[arg-type]
            held = self.env[item] if isinstance(item, Node) else item
            if isinstance(held, torch.SymFloat):
                number = self.sizes.number(held)
                self.outputs.append(Float(list(self.sizes.floats.values()).index(number)))
                continue
            if not isinstance(held, Contents):
                self.outputs.append(held)
                continue
            stored = self._view_of(self.views[k], item) if k in self.views else None
            if k in self.views and stored is None and self.sizes.sources:
                view = view_of_argument(self.views[k], item, self.sizes.index)
                if view is not None:
                    self.outputs.append(view)
                    continue
                stored = self._view_of(self.views[k], item, as_traced=True)
                if stored is None:
                    raise CannotLower("a view of an argument whose place is not known")
            if self.program.standalone:
                stored = self._own_result(k, held)
            elif stored is None:
                maker = self.makers.get(memory_of(item), item)
                whole = self._owned(maker)
                stored = whole if maker is item else self._part_of(whole, maker, item)
                base, ops = viewed(item)
                if stored is None and base is maker:
                    found = self._number(numbers, maker, whole)
                    self.outputs.append(view_of_output(found, ops, self.sizes.index))
                    continue
                stored = stored or self._owned(item)
            self.outputs.append(Output(self._number(numbers, item, stored)))

    def _number(self, numbers: dict[Any, int], item: Node, stored: Stored) -> int:
        """The number of an output. Views of equal layout are tensors of their own: each may get
        another shape in place."""
        key = (item, stored.buffer, stored.layout)
        if key not in numbers:
            numbers[key] = len(self.program.outputs)
            self.program.outputs.append(stored)
        return numbers[key]

    def _owned(self, n: Node) -> Stored:
        """A node in memory. It is shared exactly where the graph's own tensors share it: what lies
        in an argument's is copied once, whoever asks."""
        if n not in self.owned:
            (meta,) = self._results(n)
            assert meta is not None
            value = self.builder.current(self.env[n])
            layout = Layout(meta.sizes, meta.strides)
            self.owned[n] = self.builder.own(memory_of(n), value, layout)
        return self.owned[n]

    def _part_of(self, whole: Stored, maker: Node, item: Node) -> Stored | None:
        """`item`, a view, in the memory of what it is a view of: by the layout that the trace has,
        whatever the ops between them compute. None where that may not lie within."""
        (meta,), made, seen = self._results(item), maker.meta["val"], item.meta["val"]
        if meta is None or meta.dtype not in TABLE or not _is_view(item, maker):
            return None
        if seen.is_conj() is not made.is_conj() or seen.is_neg() is not made.is_neg():
            return None  # a plan has no bit for it: its numbers are computed
        first = self.sizes.index(made.storage_offset()) - whole.layout.offset
        if made.dtype.itemsize != seen.dtype.itemsize and first != 0:
            return None
        start = self.sizes.index(seen.storage_offset()) - first
        return Stored(whole.buffer.seen_as(meta.dtype), Layout(meta.sizes, meta.strides, start))

    def _own_result(self, k: int, held: Contents) -> Stored:
        """Result `k`, dense, in memory that nothing else is in."""
        value = self.builder.current(held)
        nbytes = product(value.sizes) * value.dtype.itemsize
        return self.builder.own(("result", k), value, Layout.contiguous(value.sizes), nbytes)

    def _view_of(self, argument: int, item: Node, as_traced: bool = False) -> Stored | None:
        """The argument's memory with the layout of `item`, where that lies within it; `as_traced`:
        even if the trace may have what the argument becomes elsewhere."""
        placeholder = self.module.graph.find_nodes(op="placeholder")[argument]
        given, meta = self.env[placeholder], self._results(item)[0]
        if not isinstance(given, Contents) or meta is None or given.home is None:
            return None
        held = given.layout
        if given.home.dtype is not meta.dtype or held is None:
            return None
        base, seen = placeholder.meta["val"], item.meta["val"]
        if seen.is_conj() is not base.is_conj() or seen.is_neg() is not base.is_neg():
            return None
        if self.sizes.sources and not as_traced and viewed(item)[0] is not placeholder:
            return None
        start = self.sizes.index(seen.storage_offset()) - self.sizes.index(base.storage_offset())
        layout = Layout(meta.sizes, meta.strides, start)
        if not less(layout.span(), held.span() + 1):
            return None
        return Stored(given.home, layout)


def _is_all(n: Node) -> bool:
    """Whether a node's tensor reaches over all of its memory. That of a scatter is a copy of its
    argument's, around what this shows as well, of which a trace knows nothing."""
    if known_of(n.target).of_memory and not _is_all(n.args[0]):  # type: ignore[arg-type]
        return False
    t = n.meta["val"]
    span = 1 + sum((n - 1) * k for n, k in zip(t.shape, t.stride(), strict=True))
    fills = span * t.itemsize == t.untyped_storage().nbytes()
    return statically_known_true(t.storage_offset() == 0) and statically_known_true(fills)


def _is_view(n: Node, base: Node) -> bool:
    """Whether a node is a view of another one, by ops that stay within what they are given."""
    while n is not base:
        if n.target is operator.getitem:
            (n, _) = n.args  # type: ignore[assignment]
        above = n.args[0] if n.args else None
        if known_of(n.target).of_memory or not isinstance(above, Node):
            return False
        n = above
    return True


def _changed_in_place(nodes: Sequence[Node], order: Mapping[Node, int]) -> dict[Node, int | None]:
    """The ops that may write part of an input where it lies, with that input's memory.

    A function that writes x[0] = a and x[1] = b is traced as y = select_scatter(x, a, 0),
    z = select_scatter(y, b, 1) and, at the end, copy_(x, z). If nobody reads the x of before once y
    is made, nor y once z is, both can be x itself.
    """
    sharing: dict[int | None, list[Node]] = {}
    for n in nodes:
        sharing.setdefault(memory_of(n), []).append(n)
    found: dict[Node, int | None] = {}

    def step(c: Node) -> int:
        """When an op of a chain writes."""
        return order[c.args[0]] if changed_base(c) is not None else order[c]  # type: ignore[index]

    for copy in nodes:
        if copy.target is not torch.ops.aten.copy_.default:
            continue
        held = memory_of(copy.args[0])  # type: ignore[arg-type]
        chain = _changes(copy.args[1], sharing[held])
        # What is overwritten: the input, and what each op of the chain makes of it.
        versions = {held: -1} | {memory_of(c): step(c) for c in chain or ()}
        if chain and not any(
            user is not copy
            and any(made < step(c) < order[user] for c in chain)
            and not _reads_newest(user, n, held, chain)
            for memory, made in versions.items()
            for n in sharing[memory]
            for user in n.users
        ):
            found.update((c, held) for c in chain)
    return found


def _changes(x: Any, start: Sequence[Node]) -> list[Node] | None:
    """The ops, each of which changes part of what the one before makes, that `x` is made by from a
    node of `start`; None where it is made in another way."""
    if (base := changed_base(x)) is not None:
        before = _changes(base, start)
        return None if before is None else [*before, x]
    if not isinstance(x, Node) or not known_of(x.target).partial:
        return [] if isinstance(x, Node) and x in start else None
    before = _changes(x.args[0], start)
    if before is None:
        return None
    # The new part may be the old one with changes: x[0][1] = a puts x[0] back when it is changed.
    return [*before, *(_changes(x.args[1], start) or ()), x]


def _reads_newest(user: Node, n: Node, held: int | None, chain: Sequence[Node]) -> bool:
    """Whether the user of `n`, whose memory is overwritten, is right to see the newest contents:
    the next op of the chain, a view, and the result that is the input itself."""
    if user in chain:
        return user.args[0] is n or (n in chain and user.args[1] is n)
    memory = memory_of(n)
    return memory_of(user) == memory or (user.op == "output" and memory == held)
