"""From an FX graph of ATen ops to a program."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch.fx import GraphModule, Node

from torch_tenon.ir.index import Index, Symbol, floordiv, less, mod, product, var
from torch_tenon.ir.program import Program
from torch_tenon.ir.values import Layout, Lazy, Storage, Stored, Value, name_origin, set_hint, weigh
from torch_tenon.ops.lowerings import load_all
from torch_tenon.ops.lowerings.table import (
    PARTIAL,
    RANDOM,
    WHOLE,
    Build,
    CannotLower,
    TensorMeta,
    broadcast_to,
    cast,
    find,
)

with_effects = torch.ops.higher_order.with_effects
log = logging.getLogger("torch_tenon.program")


@dataclass
class BuiltGraph:
    """A program with how its inputs and outputs stand in the graph's."""

    program: Program
    tensor_inputs: list[int]  # positions of tensors among the graph's placeholders
    size_sources: list[SizeSource]
    outputs: list[Any]  # an output number, or a constant, or an Index
    fallbacks: dict[str, str]  # op and why it is a call


@dataclass(frozen=True)
class SizeSource:
    """Where a run-time size comes from: argument number `argument`, or its dimension `dim`, or,
    with neither, the value of `expression` in the sizes before it."""

    expression: Any
    argument: int = -1
    dim: int = -1


class SizeTable:
    """Run-time sizes of a graph: PyTorch's symbolic integers as index expressions."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.known: dict[sympy.Expr, Index] = {}
        self.sources: list[SizeSource] = []

    def define(self, source: SizeSource, hint: int) -> None:
        """Enters a size that comes with the arguments."""
        if source.expression in self.known or not isinstance(source.expression, sympy.Symbol):
            return
        self._add(source, hint)

    def _add(self, source: SizeSource, hint: int) -> Index:
        symbol = Symbol(f"n{len(self.sources)}", None, 2)
        set_hint(symbol, hint)
        self.program.sizes.append(symbol)
        self.sources.append(source)
        self.known[source.expression] = var(symbol)
        return self.known[source.expression]

    def index(self, x: Any) -> Index:
        """A size, symbolic or not, as an index."""
        if isinstance(x, torch.SymInt):
            x = x.node.expr
        if isinstance(x, int):
            return x
        return self._convert(x)

    def _convert(self, e: sympy.Expr) -> Index:
        found = self.known.get(e)
        if found is None:
            found = self.known[e] = self._compute(e)
        return found

    def _compute(self, e: sympy.Expr) -> Index:
        if isinstance(e, sympy.Integer) or e.is_Integer:
            return int(e)
        total: Index
        if isinstance(e, sympy.Add):
            total = 0
            for a in e.args:
                total = total + self._convert(a)
            return total
        if isinstance(e, sympy.Mul):
            total = 1
            for a in e.args:
                total = total * self._convert(a)
            return total
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
            return product([self._convert(e.base)] * int(e.exp))
        name = type(e).__name__
        if name in ("FloorDiv", "CleanDiv"):
            return floordiv(self._convert(e.args[0]), self._convert(e.args[1]))
        if name in ("Mod", "PythonMod"):
            return mod(self._convert(e.args[0]), self._convert(e.args[1]))
        if isinstance(e, sympy.Symbol):
            raise CannotLower(f"the size {e} is known only once data is")
        # Anything else (a maximum, say) becomes a size of its own, computed before the run.
        return self._add(SizeSource(e), 64)


def build(
    module: GraphModule, threads: int = 2, views: Mapping[int, int] | None = None
) -> BuiltGraph:
    """The program of a functional graph whose nodes carry fake tensors in `meta["val"]`.

    `views` are the results that the caller makes anew, as views of an argument: it asks for their
    layouts alone. Raises NotImplementedError for a graph with sizes that depend on data.
    """
    load_all()
    try:
        return _Builder(module, threads, views or {}).build()
    except CannotLower as reason:
        raise NotImplementedError(str(reason)) from reason


class _Builder:
    def __init__(self, module: GraphModule, threads: int, views: Mapping[int, int]) -> None:
        self.module, self.threads, self.views = module, threads, views
        self.program = Program()
        self.sizes = SizeTable(self.program)
        self.env: dict[Node, Any] = {}
        self.readers: dict[Storage, list[tuple[Node, Lazy]]] = {}
        self.order: dict[Node, int] = {}
        self.tensor_inputs: list[int] = []
        self.fallbacks: dict[str, str] = {}
        self.outputs: list[Any] = []

    def build(self) -> BuiltGraph:
        nodes = list(self.module.graph.nodes)
        self.order = {n: k for k, n in enumerate(nodes)}
        self.shared = _memory_of_several(nodes)
        self.in_place = _changed_in_place(nodes, self.order)
        self._placeholders([n for n in nodes if n.op == "placeholder"])
        for n in nodes:
            if n.op == "get_attr":
                self.env[n] = self._attribute(n)
            elif n.op == "call_function":
                self.env[n] = self._call(n)
            elif n.op == "output":
                self._output(n)
        return BuiltGraph(
            self.program, self.tensor_inputs, self.sizes.sources, self.outputs, self.fallbacks
        )

    def _placeholders(self, nodes: Sequence[Node]) -> None:
        for k, n in enumerate(nodes):
            value = n.meta.get("val")
            if isinstance(value, torch.SymInt):
                self.sizes.define(SizeSource(value.node.expr, k), _hint(value))
        for k, n in enumerate(nodes):
            value = n.meta.get("val")
            if isinstance(value, torch.Tensor):
                for d, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt):
                        self.sizes.define(SizeSource(size.node.expr, k, d), _hint(size))
        for k, n in enumerate(nodes):
            value = n.meta.get("val")
            if _is_token(n):
                self.env[n] = None
            elif isinstance(value, torch.Tensor):
                meta = self._meta(value)
                self.env[n] = self.program.input(meta.dtype, Layout(meta.sizes, meta.strides))
                self.tensor_inputs.append(k)
            elif isinstance(value, torch.SymInt):
                self.env[n] = self.sizes.index(value)
            else:
                self.env[n] = value

        if any(str(n.target).rpartition(".")[0] in RANDOM for n in self.order):
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
        return self.program.constant(found.detach().cpu())

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
            return self.env[x]
        if isinstance(x, list | tuple):
            return [self._argument(y) for y in x]
        if isinstance(x, torch.SymInt):
            return self.sizes.index(x)
        return x

    def _call(self, n: Node) -> Any:
        if n.target is operator.getitem:
            return self.env[n.args[0]][n.args[1]]  # type: ignore[index]
        if n.target is with_effects:
            return self._effect(n.args, n.kwargs)
        value = n.meta.get("val")
        if isinstance(value, torch.SymInt | int) and not isinstance(value, bool):
            return self.sizes.index(value)
        args = [self._argument(a) for a in n.args]
        keywords = {k: self._argument(a) for k, a in n.kwargs.items()}
        name = str(n.target)
        self.program.origin = name.removeprefix("aten.").partition(".")[0]
        if name.startswith("aten.copy_."):
            return self._write(n, args[0], args[1])
        if name.startswith("aten.as_strided") and isinstance(args[0], Value):
            # It speaks of memory: that has to be laid out as the graph's maker saw it.
            assert isinstance(n.args[0], Node)
            meta = self._results(n.args[0])[0]
            assert meta is not None
            stored = self._as_described(self.program.current(args[0]), meta, n.args[0])
            schema: Any = getattr(n.target, "_schema", None)
            offset = len(schema.arguments) - 1
            args[0] = stored
            if len(args) > offset and args[offset] is not None:
                # Counted from the start of the traced storage, of which we have a part.
                start = self.sizes.index(n.args[0].meta["val"].storage_offset())
                args[offset] = args[offset] - start + stored.layout.offset
        if name == "aten.sym_numel.default" or isinstance(value, torch.SymFloat | torch.SymBool):
            raise CannotLower(f"{name} gives a symbolic {type(value).__name__}")
        if n in self.in_place:
            args[0] = self.program.current(args[0])
            self.program.taken = args[0].buffer.storage
            self._keep_old(n, self.program.taken)
        result = self._lower(n, args, keywords)
        self.program.taken = None
        name_origin(result, self.program.origin)
        self._weigh(n, result)
        return result

    def _lower(self, n: Node, args: list[Any], keywords: dict[str, Any]) -> Any:
        name = str(n.target)
        function = find(n.target)
        try:
            results = self._results(n)
            if function is None:
                raise CannotLower("no lowering")
            for v in _values(args) + _values(list(keywords.values())):
                if v.dtype.is_complex and name not in WHOLE:
                    raise CannotLower("complex numbers")
            keywords = {
                k: v
                for k, v in keywords.items()
                if k not in ("device", "layout", "pin_memory", "memory_format", "non_blocking")
            }
            return function(Build(self.program, results, self.threads), *args, **keywords)
        except CannotLower as reason:
            self.fallbacks[name] = str(reason)
            return self._fallback(n, args, keywords)

    def _fallback(self, n: Node, args: list[Any], keywords: dict[str, Any]) -> Any:
        log.debug("%s is a call: %s", n.target, self.fallbacks[str(n.target)])
        schema = getattr(n.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise NotImplementedError(f"{n.target} writes its arguments inside a compiled graph")
        keywords = {k: self._argument(a) for k, a in n.kwargs.items()}
        if keywords.get("device") is not None:
            keywords["device"] = torch.device("cpu")
        build_ = Build(self.program, self._results(n), self.threads)
        results = build_.call(n.target, args, keywords, "fallback")
        value = n.meta.get("val")
        return list(results) if isinstance(value, list | tuple) else results[0]

    def _effect(self, args: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """A call for what it does (a check that raises); tokens only keep the order of such calls,
        which a program keeps anyway."""
        target, *rest = args[1:]
        call = Build(self.program, [], self.threads).call
        call(
            target,
            [self._argument(a) for a in rest],
            {k: self._argument(a) for k, a in keywords.items()},
            "effect",
        )
        return [None, None]

    def _weigh(self, n: Node, result: Any) -> None:
        if isinstance(result, Lazy):
            if n in self.shared or weigh(result, len(n.users)):
                meta = self._results(n)[0]
                self.program.realise(result, None if meta is None else meta.strides)
                return
            for b in result.reads:
                self.readers.setdefault(b.storage, []).append((n, result))

    def _write(self, n: Node, target: Any, value: Value) -> Value:
        current = self.program.current(target)
        if not isinstance(current, Stored):
            # A tensor of the graph's own: nobody outside sees its memory.
            assert isinstance(n.args[0], Node)
            self.env[n.args[0]] = expanded = broadcast_to(cast(value, target.dtype), target.sizes)
            return expanded
        if isinstance(value, Stored) and value.buffer is current.buffer:
            return self.program.write(current, value)
        self._keep_old(n, current.buffer.storage, value)
        source = cast(value, current.dtype, rounding=True)
        return self.program.write(current, broadcast_to(source, current.sizes))

    def _keep_old(self, n: Node, storage: Storage, writing: Value | None = None) -> None:
        """Computes what is needed after `n`, which is about to overwrite what it is made of."""
        for reader, lazy in self.readers.pop(storage, ()):
            if lazy is not writing and any(self.order[u] > self.order[n] for u in reader.users):
                self.program.realise(lazy)

    def _output(self, n: Node) -> None:
        numbers: dict[Any, int] = {}
        # Memory is shared between inputs and outputs exactly where the graph's own tensors share.
        owners: dict[Storage, int | None] = {}
        for p in self.module.graph.find_nodes(op="placeholder"):
            if isinstance(self.env[p], Stored):
                owners[self.env[p].buffer.storage] = memory_of(p)
        for k, item in enumerate(n.args[0]):  # type: ignore[arg-type]
            value = self.env[item] if isinstance(item, Node) else item
            seen = self._view_of(self.views[k], item) if k in self.views else None
            if not isinstance(value, Value):
                self.outputs.append(value)
                continue
            assert isinstance(item, Node)
            meta = self._results(item)[0]
            assert meta is not None
            stored = seen or self._as_described(self.program.current(value), meta, item)
            storage, owner = stored.buffer.storage, memory_of(item)
            if seen is None and (
                owners.setdefault(storage, owner) != owner or storage.kind == "constant"
            ):
                stored = self.program.copy(stored, meta.strides)
                owners[stored.buffer.storage] = owner
            key = (stored.buffer, stored.layout)
            if key not in numbers:
                numbers[key] = len(self.program.outputs)
                self.program.outputs.append(stored)
            self.outputs.append(Output(numbers[key]))

    def _view_of(self, argument: int, item: Node) -> Stored | None:
        """The argument's memory with the layout of `item`, where that lies within it."""
        placeholder = self.module.graph.find_nodes(op="placeholder")[argument]
        given, meta = self.env[placeholder], self._results(item)[0]
        if not isinstance(given, Stored) or meta is None or given.dtype is not meta.dtype:
            return None
        base, seen = placeholder.meta["val"], item.meta["val"]
        start = self.sizes.index(seen.storage_offset()) - self.sizes.index(base.storage_offset())
        layout = Layout(meta.sizes, meta.strides, given.layout.offset + start)
        if not less(layout.span(), given.layout.span() + 1):
            return None
        return Stored(given.buffer, layout)

    def _as_described(self, value: Value, meta: TensorMeta, item: Node) -> Stored:
        """Memory with exactly the strides that the graph's reader expects."""
        if product(meta.sizes) == 0:
            return self.program.temporary(meta.dtype, Layout(meta.sizes, meta.strides))
        stored = self.program.realise(value, meta.strides)
        same = all(
            a == b or n == 1
            for a, b, n in zip(stored.layout.strides, meta.strides, meta.sizes, strict=True)
        )
        if same and stored.layout.sizes == meta.sizes:
            return Stored(stored.buffer, Layout(meta.sizes, meta.strides, stored.layout.offset))
        layout = Layout(meta.sizes, meta.strides)
        target = self.program.temporary(stored.dtype, layout)
        self.program._fill(target, stored)
        return target


def _memory_of_several(nodes: Sequence[Node]) -> set[Node]:
    """Nodes whose memory several results are views of: as in eager code, they share it."""
    (output,) = (n for n in nodes if n.op == "output")
    results = dict.fromkeys(n for n in output.args[0] if isinstance(n, Node))  # type: ignore[union-attr]
    count = Counter(memory_of(n) for n in results)
    makers: dict[int | None, Node] = {}
    for n in nodes:
        if n.op == "call_function":
            makers.setdefault(memory_of(n), n)
    return {n for m, n in makers.items() if m is not None and count[m] > 1}


def _changed_in_place(nodes: Sequence[Node], order: Mapping[Node, int]) -> set[Node]:
    """The ops that may change part of an input where it lies: the graph copies their result back
    to it, and nobody reads in between what it held before."""
    aliases: dict[int | None, list[Node]] = {}
    for n in nodes:
        aliases.setdefault(memory_of(n), []).append(n)
    found: set[Node] = set()
    for copy in nodes:
        if copy.target is not torch.ops.aten.copy_.default:
            continue
        held = memory_of(copy.args[0])  # type: ignore[arg-type]
        chain: list[Node] = []

        def changes(x: Any, held: int | None = held, chain: list[Node] = chain) -> bool:
            """Whether x is the input's memory, or that with changes, which join the chain."""
            if isinstance(x, Node) and str(x.target).rpartition(".")[0] in PARTIAL:
                if not changes(x.args[0]):
                    return False
                changes(x.args[1])  # a part that was changed before it is put back
                chain.append(x)
                return True
            return isinstance(x, Node) and x in aliases[held]

        if not changes(copy.args[1]):
            continue
        versions = [(-1, held), *((order[c], memory_of(c)) for c in chain)]
        if not any(
            order[u] > order[c] > made
            and u is not copy
            and not _moves_on(u, n, memory, held, chain)
            for made, memory in versions
            for n in aliases[memory]
            for u in n.users
            for c in chain
        ):
            found.update(chain)
    return found


def _moves_on(
    u: Node, n: Node, memory: int | None, held: int | None, chain: Sequence[Node]
) -> bool:
    """Whether the user of an older version takes the newest for it, as the chain's ops do."""
    if u in chain:
        return u.args[0] is n or (n in chain and u.args[1] is n)
    return memory_of(u) == memory or (u.op == "output" and memory == held)


def memory_of(node: Node) -> int | None:
    """What tells whether two nodes of a trace share memory; None for a node without."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _is_token(n: Node) -> bool:
    """Whether a placeholder is only there to order calls that have effects."""
    return any(u.target is with_effects and u.args[0] is n for u in n.users)


def _hint(size: torch.SymInt) -> int:
    """A typical value of a symbolic size."""
    hint = size.node.hint
    return 64 if hint is None else int(hint)


@dataclass(frozen=True)
class Output:
    """The position of a tensor among the program's outputs."""

    number: int


def _values(x: Any) -> list[Value]:
    if isinstance(x, Value):
        return [x]
    if isinstance(x, list | tuple):
        return [v for y in x for v in _values(y)]
    return []
