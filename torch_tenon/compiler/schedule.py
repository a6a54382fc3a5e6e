"""From a program's nodes to an ordered list of kernels and calls.

Nodes are taken in the program's order. Each one starts a group of its own, which then absorbs the
groups that it reads from (vertical fusion) and those that read what it reads (horizontal fusion),
where loops can be aligned and every dependency inside the kernel stays within one iteration. The
groups keep an order in which they may run at all times, so whether a merge closes a cycle is a
comparison of positions and never a search; the cost is near-linear in the number of nodes.

A kernel's loops are `outer` and `inner` (empty when nothing is reduced). Members are of two levels:
`full` ones run for each (outer, inner) position, `row` ones once per outer position. The stages of
a kernel alternate: full members of pass 0, row members of stage 0, full members of pass 1, and so
on; row members of stage -1 come first. A softmax is one kernel of three passes over each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from torch_tenon.compiler.backend import Backend
from torch_tenon.compiler.joined_loops import collapse, refine, simplify
from torch_tenon.ir.index import (
    Index,
    Symbol,
    floordiv,
    mod,
    never_meet,
    product,
    strides,
    substitute,
    symbols,
    var,
)
from torch_tenon.ir.program import Extern, Loop, Matmul, Node, Program
from torch_tenon.ir.values import Buffer, Storage, Stored, size_hint

RECENT_READERS = 3

#: How two groups touch one buffer: each one's index, and whether that is one per outer position.
Pair = tuple[Index, Index, bool, bool]


@dataclass
class Member:
    """A loop node inside a kernel, with its loop variables expressed in the kernel's."""

    node: Loop
    values: dict[Symbol, Index]
    full: bool
    stage: int = 0
    loads: list[tuple[Buffer, Index]] = field(default_factory=list)
    index: Index = 0

    @classmethod
    def of(cls, node: Loop, values: dict[Symbol, Index], full: bool) -> Member:
        """The node with its loop variables replaced by `values`."""
        loads = [(s.args[0], substitute(s.args[1], values)) for s in node.loads]
        return cls(node, values, full, 0, loads, substitute(node.index, values))

    @property
    def result_is_row(self) -> bool:
        """Whether what the member stores is one element per outer position."""
        return not self.full or self.node.kind == "reduce"


@dataclass(eq=False)
class Group:
    """A kernel in the making, or one call on whole tensors.

    `prologue` are loops over an operand of its product, which is computed as it is read.
    """

    position: int
    members: list[Member] = field(default_factory=list)
    outer: list[Symbol] = field(default_factory=list)
    inner: list[Symbol] = field(default_factory=list)
    call: Extern | None = None
    prologue: list[Loop] = field(default_factory=list)

    def nodes(self) -> Iterator[Node]:
        """The nodes that run here."""
        if self.call is not None:
            yield self.call
        yield from self.prologue
        for m in self.members:
            yield m.node

    def symbols(self) -> list[Symbol]:
        """The loops from the outermost."""
        return self.outer + self.inner


@dataclass
class Schedule:
    """The groups in the order in which they run, and why fusions did not happen.

    `needs` says which nodes have to run before a node, `home` in which group a node is.
    """

    groups: list[Group]
    rejected: list[tuple[str, str, str]]
    needs: dict[Node, list[Node]]
    home: dict[Node, Group]

    def apart(self, group: Group) -> list[Group]:
        """Takes the prologue from a group: groups that run before it, in any order."""
        why = "the target has no kernel of both"
        found = []
        for loop in group.prologue:
            found.append(_alone(loop, group.position))
            self.home[loop] = found[-1]
            self.rejected.append((loop.name, group.members[0].node.name, why))
        group.prologue = []
        return found


def schedule(program: Program, backend: Backend) -> Schedule:
    """Drops dead nodes, fuses what the backend makes kernels of, and orders what remains."""
    nodes = _live(program)
    scheduler = _Scheduler(nodes, backend)
    for number, node in enumerate(_ordered(nodes, scheduler.needs)):
        node.number = number  # by which the members of a kernel are in this order too
        scheduler.place(node)
    groups = sorted(scheduler.alive, key=lambda g: g.position)
    return Schedule(groups, scheduler.rejected, scheduler.needs, scheduler.group)


def _alone(node: Loop, position: int) -> Group:
    """A kernel of one loop."""
    own: dict[Symbol, Index] = {s: var(s) for s in node.outer + node.inner}
    return Group(position, [Member.of(node, own, True)], node.outer, node.inner)


def _live(program: Program) -> list[Node]:
    """The nodes that an output, or a write to memory that outlives the program, needs."""
    wanted: set[Buffer] = {o.buffer.base for o in program.outputs}
    for s in program.storages:
        if s.kind in ("input", "constant") and s.current is not None:
            wanted.add(s.current)
    kept: list[Node] = []
    for node in reversed(program.nodes):
        impure = node.asserts if isinstance(node, Loop) else _is_effect(node)
        if impure or any(b in wanted for b in node.outputs):
            kept.append(node)
            wanted.update(node.reads)
            for b in node.outputs:
                if b.previous is not None:
                    wanted.add(b.previous)
    return kept[::-1]


def _is_effect(node: Node) -> bool:
    return isinstance(node, Extern) and node.route == "effect"


def dependencies(node: Node, live: set[Node]) -> list[Node]:
    """The nodes that have to run before `node`: writers of what it reads, and, for a write in
    place, whoever read or wrote the version that it replaces (an order without data)."""
    found: dict[Node, None] = {}
    for b in node.reads:
        if b.writer is not None:
            found[b.writer] = None
    for b in node.outputs:
        if b.previous is not None:
            if b.previous.writer is not None:
                found[b.previous.writer] = None
            for reader in b.previous.readers:
                found[reader] = None
    found.pop(node, None)
    return [d for d in found if d in live]


def _ordered(nodes: list[Node], needs: dict[Node, list[Node]]) -> list[Node]:
    """The nodes in their order, but each after what it needs: a value that was computed late may
    read a version of memory that a node before it replaces.

    Raises AssertionError for nodes that need each other.
    """
    placed: dict[Node, None] = {}
    for start in nodes:
        pending = [(start, iter(needs[start]))]
        open_nodes = {start}
        while pending and start not in placed:
            node, rest = pending[-1]
            missing = next((d for d in rest if d not in placed), None)
            if missing is None:
                placed[node] = None
                open_nodes.discard(node)
                pending.pop()
            else:
                assert missing not in open_nodes, f"{node} and {missing} need each other"
                open_nodes.add(missing)
                pending.append((missing, iter(needs[missing])))
    return list(placed)


class _Scheduler:
    def __init__(self, nodes: list[Node], backend: Backend) -> None:
        self.backend = backend
        live = set(nodes)
        self.needs = {n: dependencies(n, live) for n in nodes}
        self.users: dict[Node, list[Node]] = {n: [] for n in nodes}
        for n, needs in self.needs.items():
            for d in needs:
                self.users[d].append(n)
        self.group: dict[Node, Group] = {}
        self.alive: dict[Group, None] = {}
        self.readers: dict[Buffer, list[Node]] = {}
        self.rejected: list[tuple[str, str, str]] = []

    def place(self, node: Node) -> None:
        """Gives the node a group and lets that group absorb others."""
        position = len(self.group)
        if isinstance(node, Extern):
            self._keep(Group(position, call=node))
            return
        assert isinstance(node, Loop)
        if not isinstance(node, Matmul):  # its rows and columns stay apart
            node = collapse(simplify(node), self.backend.capabilities.rank)
        group = _alone(node, position)
        self._keep(group)
        producers = {self.group[d]: None for d in self.needs[node]}
        for other in sorted(producers, key=lambda g: -g.position):
            if other in self.alive:
                group = self._try(other, group)
        tried: set[Group] = set()
        for b in node.reads:
            for reader in self.readers.get(b, ())[-RECENT_READERS:]:
                other = self.group[reader]
                if other is not group and other in self.alive and other not in tried:
                    tried.add(other)
                    group = self._try(other, group)
        for b in node.reads:
            self.readers.setdefault(b, []).append(node)

    def _keep(self, group: Group) -> None:
        self.alive[group] = None
        for n in group.nodes():
            self.group[n] = group

    def _try(self, first: Group, second: Group) -> Group:
        """The two groups as one where that is possible, else `second`."""
        position = self._joint_position(first, second)
        if position is None:
            return self._reject(first, second, "something between them depends on the first")
        merged = fuse(first, second, self.backend)
        if isinstance(merged, str):
            return self._reject(first, second, merged)
        merged.position = position
        del self.alive[first], self.alive[second]
        self._keep(merged)
        return merged

    def _reject(self, first: Group, second: Group, why: str) -> Group:
        if first.call is None:
            name = first.members[-1].node.name
            self.rejected.append((name, second.members[-1].node.name, why))
        return second

    def _joint_position(self, first: Group, second: Group) -> int | None:
        """A position at which both may run, if there is one."""
        low, high = sorted((first, second), key=lambda g: g.position)
        both = (first, second)
        needs = (self.group[d] for n in high.nodes() for d in self.needs[n])
        if all(g in both or g.position < low.position for g in needs):
            return low.position
        users = (self.group[u] for n in low.nodes() for u in self.users[n] if u in self.group)
        if all(g in both or g.position > high.position for g in users):
            return high.position
        return None


def fuse(first: Group, second: Group, backend: Backend) -> Group | str:
    """One group with the members of both, or the reason why there is none."""
    if first.call is not None or second.call is not None:
        return "a call on whole tensors"
    if len(first.members) + len(second.members) > backend.most_members:
        return "the kernel would be too large"
    if any(m.node.kind == "scatter" for g in (first, second) for m in g.members):
        return "a scatter"
    if (matmul := _product_of(first, second)) is not None:
        return _with_prologue(first, second, matmul, backend)
    prologue = first.prologue + second.prologue
    vertical, horizontal = _shared(first, second)
    pairs = vertical + horizontal
    if not pairs:
        return "nothing shared"
    # One kernel of large groups that share little saves no traffic, and is larger than two.
    large = _iterations(first, second) > backend.launch_iterations
    written, read = (_sizeable(p, first, second) for p in (vertical, horizontal))
    if large and not written and not read:
        return "little shared"
    why = "different loops"
    most = backend.capabilities.rank
    for outer, inner, a, b, first_full, second_full in _alignments(first, second, pairs):
        if most is not None and len(outer) + len(inner) > most:
            why = "more loops than the target has"
            continue
        if large and not written and _apart(read, a, b):
            why = "other parts of what both read"
            continue
        members = _remap(first, a, first_full) + _remap(second, b, second_full)
        members.sort(key=lambda m: m.node.number)
        problem = backend.capabilities.parting([m.node for m in members])
        problem = problem or backend.fusion_problem(members)
        problem = problem or _overwritten(prologue, members)
        problem = problem or _stages(members, backend.most_buffers)
        if problem is None:
            return Group(0, members, outer, inner, prologue=prologue)
        why = problem
    return why


def _product_of(first: Group, second: Group) -> Matmul | None:
    """The product of the second group, where the first computes an operand of it."""
    made = {m.node.buffer.base for m in first.members}
    for m in second.members:
        if isinstance(m.node, Matmul) and not made.isdisjoint(m.node.reads):
            return m.node
    return None


def _with_prologue(first: Group, second: Group, matmul: Matmul, backend: Backend) -> Group | str:
    """The second group with the first as its prologue, or the reason why that is none."""
    loop = first.members[0].node
    if len(first.members) > 1 or loop.kind != "pointwise" or loop.asserts:
        return "more than a pointwise loop before a product"
    b = loop.buffer
    is_own = b.storage.kind == "temporary" and b.previous is None and b.storage.current is b
    if not is_own or any(r is not matmul for r in b.readers):
        return "somebody else reads the operand"
    if any(s.op == "check" for s in loop.trace):
        return "a check, which has to be made once"
    if (problem := backend.prologue_problem(loop, matmul)) is not None:
        return problem
    for operand in (matmul.left, matmul.right):
        if operand.buffer.base is b and operand_loops(loop, operand, operand.sizes) is None:
            return "the operand is read in other loops"
    problem = backend.capabilities.parting([loop, *(m.node for m in second.members)])
    problem = problem or _overwritten([loop], second.members)
    if problem is not None:
        return problem
    prologue = [*second.prologue, loop]
    return Group(0, second.members, second.outer, second.inner, prologue=prologue)


def _overwritten(prologue: Sequence[Loop], members: Sequence[Member]) -> str | None:
    """The reason why these members cannot run with a prologue, which reads its memory for each
    piece of the product again."""
    read = {b.storage for loop in prologue for b in loop.reads}
    if any(m.node.buffer.storage in read for m in members):
        return "it writes what the prologue reads"
    return None


def operand_loops(
    loop: Loop, operand: Stored, position: Sequence[Index]
) -> dict[Symbol, Index] | None:
    """The loops of what computes an operand, at a position in it. None where its memory is not gone
    through by what both are loops over."""
    if operand.buffer is not loop.buffer:
        return None
    along = [Symbol("d", n) for n in operand.sizes]
    index = operand.layout.index([0 if s.extent == 1 else var(s) for s in along])
    found = refine(loop.outer, [s for s in along if s.extent != 1], loop.index, index)
    if found is None:
        return None
    mine, theirs = found
    if substitute(loop.index, mine) != substitute(index, theirs):
        return None
    pieces: dict[Symbol, Index] = {}
    for d, at in zip(along, position, strict=True):
        for s, step in ((strides(theirs[d]) or {}) if d in theirs else {}).items():
            assert s.extent is not None
            pieces[s] = floordiv(at, step)
            if step * s.extent != d.extent:
                pieces[s] = mod(pieces[s], s.extent)
    return {s: substitute(e, pieces) for s, e in mine.items()}


def _sizeable(pairs: Sequence[Pair], first: Group, second: Group) -> list[Pair]:
    """Those by which the groups share more than a scalar or a row."""
    sizes = [size_hint(product(s.extent for s in g.symbols())) for g in (first, second)]
    found = []
    for pair in pairs:
        for e, size in zip(pair[:2], sizes, strict=True):
            steps = strides(e)
            if steps is None or 8 * size_hint(product(s.extent for s in steps)) >= size:
                found.append(pair)
                break
    return found


def _iterations(first: Group, second: Group) -> int:
    """Of the group that has fewer."""
    return min(size_hint(product(s.extent for s in g.symbols())) for g in (first, second))


def _apart(
    pairs: Sequence[Pair],
    first: dict[Symbol, Index],
    second: dict[Symbol, Index],
) -> bool:
    """Whether the groups read other parts of each buffer, as optimizers do of all gradients in one:
    together they would read from many more places at a time, and share none."""
    return all(
        never_meet(substitute(mine, first), substitute(other, second))
        for mine, other, _, _ in pairs
    )


def _remap(group: Group, values: dict[Symbol, Index], full: bool) -> list[Member]:
    """The group's members with its loops expressed in others'."""
    if all(v == var(s) for s, v in values.items()):
        # Their stages are set anew, so they must not be the same objects.
        return [
            Member(m.node, m.values, m.full and full, 0, m.loads, m.index) for m in group.members
        ]
    return [
        Member.of(m.node, {s: substitute(e, values) for s, e in m.values.items()}, m.full and full)
        for m in group.members
    ]


def _shared(first: Group, second: Group) -> tuple[list[Pair], list[Pair]]:
    """Index pairs with which both groups touch one buffer: that the first writes, that it reads.

    The flags say whether each index is one per outer position only.
    """
    touched: dict[Buffer, tuple[Index, bool]] = {}
    for m in first.members:
        for b, e in m.loads:
            touched.setdefault(b, (e, not m.full))
    for m in first.members:
        touched[m.node.buffer] = (m.index, m.result_is_row)
    written = {m.node.buffer for m in first.members}
    vertical: list[Pair] = []
    horizontal: list[Pair] = []
    seen: set[Buffer] = set()
    for m in second.members:
        for b, e in [*m.loads, (m.node.buffer, m.index)]:
            if b in touched and b not in seen:
                seen.add(b)
                mine, row = touched[b]
                item = (mine, e, row, not m.full)
                (vertical if b in written else horizontal).append(item)
        previous = m.node.buffer.previous
        if previous in touched:
            vertical.append((touched[previous][0], m.index, touched[previous][1], m.result_is_row))
    return vertical, horizontal


Alignment = tuple[list[Symbol], list[Symbol], dict[Symbol, Index], dict[Symbol, Index], bool, bool]


def _alignments(first: Group, second: Group, pairs: Sequence[Pair]) -> Iterator[Alignment]:
    """Ways to run both groups in the same loops."""
    a_all, b_all = first.symbols(), second.symbols()
    n, m = product(s.extent for s in a_all), product(s.extent for s in b_all)
    if n == m and bool(first.inner) == bool(second.inner):
        for a, b in _mappings(a_all, b_all, pairs):
            found = _split(first, second, a, b)
            if found is not None:
                yield (*found, a, b, True, True)
    elif n == m and first.inner:
        for a, b in _mappings(a_all, b_all, pairs):
            yield (*_parts(first, a), a, b, True, True)
    elif n == m and second.inner:
        for a, b in _mappings(a_all, b_all, pairs):
            yield (*_parts(second, b), a, b, True, True)
    elif first.inner and not second.inner and product(s.extent for s in first.outer) == m:
        for a, b in _mappings(first.outer, b_all, pairs):
            a = a | _inner_beside(a, first.inner)
            yield (*_parts(first, a), a, b, True, False)
    elif second.inner and not first.inner and product(s.extent for s in second.outer) == n:
        for a, b in _mappings(a_all, second.outer, pairs):
            b = b | _inner_beside(b, second.inner)
            yield (*_parts(second, b), a, b, False, True)


def _inner_beside(outer: dict[Symbol, Index], inner: list[Symbol]) -> dict[Symbol, Index]:
    """Inner loops as they are, but for those that the outer ones are expressed in now."""
    taken = {t for e in outer.values() for t in symbols(e)}
    return {s: var(Symbol("j", s.extent) if s in taken else s) for s in inner}


def _ordered_symbols(values: Index) -> list[Symbol]:
    steps = strides(values) or {}
    return sorted(steps, key=lambda s: -size_hint(steps[s]))


def _parts(group: Group, values: dict[Symbol, Index]) -> tuple[list[Symbol], list[Symbol]]:
    outer = [t for s in group.outer for t in _ordered_symbols(values[s])]
    inner = [t for s in group.inner for t in _ordered_symbols(values[s])]
    return outer, inner


def _split(
    first: Group, second: Group, a: dict[Symbol, Index], b: dict[Symbol, Index]
) -> tuple[list[Symbol], list[Symbol]] | None:
    """The aligned loops as outer and inner, if both groups agree on which are which. A scan goes
    along its dimension, so the inner loops have its order."""
    outer, inner = _parts(first, a)
    other_outer, other_inner = _parts(second, b)
    if set(outer) != set(other_outer) or set(inner) != set(other_inner):
        return None
    if inner != other_inner and _has_scan(second):
        return None if _has_scan(first) else (outer, other_inner)
    return outer, inner


def _has_scan(group: Group) -> bool:
    return any(m.node.kind == "scan" for m in group.members)


def _mappings(
    a: list[Symbol], b: list[Symbol], pairs: Sequence[Pair]
) -> Iterator[tuple[dict[Symbol, Index], dict[Symbol, Index]]]:
    """Common refinements of two lists of loops: first the plain one, then by shared indices."""
    if [s.extent for s in a] == [s.extent for s in b]:
        yield {s: var(s) for s in a}, {t: var(s) for s, t in zip(a, b, strict=True)}
    seen = 0
    for mine, other, _, _ in pairs:
        found = refine(a, b, mine, other)
        if found is not None:
            yield found
            seen += 1
            if seen == 2:
                return


def _stages(members: list[Member], most_buffers: int) -> str | None:
    """Sets each member's stage; a string says which dependency cannot be kept, or that the kernel
    would be too large."""
    writers: dict[Buffer, Member] = {}
    by_storage: dict[Storage, list[tuple[Member, Buffer, Index]]] = {}
    buffers: set[Buffer] = set()
    for m in members:
        stage = 0 if m.full else -1
        for b, e in m.loads:
            buffers.add(b)
            w = writers.get(b.base)
            if w is None:
                continue
            if w.index != e or w.node.buffer is not b:
                return f"{b} is read at another place than it is written"
            if not w.result_is_row:
                if not m.full:
                    return f"{b} is read once per row"
                stage = max(stage, w.stage)
            else:
                stage = max(stage, w.stage + 1 if m.full else w.stage)
        storage = m.node.buffer.storage
        for before, b, e in by_storage.get(storage, ()):
            same = b.dtype is m.node.buffer.dtype
            apart = e != m.index and not never_meet(e, m.index)
            if apart or not same or before.full is not m.full:
                return f"{storage.name} is overwritten at another place"
            stage = max(stage, before.stage)
        m.stage = stage
        for b, e in m.loads:
            by_storage.setdefault(b.storage, []).append((m, b, e))
        by_storage.setdefault(storage, []).append((m, m.node.buffer, m.index))
        if m.node.buffer.previous is not None and m.node.kind == "reduce":
            return "a reduction in place"
        writers[m.node.buffer] = m
        buffers.add(m.node.buffer)
    if len(buffers) > most_buffers:
        return "too many buffers"
    return None
