"""How a kernel's loops are laid out: which one the lanes run along, tiles, what threads share.

A kernel's loops are laid out in one of four ways:
  flat     nothing is reduced: the lanes run along the dimension that most accesses are dense in
  row      the lanes run along the innermost reduced dimension; accumulators are scalars
  column   the lanes run along an outer dimension; accumulators are short arrays, one per lane
  scatter  written to computed places, in the order of the loops
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Expr, Index, Monomial, Symbol, product, strides, symbols
from torch_tenon.ir.values import size_hint
from torch_tenon.targets.cpu.dialect import LONG, spell

BLOCK = 4096  # elements of a row added up in float32 before the total takes them
TILE = 1024  # lanes of a column
CHUNKS = 8  # pieces of work wanted for the threads
TILE_SIDE = 64  # of the tiles in which rows and columns are exchanged, as in scalar.h
SHORT = 16  # iterations of a loop whose extent is written into the code
FAR = 16  # elements of a step in memory from which it is an argument of the kernel
PART = 512  # elements that one of several loops over a tile takes before the next one runs


@dataclass
class Span:
    """One `for` of the nest."""

    variable: str
    start: str
    stop: str
    step: int = 1
    symbol: Symbol | None = None

    def around(self, inside: list[str]) -> list[str]:
        """The loop over these lines."""
        name = self.variable
        step = f"++{name}" if self.step == 1 else f"{name} += {self.step}"
        head = f"for (int64_t {name} = {self.start}; {name} < {self.stop}; {step}) {{"
        return [head, *indent(inside), "}"]


def indent(lines: list[str]) -> list[str]:
    """Lines one level further in; pragmas stay at the margin."""
    return [text if text.startswith("#") else "  " + text for text in lines]


class Nest:
    """The loops of a group.

    `spans` are the loops around an iteration, of which the threads share the outermost `collapse`.
    Inside one (at depth `base`), `full` are the loops of the full members and `row` those of the
    row members; `vector` are the innermost loops' variables. `depth` says for each loop variable
    how many loops are open where it is known.
    Where `in_parts` is set, the lanes of a tile pass through one loop for each long operation.
    Where `place` is set, each thread takes the stores of which that coordinate falls to it.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self.members = group.members
        self.sizes: list[Symbol | int] = []  # in the order of the kernel's arguments
        self.ends: dict[Symbol, str] = {}
        self.numbers: dict[int, str] = {}
        self.layout = self._choose_layout()
        self._lay_out()

    def size(self, e: Index) -> str:
        """An expression in loop variables and run-time sizes in C."""
        return spell(e, self.name)

    def coefficient(self, monomial: Monomial, k: int) -> str:
        """A step in memory, or an offset: see `argument`. Of what is reduced it is a number, since
        short loops there are unrolled."""
        reduced = any(s in self.group.inner for s in symbols(Expr({monomial: 1})))
        return str(k) if reduced else self.argument(k)

    def argument(self, e: Index) -> str:
        """A size, a step or an offset in C. A large number is an argument of the kernel, so that
        other shapes run the same code."""
        if not isinstance(e, int) or abs(e) <= FAR:
            return self.size(e)
        if e not in self.numbers:
            self.numbers[e] = self._argument(e)
        return self.numbers[e]

    def name(self, s: Symbol) -> str:
        """What a loop variable or a run-time size is called."""
        if s.extent is not None:
            return self.names[s]
        if s not in self.sizes:
            self.sizes.append(s)
        return f"n{self.sizes.index(s)}"

    def _accesses(self) -> list[tuple[dict[Symbol, Index], int]]:
        """Strides of the affine accesses in the loops over every element, each with how many
        elements it reads, or twice as many as it writes."""
        found = []
        for m in self.members:
            if not m.full:
                continue
            for _, e in m.loads:
                found.append((strides(e), 1))
            if m.node.kind != "reduce":
                found.append((strides(m.index), 2))
        return [(k, w * size_hint(product(s.extent for s in k))) for k, w in found if k is not None]

    def _best_lane(self, loops: Sequence[Symbol]) -> tuple[Symbol | None, int]:
        best: Symbol | None = None
        score = 0
        accesses = self._accesses()
        for s in reversed(loops):
            votes = sum(w for steps, w in accesses if steps.get(s) == 1)
            if s.extent is not None and size_hint(s.extent) < 8:
                votes = min(votes, 1)
            if votes > score:
                best, score = s, votes
        return best, score

    def _choose_layout(self) -> str:
        if any(m.node.kind == "scatter" for m in self.members):
            return "scatter"
        if not self.group.inner:
            return "flat"
        row = self._best_lane(self.group.inner[-1:])[1]
        lane, column = self._best_lane(self.group.outer)
        scans = any(m.node.kind == "scan" for m in self.members)
        if lane is not None and (column > row or (scans and column > 0)):
            return "column"
        return "row"

    def _lay_out(self) -> None:
        """Decides the order of the loops and what each one runs over."""
        outer, inner = list(self.group.outer), list(self.group.inner)
        self.lane: Symbol | None = None
        self.lanes = 0
        self.in_parts = False
        self.turned: Symbol | None = None
        self.place: Symbol | None = None
        if self.layout == "scatter":
            self.lane = self._best_lane(outer)[0] or (outer[-1] if outer else None)
        elif self.layout == "column":
            self.lane = self._best_lane(outer)[0]
        elif self.layout == "flat" and outer:
            self.lane = self._best_lane(outer)[0] or outer[-1]
            self.turned = self._transposed(outer)
        names = {s: f"i{k}" for k, s in enumerate(outer)}
        names |= {s: f"j{k}" for k, s in enumerate(inner)}
        self.names = names
        if self.lane is not None:
            outer.remove(self.lane)
        if self.turned is not None:
            outer.remove(self.turned)
        work = product(s.extent for s in self.group.symbols())
        cost = max(1, min(8, sum(len(m.node.trace) for m in self.members) // 4))
        self.work = work * cost
        spans = [Span(names[s], "0", self._end(s), 1, s) for s in outer]
        inside: list[Span] = []
        pieces = size_hint(product(s.extent for s in outer))
        if self.turned is not None:
            assert self.lane is not None
            for s in (self.turned, self.lane):
                spans.append(self._tile(s, TILE_SIDE))
                inside.append(self._tiled(s, TILE_SIDE))
        elif pieces < CHUNKS and (place := self._place()) is not None:
            self.place = place
            spans.append(Span("part", "0", "parts"))
            assert self.lane is not None
            inside.append(Span(names[self.lane], "0", self._end(self.lane), 1, self.lane))
        elif self.lane is not None:
            extent = self.lane.extent
            assert extent is not None
            hint = size_hint(extent)
            self.in_parts = self.layout == "flat" and self._is_long()
            if self.in_parts:
                self.lanes = PART
                spans.append(self._tile(self.lane, self.lanes))
                inside.append(self._tiled(self.lane, self.lanes))
            elif self.layout == "flat" and (pieces >= CHUNKS or hint < 2 * BLOCK):
                inside.append(Span(names[self.lane], "0", self._end(self.lane), 1, self.lane))
            else:
                wanted = max(1, -(-CHUNKS // pieces))
                most = BLOCK if self.layout == "flat" else TILE
                if self.layout == "scatter":
                    most = 1 << 30
                    wanted = 4 if pieces < CHUNKS else 1
                # A power of two: few different kernels for many sizes.
                self.lanes = min(most, max(64, 1 << (-(-hint // wanted)).bit_length() - 1))
                if isinstance(extent, int):
                    self.lanes = min(self.lanes, extent)
                spans.append(self._tile(self.lane, self.lanes))
                inside.append(self._tiled(self.lane, self.lanes))
        self.spans = spans
        self.base = len(spans)  # the depth of an iteration's own scope
        self.inner = [self._span(s) for s in inner]
        if self.layout in ("column", "scatter"):
            self.full = [*self.inner, *inside]
            self.row = inside
        elif self.layout == "row":
            self.full, self.row = self.inner, []
        else:
            self.full, self.row = inside, []
        innermost = [t[-1].symbol for t in (self.full, self.row) if t]
        self.vector = [s for s in dict.fromkeys(innermost) if s is not None]
        self.collapse = self._collapse()
        self.depth: dict[Symbol, int] = {}
        for k, span in enumerate(spans):
            if span.symbol is not None:
                self.depth[span.symbol] = max(k + 1, self.collapse)
        for k, span in enumerate(self.full):
            if span.symbol is not None:
                self.depth[span.symbol] = self.base + k + 1

    def _transposed(self, outer: list[Symbol]) -> Symbol | None:
        """The dimension that some dense access runs along other than the lanes', if any."""
        assert self.lane is not None and self.lane.extent is not None
        if size_hint(self.lane.extent) < 16:
            return None
        for steps, _ in self._accesses():
            if steps.get(self.lane, 0) in (0, 1):
                continue
            for s in outer:
                if steps.get(s) == 1 and s.extent is not None and size_hint(s.extent) >= 16:
                    return s
        return None

    def _place(self) -> Symbol | None:
        """A coordinate of where a scatter stores that is one for many lanes, if there is one."""
        if self.layout != "scatter" or self.lane is None or size_hint(self.lane.extent or 0) < 64:
            return None
        for s in symbols(self.members[0].index):
            seen, left = set(), [s.scalar] if s.scalar is not None else []
            for x in left:
                seen |= {t for e in x.args if isinstance(e, Expr) for t in symbols(e)}
                left += x.operands()
            if seen & set(self.group.inner) and self.lane not in seen:
                return s
        return None

    def _is_long(self) -> bool:
        """Whether an iteration is too long for the processor to have several under way."""
        return sum(s.op in LONG for m in self.members for s in m.node.trace) > 1

    def _end(self, s: Symbol) -> str:
        """The extent of a loop over results, an argument of the kernel: so that other sizes run the
        same code. Short ones are worth code of their own."""
        assert s.extent is not None
        if not isinstance(s.extent, int) or s.extent < SHORT:
            return self.size(s.extent)
        if s not in self.ends:
            self.ends[s] = self._argument(s.extent)
        return self.ends[s]

    def _argument(self, n: int) -> str:
        self.sizes.append(n)
        return f"n{len(self.sizes) - 1}"

    def _span(self, s: Symbol) -> Span:
        assert s.extent is not None
        return Span(self.names[s], "0", self.size(s.extent), 1, s)

    def _tile(self, s: Symbol, width: int) -> Span:
        assert s.extent is not None
        return Span(f"{self.names[s]}_tile", "0", self._end(s), width)

    def _tiled(self, s: Symbol, width: int) -> Span:
        assert s.extent is not None
        name = f"{self.names[s]}_tile"
        stop = f"{name} + {width}"
        if not (isinstance(s.extent, int) and s.extent % width == 0):
            end = self._end(s)
            stop = f"({stop} < {end} ? {stop} : {end})"
        return Span(self.names[s], name, stop, 1, s)

    def _collapse(self) -> int:
        """How many of the outermost loops the threads share."""
        total = 1
        for k, span in enumerate(self.spans):
            if span.symbol is not None:
                assert span.symbol.extent is not None
                total *= size_hint(span.symbol.extent)
            else:
                total = CHUNKS
            if total >= CHUNKS:
                return k + 1
        return len(self.spans)
