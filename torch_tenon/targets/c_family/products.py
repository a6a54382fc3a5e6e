"""Kernels of a product of matrices: its epilogue, the pointwise loops that were fused with it."""

from __future__ import annotations

from collections.abc import Sequence

from torch_tenon.compiler.kernel import Kernel, operand_bytes
from torch_tenon.compiler.loops.checks import collect_checks
from torch_tenon.compiler.loops.cut import cut_where_conditions_change
from torch_tenon.compiler.loops.lower import Lowering, joined_loops
from torch_tenon.compiler.loops.numbers import Arguments, Numbers
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.tree import (
    Array,
    For,
    Kind,
    Load,
    Statement,
    Tree,
)
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, Symbol, product, var
from torch_tenon.ir.program import Matmul
from torch_tenon.ir.scalar_ops import PLAIN_OPS
from torch_tenon.ir.values import Buffer
from torch_tenon.targets.c_family import layout as decide
from torch_tenon.targets.c_family.dialect import Names, Writer


class Product:
    """A product, with the members after it as loops over a piece of it.

    A piece is rows `top` to `bottom` and columns `left` to `right` of matrix `b` of the batch; its
    rows are `step` elements apart in memory.
    """

    def __init__(self, group: Group, kept: set[Buffer]) -> None:
        matmul = next(m for m in group.members if isinstance(m.node, Matmul))
        assert isinstance(matmul.node, Matmul)
        self.matmul, self.node, self.whole, self.kept = matmul, matmul.node, group, kept
        self.members = [m for m in group.members if m is not matmul]
        self.given = {
            name: Symbol(name) for name in ("b", "top", "bottom", "left", "right", "step")
        }
        extents = [None if s is None else s.extent for s in self.node.axes]
        self.row, self.column = Symbol("i", extents[1] or 1), Symbol("j", extents[2] or 1)
        self.piece = Array("product", self.node.buffer.dtype, 0)
        self.arguments = Arguments(
            Numbers(decide.FAR, decide.SHORT, (), [self.column], PLAIN_OPS, self._is_columns)
        )

    def names(self) -> Names:
        """What the epilogue does not bind: the piece and where it lies."""
        return Names({s: name for name, s in self.given.items()}, {self.piece: "product"})

    def made(self, source: str, writer: Writer, first: Sequence[Index] = ()) -> Kernel:
        """The kernel of a source that `writer` has named things in; `first` are numbers before
        those of its arguments."""
        numbers, work = self.arguments.numbers, product(s.extent for s in self.whole.symbols())
        kernel = writer.made(source, self.whole, self.kept, numbers, "matmul", work, first)
        kernel.bytes_moved = operand_bytes(self.node) + kernel.bytes_moved
        return kernel

    def _is_columns(self, loop: For) -> bool:
        return loop.symbol is self.column

    def epilogue(self) -> Tree:
        """The members after the product: rows outside, columns inside."""
        if not self.members:
            return Tree([])
        loops: dict[Symbol, Index] = {}
        axes = (self.given["b"], self.row, self.column)
        of_axis = [
            joined_loops(self.matmul, s, axis, loops)
            for axis, s in zip(axes, self.node.axes, strict=True)
        ]
        dtype = TABLE[self.node.buffer.dtype].compute
        row, column = var(self.row) - var(self.given["top"]), var(self.column)
        # Read before anything is stored: a result may take the product's place in memory.
        index = row * var(self.given["step"]) + column - var(self.given["left"])
        element = Load(self.piece, index, dtype)
        rest = Group(0, self.members, self.whole.outer, [])
        lowering = Lowering(rest, self.kept, loops, {self.node.buffer: element})
        inside = self._over(
            self.column, "left", "right", [element, *lowering.statements(self.members)]
        )
        rows = self._over(self.row, "top", "bottom", [*of_axis[1], inside])
        tree = Tree(self.arguments.body(place_values(Tree([*of_axis[0], rows])).body))
        tree = collect_checks(tree, self._is_columns)
        tree.numbers = self.arguments.numbers
        return cut_where_conditions_change(tree, decide.MOST_PIECES, self._is_columns)

    def _over(self, symbol: Symbol, start: str, stop: str, body: list[Statement]) -> For:
        ends = var(self.given[start]), var(self.given[stop])
        kind: Kind = "lane" if symbol is self.column else "parallel"
        return For(symbol, kind, symbol, ends[:1], ends[1:], body)

    def target(self) -> Buffer | None:
        """Where the product goes: its own memory, or that of a result which takes its place."""
        if not self.members or self.node.buffer in self.kept:
            return self.node.buffer
        for m in self.members:
            b = m.node.buffer
            fresh = b.previous is None and b.storage.kind in ("temporary", "output")
            same = m.index == self.matmul.index and b.dtype is self.node.buffer.dtype
            if b in self.kept and fresh and same:
                return b
        return None


def three(parts: tuple[Index, ...], first: Index) -> tuple[Index, ...]:
    """The parts of a batch, of which there is one, `first`, where there are two."""
    return parts if len(parts) == 3 else (first, *parts)
