"""A loop tree in C: OpenMP threads outside, `omp simd` lanes inside. It decides nothing."""

from __future__ import annotations

from torch_tenon.compiler.kernel import STATUS_WORDS
from torch_tenon.compiler.loops.groups import chooses_in_groups
from torch_tenon.compiler.loops.tree import Accumulator, Barrier, For, Tree
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import Names, Writer, indent

PARALLEL = "#pragma omp parallel for schedule(static) CAPTURED"
ONE_BY_ONE = "ONE_BY_ONE;"
SHARES = "const int64_t shares = power_of_2_from(omp_get_max_threads());"


class CWriter(Writer):
    """Spells the statements of one tree. Threads share out the grid where `threads` is positive;
    `given` is as for `Writer`."""

    def __init__(self, tree: Tree, threads: Index, given: Names | None = None) -> None:
        super().__init__(tree, given)
        self.threads = threads
        self.in_grid = False

    def function(self, origin: str) -> str:
        """The function of a kernel of that origin."""
        pointers, status = ("a", "status") if self.tree.sets is None else ("all", "reports")
        lines = self.pointers() if self.tree.sets is None else []
        lines += self.sizes()
        if self.tree.shares is not None:
            lines.append(SHARES)
        lines += self.body(self.tree.body)
        head = f"void @NAME@(void *const *{pointers}, const int64_t *s, int64_t *{status}) {{"
        return "\n".join([f"/* {origin} */", head, *indent(lines), "}\n"])

    def sizes(self) -> list[str]:
        """The run-time sizes and the numbers that are arguments."""
        return [f"const int64_t n{k} = s[{k}];" for k, _ in enumerate(self.arguments)]

    def _start(self, number: int, pointer: str) -> str:
        return f"a[{number}]"

    def _set(self) -> list[str]:
        """Where one of several runs finds its memory."""
        name = self.names[self.tree.sets]
        words = STATUS_WORDS * len(self.failures)
        return [
            f"void *const *const a = all + {name} * {len(self.storages)};",
            f"int64_t *const status = reports + {name} * {words};",
            *self.pointers(),
        ]

    def _inside(self, s: For) -> list[str]:
        before, self.in_grid = self.in_grid, self.in_grid or s.kind == "grid"
        lines = self._set() if s.symbol is self.tree.sets else []
        if chooses_in_groups(s):
            lines.append(ONE_BY_ONE)
        lines += super()._inside(s)
        self.in_grid = before
        return lines

    def _barrier(self, s: Barrier) -> list[str]:
        return []  # one thread runs all of a position

    def _pragma(self, s: For) -> list[str]:
        if s.kind == "grid" and not self.in_grid:
            return self._parallel(s)
        if s.kind == "lane":
            if chooses_in_groups(s):
                return []
            return [" ".join(["#pragma omp simd", *self._reductions(s)])]
        if s.kind == "unrolled":
            return [f"#pragma GCC unroll {s.stops[0] - s.starts[0]}"]
        return []

    def _parallel(self, s: For) -> list[str]:
        if self.threads == 0:
            return []
        depth, inner = 1, s.body
        while len(inner) == 1 and isinstance(inner[0], For) and inner[0].kind == "grid":
            depth, inner = depth + 1, inner[0].body
        text = PARALLEL + (f" collapse({depth})" if depth > 1 else "")
        if not isinstance(self.threads, int):
            text += f" if ({self.index(self.threads)} > 0)"
        return [text]

    def _reductions(self, s: For) -> list[str]:
        """A clause for each accumulator in a register that comes from outside the loop."""
        return [f"reduction({_name(a)}:{self.names[a]})" for a in self.reduced(s)]


def _name(a: Accumulator) -> str:
    """What a clause calls the combination."""
    sign = c.infix(a.combine, a.dtype)
    if sign:
        return sign
    # Of floats they are kernel.h's, which let a NaN through.
    return f"{a.combine}_{TABLE[a.dtype].short}" if a.dtype.is_floating_point else a.combine
