"""A kernel: what a backend makes of a fused group, and what is launched with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch_tenon.compiler.loops.tree import Tree
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.index import Index, Symbol, product, strides
from torch_tenon.ir.program import Loop, Matmul
from torch_tenon.ir.values import Buffer, Layout, Storage, size_hint

if TYPE_CHECKING:
    from torch_tenon.compiler.handwritten import Asked, Code

# What a failed check raises: the numbers by which csrc/runtime/failed_check.cpp knows them.
CHECKS: dict[str, int] = {
    "index": 1,
    "embedding": 2,
    "gather": 3,
    "division": 4,
    "target": 5,
    "batch": 6,
    "index_copy": 7,
    "assert": 8,
}
STATUS_WORDS = 4  # that a check reports in: kStatusWords in csrc/runtime/queue.h

#: How a backend spells a tree: its origin, and its work in scalar operations.
Spell = Callable[[Tree, str, Index], str]


@dataclass
class Kernel:
    """Generated source, and what to call it with.

    `storages` and `checks` are those of `sets` runs of the same code, one after the other.
    """

    source: str  # the function, named `@NAME@`
    storages: list[Storage]
    # Numbers, run-time sizes of the program, expressions of these, and what a kernel asks for.
    sizes: Sequence[Symbol | Index | Asked]
    origin: str
    bytes_moved: Index
    layout: str
    work: Index  # scalar operations
    checks: list[list[int]]  # for each the recorded calls that fail with it, in the status' order
    tree: Tree | None = None  # what the source spells; None where it shares out its work by itself
    spell: Spell | None = None  # spells such a tree
    sets: int = 1
    code: Code | None = None  # what somebody wrote, where nobody generated it
    calls: list[int] = field(default_factory=list)  # that it computes, the main one first
    operations: Index = 0  # on numbers
    # Of a kernel with a grid: runs along each axis, and how many of these are a group, if anything.
    # They may be expressions of the program's run-time sizes.
    grid: Sequence[Index] = ()
    group: Sequence[Index] = ()
    scratch: Index = 0  # bytes of fast memory that a group shares

    @staticmethod
    def of(
        group: Group,
        kept: set[Buffer],
        source: str,
        storages: list[Storage],
        sizes: Sequence[Symbol | Index],
    ) -> Kernel:
        """The kernel of a group without checks, for a backend that shares out no work by size."""
        moved = bytes_moved(group, kept)
        return Kernel(source, storages, sizes, ops_of(group), moved, "loop", 0, [])


def origin_of(members: Sequence[Member]) -> str:
    """The ops that a kernel came from, each once."""
    return _each_once(m.node.origin for m in members)


def ops_of(group: Group) -> str:
    """The ops that a group computes, each once."""
    return _each_once(n.origin for n in group.nodes())


def _each_once(origins: Iterable[str]) -> str:
    names = (name for origin in origins for name in origin.split(", "))
    return ", ".join(dict.fromkeys(filter(None, names)))


def calls_of(group: Group) -> list[int]:
    """The recorded calls that a kernel of the group computes: first that of a product, or else the
    one whose result it stores last."""
    nodes = list(group.nodes())
    main = next((n for n in nodes if isinstance(n, Matmul)), nodes[-1])
    return list(dict.fromkeys(k for n in [main, *nodes] for k in n.calls))


def operations_of(group: Group, work: Index) -> Index:
    """Operations on numbers: a multiplication and an addition for each step of a product."""
    products = [n for n in group.nodes() if isinstance(n, Matmul)]
    steps = sum(product([*n.out.sizes, n.left.sizes[-1]]) for n in products)
    return 2 * steps + work


def operand_bytes(node: Matmul, prologue: Sequence[Loop] = ()) -> Index:
    """Bytes of a product's operands, or of what a prologue computes them of: windows that overlap
    read the same ones."""
    loops = {loop.buffer: loop for loop in prologue}

    def least(layout: Layout) -> Index:
        count, span = product(layout.sizes), layout.span()
        return span if size_hint(span) < size_hint(count) else count

    moved: Index = 0
    for v in (node.left, node.right):
        if (loop := loops.get(v.buffer)) is None:
            moved += least(v.layout) * v.dtype.itemsize
            continue
        for b, e in {(s.args[0], s.args[1]) for s in loop.loads}:
            moved += _elements(e, loop.outer) * b.dtype.itemsize
    return moved


def _elements(index: Index, loops: Sequence[Symbol]) -> Index:
    """How many elements loops touch."""
    steps = strides(index)
    used = loops if steps is None else [s for s in loops if steps.get(s, 0) != 0]
    return product(s.extent for s in used)


def bytes_moved(group: Group, kept: set[Buffer]) -> Index:
    """Bytes that have to cross memory: each distinct element read or written once."""
    seen: dict[tuple[Buffer, Index], Index] = {}
    made = {m.node.buffer for m in group.members}
    for m in group.members:
        loops = list(group.symbols())
        for b, e in [*m.loads, (m.node.buffer, m.index)]:
            if b in made and b not in kept:
                continue
            seen[b, e] = _elements(e, loops) * b.dtype.itemsize
    return sum(seen.values())
