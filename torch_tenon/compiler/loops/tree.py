"""The nodes of the loop tree.

A tree is statements in order. `For` and `If` have statements inside. `Let` and `Load` compute a
value and are that value: who uses it names the object, so no rewrite ever looks for a name. A
statement's operands are values that stand before it, in its own body or in one around it.

Indices are expressions of `ir.index` over the symbols that are bound around them: by a `For`, by a
`Let` that has a symbol, or from outside (run-time sizes, numbers that became arguments).

Trees are not changed once they are made: a rewrite makes new nodes where something differs, and
takes over the rest.

A node is declared once: by the types of its fields it is walked here, copied by `copy.py`, moved by
`place.py` and printed by `show.py`. What is left to write is its spelling in each dialect.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeAlias, Union

import torch

from torch_tenon.ir.index import Expr, Index, Symbol, symbols
from torch_tenon.ir.values import Buffer

#: How the iterations of a loop relate to each other.
#:   grid      independent; the outermost loops, nothing between them: what is shared out
#:   group     independent; shared out inside of one step of the grid
#:   lane      as one vector; accumulators that are changed inside are put together at the end
#:   parallel  independent, run in order
#:   serial    in order, each may need the one before
#:   reduce    independent but for accumulators, which may combine in any order
#:   unrolled  serial, and few: written out one after the other
Kind: TypeAlias = Literal["grid", "group", "lane", "parallel", "serial", "reduce", "unrolled"]

#: Where memory is.
#:   global   the device's memory: the kernel's arguments
#:   shared   one for all iterations of the `group` loops of a step of the grid
#:   private  of one iteration: registers and the stack
#:   scratch  on the chip, at addresses of its own, and as large as the target declares
#:   accumulator  the same, beside a matrix unit, for the sums of its products
Space: TypeAlias = Literal["global", "shared", "private", "scratch", "accumulator"]


@dataclass(eq=False, slots=True)
class Array:
    """Memory local to the kernel: made by a `Declare`, gone with the body that this stands in.

    `length` is in elements; None is a single element in a register, at index 0, and 0 an array that
    is given from outside and not declared. `label` is what printers name it after.
    """

    label: str
    dtype: torch.dtype
    length: int | None
    space: Space = field(default="private", kw_only=True)


@dataclass(eq=False, slots=True)
class Accumulator(Array):
    """What a reduction or a scan combines into; `Declare` sets it to the identity of `combine`.

    `running` is one whose value is read after each step (a scan's).
    """

    combine: str
    running: bool = False


Memory: TypeAlias = Buffer | Array
#: Memory that is read and not changed.
Source: TypeAlias = Memory


class Role(enum.Enum):
    """What a field is to its statement."""

    OPERAND = "a value that it uses, or several"
    INDEX = "an index expression, or several; one right behind memory is the element of that"
    CHANGED = "memory that it changes"
    READ = "memory that it reads"
    BODY = "the statements inside"


# By a word of the type that a field is declared with.
_ROLES = {
    "Operand": Role.OPERAND,
    "Index": Role.INDEX,
    "Memory": Role.CHANGED,
    "Array": Role.CHANGED,
    "Accumulator": Role.CHANGED,
    "Source": Role.READ,
    "Statement": Role.BODY,
}


class Node:
    """A statement. The role of a field follows from the type that it is declared with."""

    __slots__ = ()
    fields: ClassVar[Sequence[tuple[str, Role | None]]]
    by_role: ClassVar[dict[Role, Sequence[str]]]
    element: ClassVar[dict[str, str]]  # which field is the element of which memory

    def __init_subclass__(cls) -> None:
        cls.fields = tuple(
            (name, next((role for word, role in _ROLES.items() if word in declared), None))
            for name, declared in cls.__annotations__.items()
        )
        cls.by_role = {role: tuple(name for name, r in cls.fields if r is role) for role in Role}
        memory = (*cls.by_role[Role.CHANGED], *cls.by_role[Role.READ])
        cls.element = {
            name: behind
            for (name, _), (behind, declared) in itertools.pairwise(cls.__annotations__.items())
            if name in memory and declared == "Index"
        }


@dataclass(eq=False, slots=True)
class Constant:
    """A plain number. An operand only, not a statement."""

    value: Any
    dtype: torch.dtype


@dataclass(eq=False, slots=True)
class Read:
    """What a local array has at an index now, as a number of `dtype`. An operand only."""

    array: Array
    index: Index
    dtype: torch.dtype


@dataclass(eq=False, slots=True)
class Let(Node):
    """A value that is computed of others.

    `op` is an entry of `ir.scalar_ops.OPS` or of its `RANDOM_NUMBERS`, or
      to, bitcast, where  as there
      index               the index expression `args[0]` as a number
      copy                `args[0]` as it is now
      within              `args[0]` where it is in [0, args[1]), else 0
    An index expression that stands for an operand is an int64. `symbol` stands for the value in
    index expressions.
    """

    op: str
    args: tuple[Operand, ...]
    dtype: torch.dtype
    symbol: Symbol | None = None


@dataclass(eq=False, slots=True)
class Load(Node):
    """The element of `memory` at `index`, in the compute dtype; with a mask, `other` where it does
    not hold, and memory is not touched there."""

    memory: Source
    index: Index
    dtype: torch.dtype
    mask: Operand | None = None
    other: Operand | None = None


Value: TypeAlias = Let | Load
Operand: TypeAlias = Union[Let, Load, Constant, Read, "Expr", int]


@dataclass(eq=False, slots=True)
class Declare(Node):
    """Begins the life of a local array. An accumulator starts from its identity, or `initial`."""

    array: Array
    initial: Operand | None = None


@dataclass(eq=False, slots=True)
class Accumulate(Node):
    """Combines a value into the element of an accumulator."""

    accumulator: Accumulator
    index: Index
    value: Operand


@dataclass(eq=False, slots=True)
class Store(Node):
    """Writes an element; with `combine` other than `store`, what is there combined with it, in the
    dtype of `value`. An atomic one reads, combines and writes in one step, so that others may write
    the same element at the same time."""

    memory: Memory
    index: Index
    value: Operand
    combine: str = "store"
    atomic: bool = False


@dataclass(eq=False, slots=True)
class Failure:
    """What a failed check raises, and the recorded calls that fail with it."""

    message: str
    calls: list[int]


@dataclass(eq=False, slots=True)
class Check(Node):
    """Reports `failure` where `low` < 0 (with `low`) or `high` >= `size` (with `high`).

    A check of one value has it for both.
    """

    low: Operand
    high: Operand
    size: Index
    failure: Failure


@dataclass(eq=False, slots=True)
class CopyBlock(Node):
    """Copies a block of elements, a rectangle, from one memory to another of its dtype.

    Element (r, c) of it is at `index` and r and c times the `strides` of the memory, and in the
    source likewise. There are as many rows as the least of `rows` says, and as many columns; none
    where that is not positive. All iterations of a group see what is copied to shared memory.

    With `filled`, which is a number of rows and of columns, the elements of a block of that size
    that are not copied become 0.

    An asynchronous copy is only started. Until a `Wait` for `memory` nobody touches what it writes
    or changes what it reads.
    """

    memory: Array
    index: Index
    strides: tuple[Index, Index]
    source: Source
    source_index: Index
    source_strides: tuple[Index, Index]
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]
    asynchronous: bool = False
    filled: tuple[Index, ...] = ()


@dataclass(eq=False, slots=True)
class Wait(Node):
    """Waits until all asynchronous copies to an array are over."""

    memory: Array


@dataclass(eq=False, slots=True)
class TileProduct(Node):
    """Adds the product of two tiles to a tile of sums: one step of a matrix unit.

    `sizes` are the rows of the sums, their columns, and what each is a sum over. Element (r, c) of
    a tile is at its index and r and c times its strides. Numbers are multiplied as `memory` has
    them. Where `before` is 0, nothing was added before: what is there does not count.
    """

    memory: Array
    index: Index
    strides: tuple[Index, Index]
    left: Source
    left_index: Index
    left_strides: tuple[Index, Index]
    right: Source
    right_index: Index
    right_strides: tuple[Index, Index]
    before: Index
    sizes: tuple[int, int, int]


@dataclass(eq=False, slots=True)
class Draw(Node):
    """Fills an array with random numbers: element k is what the op (of
    `ir.scalar_ops.RANDOM_NUMBERS`) gives for the seed, the offset and the element `first + k`, for
    k up to the least of `counts`.
    """

    array: Array
    op: str
    seed: Operand
    offset: Operand
    first: Index
    counts: tuple[Index, ...]


@dataclass(eq=False, slots=True)
class Barrier(Node):
    """What follows in its body may read what any iteration of the loops before it has stored."""


@dataclass(eq=False, slots=True)
class If(Node):
    """The body, where a condition (bool) holds."""

    condition: Operand
    body: list[Statement]


@dataclass(eq=False, slots=True)
class For(Node):
    """The body for each value of `symbol` from the greatest of `starts` to below the least of
    `stops`.

    `axis` is the loop of the group along which it runs: the same for a loop over tiles and the one
    inside a tile. `again` says that loops before have read these elements just now.
    """

    axis: Symbol
    kind: Kind
    symbol: Symbol
    starts: tuple[Index, ...]
    stops: tuple[Index, ...]
    body: list[Statement]
    step: int = 1
    again: bool = False

    def holding(self, body: list[Statement]) -> For:
        """The loop around another body."""
        return For(
            self.axis, self.kind, self.symbol, self.starts, self.stops, body, self.step, self.again
        )

    def like(self, **changed: Any) -> For:
        """The loop with some fields changed."""
        return replace(self, **changed)


Statement: TypeAlias = (
    Let
    | Load
    | Declare
    | Accumulate
    | Store
    | Check
    | CopyBlock
    | Wait
    | TileProduct
    | Draw
    | Barrier
    | If
    | For
)

# Made once: these are asked of every statement.
NESTS = (For, If)
VALUES = (Let, Load)


@dataclass(eq=False, slots=True)
class Tree:
    """A kernel.

    numbers  symbols that are arguments of the kernel, with the numbers that they stand for
    shares   the symbol of how many shares the stores of a scatter are divided into: the backend's
             choice at run time, a power of two
    sets     the symbol of the loop over several runs of the same code, each on memory of its own:
             run k has storages k*n to (k+1)*n - 1 of `storages`, and the checks alike
    """

    body: list[Statement]
    numbers: dict[Symbol, int] = field(default_factory=dict)
    shares: Symbol | None = None
    sets: Symbol | None = None

    def having(self, body: list[Statement]) -> Tree:
        """The tree with another body."""
        return Tree(body, self.numbers, self.shares, self.sets)

    def replacing(
        self, chosen: Callable[[For], bool], change: Callable[[For], list[Statement]]
    ) -> Tree:
        """The tree with `change` of each chosen loop in its place, those inside first."""
        return self.having(
            map_loops(self.body, lambda loop: change(loop) if chosen(loop) else [loop])
        )


def walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, those around before those inside."""
    for s in body:
        yield s
        if type(s) is For or type(s) is If:
            yield from walk(s.body)


def map_loops(body: list[Statement], change: Callable[[For], list[Statement]]) -> list[Statement]:
    """The statements with `change` of each loop in its place, those inside first."""
    made: list[Statement] = []
    for s in body:
        if type(s) is For:
            inside = map_loops(s.body, change)
            made += change(s if inside is s.body else s.holding(inside))
        elif type(s) is If:
            made.append(If(s.condition, map_loops(s.body, change)))
        else:
            made.append(s)
    return body if made == body else made  # nodes are equal to themselves alone


def kind_of_pieces(loop: For) -> Kind:
    """The kind of a loop over pieces of one: there are no lanes around others."""
    if loop.kind != "lane":
        return loop.kind
    return "reduce" if any(isinstance(s, Accumulate) for s in loop.body) else "parallel"


def is_innermost(loop: For) -> bool:
    """Whether there is nothing but plain statements inside."""
    return not any(isinstance(s, NESTS) for s in loop.body)


def dtype_of(x: Operand) -> torch.dtype:
    """The dtype of an operand."""
    return torch.int64 if isinstance(x, Expr | int) else x.dtype


def space_of(memory: Memory) -> Space:
    """Where memory is."""
    return memory.space if isinstance(memory, Array) else "global"


def operands(s: Statement) -> list[Operand]:
    """What a statement itself uses beside its indices."""
    return list(_all(s, Role.OPERAND))


def indices(s: Statement) -> Iterator[Expr]:
    """The index expressions of a statement itself, those inside its operands too; no plain
    numbers."""
    for x in _all(s, Role.OPERAND):
        e = x.index if isinstance(x, Read) else x
        if isinstance(e, Expr):
            yield e
    for e in _all(s, Role.INDEX):
        if isinstance(e, Expr):
            yield e


def used(s: Statement) -> set[object]:
    """The values, local arrays and symbols in a statement's own operands and indices."""
    values = (x for x in operands(s) if isinstance(x, Let | Load | Read))
    found: set[object] = {x.array if isinstance(x, Read) else x for x in values}
    return found.union(*(symbols(e) for e in indices(s)))


def needed(body: Sequence[Statement], wanted: Collection[object]) -> set[Statement]:
    """Those of plain statements that values, symbols and arrays are computed by, with what checks
    them; of an array, those that change or read it."""
    found: set[Statement] = set()
    arrays = {x for x in wanted if isinstance(x, Array)}
    left = set(wanted)
    for s in reversed(body):
        uses = used(s)
        named = isinstance(s, Let) and s.symbol in left
        checks = isinstance(s, Check) and s.low in left
        if s in left or named or checks or not arrays.isdisjoint({*uses, *changed(s)}):
            found.add(s)
            left |= {x for x in uses if not isinstance(x, Array)}
    return found


def changed(s: Statement) -> Iterator[Memory]:
    """The memory that a statement itself changes."""
    return _all(s, Role.CHANGED)


def changes(body: Sequence[Statement], memory: Memory) -> bool:
    """Whether statements, or what is inside of them, change memory: of a buffer any version."""
    whole = getattr(memory, "storage", memory)
    return any(getattr(m, "storage", m) is whole for s in walk(body) for m in changed(s))


def read(s: Statement) -> Iterator[Memory]:
    """The memory that a statement itself reads, but for its operands."""
    return _all(s, Role.READ)


def _all(s: Statement, role: Role) -> Iterator[Any]:
    """What a statement has in the fields of a role."""
    for name in s.by_role[role]:
        x = getattr(s, name)
        if type(x) is tuple:
            yield from x
        elif x is not None:
            yield x
