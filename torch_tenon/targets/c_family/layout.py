"""How a kernel's loops are laid out: what the lanes run along, tiles, what threads share.

A kernel's loops are laid out in one of four ways:
  flat     nothing is reduced: the lanes run along the dimension that most accesses are dense in
  row      the lanes run along the innermost reduced dimension; accumulators are scalars
  column   the lanes run along an outer dimension; accumulators are short arrays, one per lane
  scatter  written to computed places, in the order of the loops
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from torch_tenon.compiler.loops.lower import axes, read_later
from torch_tenon.compiler.loops.neighbours import lanes_of, loads_together
from torch_tenon.compiler.loops.numbers import Numbers
from torch_tenon.compiler.loops.tree import (
    Accumulate,
    Accumulator,
    Check,
    For,
    Let,
    Load,
    Statement,
    Store,
    Tree,
    is_innermost,
)
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.index import Expr, Index, Symbol, product, strides, symbols
from torch_tenon.ir.scalar import Scalar
from torch_tenon.ir.scalar_ops import LONG_OPS, PLAIN_OPS
from torch_tenon.ir.sixteen_bits import ROUNDING
from torch_tenon.ir.values import Buffer, size_hint

BLOCK = 4096  # elements of a row added up in float32 before the total takes them
TILE = 1024  # lanes of a column
FEW_LANES = 8  # fewer than these make no vector
CHUNKS = 8  # pieces of work wanted for the threads
TILE_SIDE = 64  # of the tiles in which rows and columns are exchanged, as in kernel.h
SHORT = 16  # iterations of a loop whose extent is written into the code
FAR = 16  # elements of a step in memory from which it is an argument of the kernel
FISSION = 512  # elements that one of several loops over a tile takes before the next one runs
ROW_BYTES = 1 << 18  # of a row that is kept on the stack
STACK_BYTES = 1 << 20  # of all rows that a kernel keeps there: a thread may have 2 MiB in all
CACHED = 1 << 18  # elements that a cache may hold between two kernels
TRANSPOSED = (1, 2, 4, 8)  # bytes of the elements that kernel.h transposes tiles of
MOST_PIECES = 8  # of a loop that is cut where it starts to compute something else
WORTH_CUTTING = 16  # iterations from which it is
MOST_CUT = 128  # statements of one that has fewer than `MANY` iterations
MANY = 64  # iterations from which it is worth any code
WORTH_SWITCHING = 8  # iterations from which a loop is made for either answer of a condition
MOST_SWITCHED = 512  # statements of all its copies
SIDE_BY_SIDE = 4  # pieces of a cached row that are added up side by side
WORTH_SIDE_BY_SIDE = 64  # iterations of a piece from which it is
JAM, JAM_LONG = 8, 2  # rows of a column that are added up in registers; of a long iteration
DRAWN = 1024  # random numbers that are made before the loop that uses them
WORTH_DRAWING = 32  # iterations of a loop from which its random numbers are made before it
TOGETHER = (4, 7, 5, 6, 3, 2)  # neighbours that are computed at once, the best first
WORTH_TOGETHER = 6  # loads of an iteration from which they are
MOST_TOGETHER = 512  # statements of all of them
MOST_TOTALS = 16  # that a lane adds up at once: as many as there are registers
MOST_STATEMENTS = 12  # of an iteration that is short enough to be repeated
FEW_STATEMENTS = 3  # ... and so often that loads and stores of its totals hardly matter


class Layout:
    """What is decided of a group's loops, in symbols of its tree.

    order       the loops over results that stay around a position, from the outermost
    lane        the one that the lanes run along, None in rows
    lanes       how many lanes a tile has; 0: the loop is not in tiles
    across      where lanes read across memory: the loop that this memory is dense along
    few         a loop of few iterations that memory is dense along: each lane computes all of them
    coordinate  an indirect index by which threads share out the stores of a scatter, or None
    rows        buffers that are kept on the stack
    fission     whether the lanes of a tile go through one loop for each long operation
    runs_on     whether the rows of a column lie one after the other, too many for a cache
    """

    writes_out = True  # whether a lane may compute a few iterations of a loop at once

    def __init__(self, group: Group, kept: set[Buffer]) -> None:
        self.group = group
        self.members = group.members
        symbols_of = axes(group)
        self.inner = [symbols_of[s] for s in group.inner]
        self.kind = self._kind()
        self.lanes = 0
        self.fission = False
        lane, across = self._lane(), None
        if self.kind == "flat" and lane is not None:
            across = self._transposed(lane)
        few = self._few(lane) if across is None and self.writes_out else None
        outer = [s for s in group.outer if s not in (lane, across, few)]
        self.chunks = size_hint(product(s.extent for s in outer))
        self.coordinate: Symbol | None = None
        if across is not None:
            self.lanes = TILE_SIDE
        elif lane is not None:
            if self.chunks < CHUNKS and size_hint(lane.extent or 0) >= 64:
                self.coordinate = common_coordinate(group, lane)
            if self.coordinate is None:
                self._choose_tile(lane)
        self.order = [symbols_of[s] for s in outer]
        self.lane = None if lane is None else symbols_of[lane]
        self.across = None if across is None else symbols_of[across]
        self.few = None if few is None else symbols_of[few]
        self.work = product(s.extent for s in group.symbols()) * self._cost()
        self.rows = self._rows(kept)
        self.runs_on = self._runs_on(lane) if self.kind == "column" else False

    def in_pass(self, loop: For) -> bool:
        """Whether a loop belongs to a pass over a position, and not to those over positions."""
        return loop.axis in self.inner or loop.symbol in (self.lane, self.across, self.few)

    def vectors(self) -> list[Symbol]:
        """The innermost loops."""
        if self.kind == "row":
            return self.inner[-1:]
        if self.lane is not None:
            return [self.lane]
        return self.inner[-1:]

    def is_side_by_side(self, loop: For) -> bool:
        """Whether one accumulator is not fast enough: for a row that is in the cache by now, where
        neither memory nor a long iteration sets the pace."""
        return loop.again and is_short_reduction(loop)

    def together(self, loop: For) -> int:
        """How many neighbouring iterations around the lanes are computed at once: 1 where they read
        little in common, or where that would be much code."""
        extent, lanes = loop.axis.extent, lanes_of(loop)
        if self.kind != "flat" or lanes is None or extent is None:
            return 1
        loads, hint = sum(isinstance(s, Load) for s in lanes.body), size_hint(extent)
        fits = [n for n in TOGETHER if isinstance(extent, int) and extent % n == 0]
        # What is left is a loop beside, so threads share those around.
        if self.chunks >= CHUNKS * hint:
            fits += [n for n in TOGETHER if n <= hint]
        if not fits or loads < WORTH_TOGETHER or fits[0] * len(lanes.body) > MOST_TOGETHER:
            return 1
        return fits[0] if 2 * loads_together(loop, lanes, fits[0]) <= fits[0] * loads else 1

    def numbers(self) -> Numbers:
        """Which numbers stay in the code."""
        # Of few columns the rows are many, and how many changes nothing in the code.
        inner = set() if self.few is not None and not self.rows else set(self.inner)
        # The length of a row that is kept is in the code as the size of an array.
        around = self.kind == "column" and not self.rows
        return Numbers(FAR, SHORT, inner, self.vectors(), PLAIN_OPS, self.in_pass, around)

    def grid(self, tree: Tree) -> int:
        """How many of the outermost loops the threads share."""
        total, count, body = 1, 0, tree.body
        while len(body) == 1 and isinstance(loop := body[0], For) and not self.in_pass(loop):
            count, body = count + 1, loop.body
            total *= size_hint(loop.axis.extent or 1) if loop.symbol in self.order else CHUNKS
            if total >= CHUNKS:
                break
        return count

    @functools.cached_property
    def _accesses(self) -> list[tuple[Mapping[Symbol, Index], int]]:
        """Strides of accesses in the loops over every element, each with how many elements it
        reads, or twice as many as it writes. One at a computed place counts with the loops that the
        place does not depend on."""
        found = []
        for m in self.members:
            if not m.full:
                continue
            for _, e in m.loads:
                found.append((_strides_known(e, m), 1))
            if m.node.kind != "reduce":
                found.append((_strides_known(m.index, m), 2))
        return [(k, w * size_hint(product(s.extent for s in loops))) for (k, loops), w in found]

    def _best_lane(self, loops: Sequence[Symbol]) -> tuple[Symbol | None, int]:
        best: Symbol | None = None
        score = 0
        accesses = self._accesses
        for s in reversed(loops):
            votes = sum(w for steps, w in accesses if steps.get(s) == 1)
            if s.extent is not None and size_hint(s.extent) < FEW_LANES:
                votes = min(votes, 1)
            if votes > score:
                best, score = s, votes
        return best, score

    def is_dense_inside(self) -> bool:
        """Whether most accesses are dense along the innermost of a group's inner loops."""
        inner = self._best_lane(self.group.inner[-1:])[1]
        return inner > self._best_lane(self.group.outer)[1]

    def _kind(self) -> str:
        if any(m.node.kind == "scatter" for m in self.members):
            return "scatter"
        if not self.group.inner:
            return "flat"
        row = self._best_lane(self.group.inner[-1:])[1]
        lane, column = self._best_lane(self.group.outer)
        scans = any(m.node.kind == "scan" for m in self.members)
        if self.writes_out and lane is not None and self._are_short_rows_and_columns(lane):
            return "column"
        if lane is not None and (column > row or (scans and column > 0)):
            return "row" if self.writes_out and self._are_few_columns(lane) else "column"
        return "row" if self.of_short_rows() is None else "column"

    def _are_short_rows_and_columns(self, lane: Symbol) -> bool:
        """Whether both are shorter than a vector, and as much is read along columns: then the rows
        are written out, and no lanes are put together at their ends."""
        length = product(s.extent for s in self.group.inner)
        plain = all(m.node.kind in ("reduce", "pointwise") for m in self.members)
        short = isinstance(length, int) and length < FEW_LANES and isinstance(lane.extent, int)
        if not plain or not short or size_hint(lane.extent or 0) >= FEW_LANES:
            return False
        votes = dict.fromkeys((lane, self.group.inner[-1]), 0)
        for steps, w in self._accesses:
            for s in votes:
                votes[s] += w if steps.get(s) == 1 else 0
        return votes[lane] >= votes[self.group.inner[-1]]

    def _are_few_columns(self, lane: Symbol) -> bool:
        """Whether a column's lanes would be fewer than a vector's: then the lanes run along the
        rows, and each adds all columns up."""
        few = isinstance(lane.extent, int) and 1 < lane.extent < FEW_LANES
        kinds = [m.node.kind for m in self.members]
        rows = size_hint(self.group.inner[-1].extent or 0)
        totals = size_hint(lane.extent or 0) * kinds.count("reduce")
        plain = {"reduce", "pointwise"}.issuperset(kinds)
        return few and plain and rows >= SHORT * SHORT and totals <= MOST_TOTALS

    def of_short_rows(self) -> Symbol | None:
        """The loop over results that the lanes run along though memory lies across it: where rows
        are shorter than a vector, are reduced several times, and an iteration computes what pays to
        have in vectors. One reduction alone would pay more for its reads."""
        inner, outer = self.group.inner, self.group.outer
        length = product(s.extent for s in inner)
        if not isinstance(length, int) or length >= SHORT or not outer or not self._has_long():
            return None
        kinds = [m.node.kind for m in self.members]
        if kinds.count("reduce") < 2 or not {"reduce", "pointwise"}.issuperset(kinds):
            return None
        longest = max(outer, key=lambda s: size_hint(s.extent or 1))
        return longest if size_hint(longest.extent or 1) >= SHORT else None

    def _lane(self) -> Symbol | None:
        """The loop over results that the lanes run along."""
        outer = self.group.outer
        if self.kind == "row" or not outer:
            return None
        best = self._best_lane(outer)[0]
        if self.kind == "column" and (best is None or size_hint(best.extent or 1) < FEW_LANES):
            best = self.of_short_rows() or best
        if best is None and self.kind == "scatter" and self._is_along_rows():
            return None
        is_few = best is not None and size_hint(best.extent or 1) < FEW_LANES
        if self.kind == "flat" and is_few and self.writes_out:
            longest = max(outer, key=lambda s: size_hint(s.extent or 1))
            best = longest if size_hint(longest.extent or 1) >= SHORT else best
        return best or outer[-1]

    def _is_along_rows(self) -> bool:
        """Whether a scatter reads along memory what it stores one after the other, in rows enough
        for the threads."""
        rows = size_hint(product(s.extent for s in self.group.outer))
        touched = [e for m in self.members for e in (m.index, *(e for _, e in m.loads))]
        across = any(
            isinstance(e, Expr) and e.terms.get((s,)) == 1
            for e in touched
            for s in self.group.outer
        )
        along = self._best_lane(self.group.inner[-1:])[0] is not None
        return rows >= CHUNKS and along and not across

    def _choose_tile(self, lane: Symbol) -> None:
        assert lane.extent is not None
        hint = size_hint(lane.extent)
        self.fission = self.kind == "flat" and self._is_long()
        if self.fission:
            self.lanes = FISSION
        elif not (self.kind == "flat" and (self.chunks >= CHUNKS or hint < 2 * BLOCK)):
            wanted = max(1, -(-CHUNKS // self.chunks))
            most = BLOCK if self.kind == "flat" else TILE
            if self.kind == "scatter":
                most = 1 << 30
                wanted = 4 if self.chunks < CHUNKS else 1
            # A power of two: few different kernels for many sizes.
            self.lanes = min(most, max(64, 1 << (-(-hint // wanted)).bit_length() - 1))
            if isinstance(lane.extent, int):
                self.lanes = min(self.lanes, lane.extent)
                if self.kind == "column":
                    self.lanes = _without_rest(lane.extent, self.lanes)

    def _transposed(self, lane: Symbol) -> Symbol | None:
        """The dimension that some dense access runs along other than the lanes', if any."""
        assert lane.extent is not None
        if size_hint(lane.extent) < 16:
            return None
        for steps, _ in self._accesses:
            if steps.get(lane, 0) in (0, 1):
                continue
            for s in self.group.outer:
                if steps.get(s) == 1 and s.extent is not None and size_hint(s.extent) >= 16:
                    return s
        return None

    def _few(self, lane: Symbol | None) -> Symbol | None:
        """The loop of few iterations that most of what lanes touch across memory is dense along."""
        lane = self.group.inner[-1] if self.kind == "row" else lane
        if self.kind not in ("flat", "row") or lane is None or size_hint(lane.extent or 0) < SHORT:
            return None
        accesses = self._accesses
        votes = sum(w for steps, w in accesses if steps.get(lane) == 1)
        found = None
        for s in self.group.outer:
            if s is not lane and isinstance(s.extent, int) and 1 < s.extent < SHORT:
                count = sum(w for k, w in accesses if k.get(s) == 1 and k.get(lane, 0) != 0)
                if count > votes:
                    found, votes = s, count
        return found

    def _is_long(self) -> bool:
        """Whether an iteration is too long for the processor to have several under way."""
        return sum(s.op in LONG_OPS for m in self.members for s in m.node.trace) > 1

    def _has_long(self) -> bool:
        return any(s.op in LONG_OPS for m in self.members for s in m.node.trace)

    def _cost(self) -> int:
        """Scalar operations of an iteration, roughly."""
        return max(1, min(8, sum(len(m.node.trace) for m in self.members) // 4))

    def _rows(self, kept: set[Buffer]) -> list[Buffer]:
        """Rows that only this kernel sees, and that a later pass reads, live on the stack."""
        length = product(s.extent for s in self.group.inner) * max(self.lanes, 1)
        if self.few is not None and self.few.extent is not None:
            length = length * self.few.extent  # each of them has a row of its own
        if self.kind not in ("row", "column") or not isinstance(length, int):
            return []
        later = (b for b in read_later(self.group) if b not in kept)
        found, room = [], STACK_BYTES
        for b in later:
            nbytes = length * b.dtype.itemsize
            if nbytes <= min(ROW_BYTES, room):
                found.append(b)
                room -= nbytes
        return found

    def _runs_on(self, lane: Symbol | None) -> bool:
        """Whether the rows of a column lie one after the other in memory, and are more than a
        cache holds: then they are read fastest in that order."""
        assert lane is not None
        rows, whole = self.group.inner[-1], lane.extent
        reductions = (m for m in self.members if m.node.kind == "reduce")
        loads = [strides(e) or {} for m in reductions for _, e in m.loads]
        count = size_hint(product(s.extent for s in self.group.symbols()))
        dense = self.lanes == whole and any(k.get(rows) == whole for k in loads)
        return dense and count > CACHED


def _strides_known(e: Index, m: Member) -> tuple[Mapping[Symbol, Index], Collection[Symbol]]:
    """The strides of an index in a member's loops, but of those that some other part of it depends
    on, such as a computed place; and all loops that it depends on."""
    steps = strides(e)
    if steps is not None or isinstance(e, int):
        return steps or {}, steps or ()
    known: dict[Symbol, Index] = {}
    others: set[Symbol] = set()
    for monomial, k in e.terms.items():
        loops = [a for a in monomial if isinstance(a, Symbol) and a.extent is not None]
        plain = all(isinstance(a, Symbol) and a.scalar is None for a in monomial)
        if plain and len(loops) == 1:
            rest = Expr({tuple(a for a in monomial if a is not loops[0]): k})
            known[loops[0]] = known.get(loops[0], 0) + (k if len(monomial) == 1 else rest)
        else:
            others |= _loops_of(Expr({monomial: k}), m)
    return {s: k for s, k in known.items() if s not in others}, {*known, *others}


def _loops_of(e: Index, m: Member) -> set[Symbol]:
    """The group's loops that an index of a member depends on, and what it is computed of."""
    found: set[Symbol] = set()
    left, seen = list(symbols(e)), set[Symbol]()
    while left:
        s = left.pop()
        if s in seen:
            continue
        seen.add(s)
        if s.scalar is None:
            found |= {s} if s.extent is not None else set()
            continue
        for t in _symbols_of(s.scalar):
            left += symbols(m.values[t]) if t in m.values else [t]
    return found


def _symbols_of(scalar: Scalar) -> set[Symbol]:
    """The symbols in all that a scalar is computed of."""
    found: set[Symbol] = set()
    left, seen = [scalar], {scalar}  # each once: a search is computed of what it has in many ways
    while left:
        x = left.pop()
        found |= {t for e in x.args if isinstance(e, Expr) for t in symbols(e)}
        new = set(x.operands()) - seen
        seen |= new
        left += new
    return found


def _without_rest(extent: int, most: int) -> int:
    """The most lanes of a tile, more than half of `most`, that leave no shorter tile at the end:
    for one the C compiler writes each loop twice more. `most` where there are none."""
    fits = (n for n in range(most, most // 2, -1) if extent % n == 0 and n % 4 == 0)
    return next(fits, most)


def common_coordinate(group: Group, lane: Symbol) -> Symbol | None:
    """An indirect index of where a scatter stores that is one for all lanes, if there is one."""
    scatter = group.members[0]
    if scatter.node.kind != "scatter":
        return None
    for s in sorted(symbols(scatter.index), key=lambda s: s.serial):
        seen = set() if s.scalar is None else _symbols_of(s.scalar)
        if seen & set(group.inner) and lane not in seen:
            return s
    return None


def rows_at_once(loop: For) -> int:
    """How many rows of a column are to be added up in registers; 1 where an iteration is so long
    that loading and storing the accumulators does not matter. The longer an iteration, the fewer:
    the C compiler takes about as long as what it writes out."""
    lanes = loop.body[-1] if loop.body else None
    if loop.kind != "reduce" or not isinstance(lanes, For) or lanes.kind != "lane":
        return 1
    body = [*loop.body[:-1], *lanes.body]
    if any(isinstance(s, Accumulate) and _is_extreme(s.accumulator) for s in body):
        return 1
    few = JAM if len(body) <= FEW_STATEMENTS else JAM_LONG
    extent = loop.axis.extent
    if len(body) > MOST_STATEMENTS or (isinstance(extent, int) and extent < few):
        return 1
    return few if is_innermost(lanes) and _only_reduces(body) else 1


def _is_extreme(a: Accumulator) -> bool:
    """Whether it is a greatest or least float: of a chain of these, each of which may be a NaN, gcc
    makes jumps and no vectors."""
    return a.dtype.is_floating_point and a.combine in ("max", "min")


def is_short_reduction(loop: For) -> bool:
    """Whether lanes reduce many elements, with little work for each."""
    extent = loop.axis.extent
    if loop.kind != "lane" or extent is None:
        return False
    slow = any(isinstance(s, Let) and s.op in LONG_OPS for s in loop.body)
    few = size_hint(extent) < SIDE_BY_SIDE * WORTH_SIDE_BY_SIDE
    if slow or few or len(loop.body) > MOST_STATEMENTS:
        return False
    return _only_reduces(loop.body)


def is_dear(s: Statement) -> bool:
    """Whether a statement before or behind a scan is worth a loop of vectors: where it takes long,
    reduces, or converts 16-bit floats."""
    if isinstance(s, Load | Store):
        return s.memory.dtype in ROUNDING
    return isinstance(s, Accumulate) or (isinstance(s, Let) and s.op in LONG_OPS)


def _only_reduces(body: Collection[object]) -> bool:
    """Whether statements reduce, and nothing is checked or scanned beside it."""
    if any(isinstance(s, Check) for s in body):
        return False
    found = [s.accumulator for s in body if isinstance(s, Accumulate)]
    return bool(found) and not any(a.running for a in found)


def is_drawn_before(loop: For) -> bool:
    """Whether a loop's random numbers are made before it: then all words of a block are used, which
    for few iterations are more than it needs."""
    extent = loop.axis.extent
    lanes = loop.kind == "lane" and is_innermost(loop)
    return lanes and (extent is None or size_hint(extent) >= WORTH_DRAWING)


def is_cut(loop: For) -> bool:
    """Whether an innermost loop is cut where its conditions change: not a short one, nor one of few
    iterations that would be much code."""
    if not is_innermost(loop):
        return False
    hint = MANY if loop.axis.extent is None else size_hint(loop.axis.extent)
    return hint >= MANY or (hint >= WORTH_CUTTING and len(loop.body) <= MOST_CUT)


def is_unswitched(loop: For) -> bool:
    """Whether an innermost loop is made for either answer of a condition: not a short piece."""
    if loop.kind == "grid" or not is_innermost(loop):
        return False
    extent = loop.axis.extent
    stops = [e for e in loop.stops if isinstance(e, int)]
    stops += [] if extent is None else [size_hint(extent)]
    start = max((e for e in loop.starts if isinstance(e, int)), default=0)
    return not stops or min(stops) - start >= WORTH_SWITCHING


def is_transposed(s: Load) -> bool:
    """Whether there is a way to transpose tiles of what is loaded."""
    memory = s.memory
    return (
        isinstance(memory, Buffer)
        and memory.dtype.itemsize in TRANSPOSED
        and not memory.dtype.is_complex
    )
