"""Kernels around a product of matrices: a call of the tuned product, and its epilogue.

The epilogue is the pointwise loops that were fused with the product. It is a function over a piece
of the product, which the target's kernel calls for each piece while it is in the cache.
"""

from __future__ import annotations

import torch

from torch_tenon.compiler.kernel import Kernel, bytes_moved, origin_of
from torch_tenon.compiler.loops.checks import collect_checks
from torch_tenon.compiler.loops.cut import cut_where_conditions_change
from torch_tenon.compiler.loops.lower import Lowering
from torch_tenon.compiler.loops.numbers import Arguments, Numbers
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.tree import (
    Array,
    For,
    Kind,
    Let,
    Load,
    Statement,
    Tree,
)
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, Symbol, floordiv, mod, product, strides, var
from torch_tenon.ir.program import MATMUL_DTYPES, Matmul
from torch_tenon.ir.scalar_ops import PLAIN_OPS
from torch_tenon.ir.values import Buffer, Layout, loop_symbol
from torch_tenon.targets.cpu import layout as decide
from torch_tenon.targets.cpu import scalars as c
from torch_tenon.targets.cpu.autotune import INTERFACE
from torch_tenon.targets.cpu.dialect import Names, Writer, indent

ENTRY = "void *tenon_matmul;"  # set when the object is loaded
HEAD = "void *const *a, const int64_t *s, int64_t *status"


def generate_matmul(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group with a product; `kept` are the buffers that somebody outside needs."""
    first = next(m for m in group.members if isinstance(m.node, Matmul))
    return Product(group, first, kept).kernel()


class Product:
    """The kernel of a product, with the members after it as loops over a piece of it.

    A piece is rows `top` to `bottom` and columns `left` to `right` of matrix `b` of the batch; its
    rows are `step` elements apart in memory.
    """

    def __init__(self, group: Group, matmul: Member, kept: set[Buffer]) -> None:
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

    def kernel(self) -> Kernel:
        """The epilogue, if there is one, and the function that calls the product with it."""
        tree = self._epilogue() if self.members else Tree([])
        names = Names({s: name for name, s in self.given.items()}, {self.piece: "product"})
        writer = Writer(tree, 0, names)
        epilogue = writer.body(tree.body)
        call = self._call(writer)
        arguments = [*writer.pointers(), *writer.sizes()]
        origin = origin_of(self.whole.members)
        source = [INTERFACE, ENTRY, f"/* {origin} */"]
        if self.members:
            source += self._function(arguments, epilogue)
        source += [f"void @NAME@({HEAD}) {{", *indent(arguments + call), "}", ""]
        return Kernel(
            "\n".join(source),
            writer.storages,
            [self.arguments.numbers.get(s, s) for s in writer.arguments],
            origin,
            self._traffic(),
            "matmul",
            work=product(s.extent for s in self.whole.symbols()),
            checks=[f.calls for f in writer.failures],
        )

    def _is_columns(self, loop: For) -> bool:
        return loop.symbol is self.column

    def _epilogue(self) -> Tree:
        """The members after the product: rows outside, columns inside."""
        loops: dict[Symbol, Index] = {}
        axes = (self.given["b"], self.row, self.column)
        of_axis = [
            self._loops_of(axis, s, loops) for axis, s in zip(axes, self.node.axes, strict=True)
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

    def _loops_of(
        self, axis: Symbol, whole: Symbol | None, loops: dict[Symbol, Index]
    ) -> list[Statement]:
        """Adds the group's loops of which one of the product is a join, and computes them from it
        where they are several."""
        if whole is None:
            return []
        steps = strides(self.matmul.values[whole]) or {}
        if len(steps) == 1:
            loops[next(iter(steps))] = var(axis)
            return []
        computed: list[Statement] = []
        for s, step in steps.items():
            assert s.extent is not None
            position = floordiv(var(axis), step)
            if step * s.extent != whole.extent:
                position = mod(position, s.extent)
            symbol = loop_symbol(axis.name, len(computed), s.extent)
            computed.append(Let("index", (position,), torch.int64, symbol))
            loops[s] = var(symbol)
        return computed

    def _function(self, arguments: list[str], epilogue: list[str]) -> list[str]:
        ctype = c.MEMORY[self.node.buffer.dtype]
        lines = [
            *arguments,
            f"const {ctype} *const product = piece;",
            # Names for the bounds: the stores might change memory behind a pointer.
            "const int64_t top = box[0], bottom = box[1], left = box[2], right = box[3];",
        ]
        if self.node.axes[0] is not None:
            lines.append("const int64_t b = box[4];")
        box = "const void *piece, int64_t step, const int64_t *box"
        head = f"static void epilogue_@NAME@({box}, {HEAD}) {{"
        return [head, *indent(lines + epilogue), "}"]

    def _call(self, writer: Writer) -> list[str]:
        node, out = self.node, self._target()

        def number(n: Index) -> str:
            return writer.argument(self.arguments.number(n))

        def steps(layout: Layout) -> str:
            return ", ".join(number(k) for k in _three(layout.strides, 0))

        operands = [
            f"{writer.pointer(value.buffer)} + {number(value.layout.offset)}"
            for value in (node.left, node.right)
        ]
        (batch, m, k), n = _three(node.left.sizes, 1), node.right.sizes[-1]
        c_steps = _three(Layout.contiguous(node.out.sizes).strides, 0)[:2]
        fields = {
            "a": operands[0],
            "b": operands[1],
            "c": "0" if out is None else writer.pointer(out),
            "kept": str(int(node.buffer in self.kept)),
            "dtype": str(MATMUL_DTYPES.index(node.buffer.dtype)),
            "batch": number(batch),
            "m": number(m),
            "n": number(n),
            "k": number(k),
            "a_strides": f"{{{steps(node.left.layout)}}}",
            "b_strides": f"{{{steps(node.right.layout)}}}",
            "c_strides": f"{{{', '.join(number(k) for k in c_steps)}}}",
        }
        if self.members:
            fields |= {"epilogue": "epilogue_@NAME@", "arguments": "a", "sizes": "s"}
            fields["status"] = "status"
        text = [f".{name} = {value}," for name, value in fields.items()]
        run = "((void (*)(const tenon_matmul_t *))tenon_matmul)(&product);"
        return ["const tenon_matmul_t product = {", *indent(text), "};", run]

    def _target(self) -> Buffer | None:
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

    def _traffic(self) -> Index:
        operands = (self.node.left, self.node.right)
        read = sum(product(v.sizes) * v.dtype.itemsize for v in operands)
        return read + bytes_moved(self.whole, self.kept)


def _three(parts: tuple[Index, ...], first: Index) -> tuple[Index, ...]:
    return parts if len(parts) == 3 else (first, *parts)
