"""Products of matrices in OpenCL C, with what was fused with them over each tile."""

from __future__ import annotations

from collections.abc import Sequence

from torch_tenon.compiler.kernel import Kernel, origin_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, floordiv
from torch_tenon.ir.values import Buffer, Layout, size_hint
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import indent
from torch_tenon.targets.c_family.products import Product, three
from torch_tenon.targets.opencl.device import Shape
from torch_tenon.targets.opencl.dialect import OpenCLWriter, Part, Shared

VECTOR = 16  # columns of a vector, as in templates/product.h
STRIPS = 8  # strips of rows that go along one panel
DEPTH = 16  # columns of the left matrix that local memory has at once, as in templates/tile.h
FEW = 4  # rows or columns that a work-item has alone, of a product with no more of them
MOST = 8  # rows and columns that a work-item has at most
BESIDE = 4  # of them that lie side by side, as in templates/tile.h: a read of local memory
# What an operand's element costs a work-item that reads it in local memory, in multiplications.
READING = 2
# What a piece of the product is called in a kernel, and the tile that it is a part of.
ROWS, COLUMNS = ("top", "bottom"), ("left", "right")
TILE = ("first_row", "last_row", "first_column", "last_column")


def generate_product(group: Group, kept: set[Buffer], shape: Shape) -> Kernel:
    """The kernel of a group with a product; `kept` are the buffers that somebody outside needs."""
    made = OpenCLProduct(group, kept, shape)
    return made.by_one() if shape.items == 1 else made.together()


class OpenCLProduct(Product):
    """A product in tiles, with the members after it over the tile."""

    def __init__(self, group: Group, kept: set[Buffer], shape: Shape) -> None:
        super().__init__(group, kept)
        self.shape = shape
        (self.batch, self.m, self.k), self.n = (
            three(self.node.left.sizes, 1),
            self.node.right.sizes[-1],
        )
        self.ctype = c.MEMORY[self.node.buffer.dtype]
        short = TABLE[self.node.buffer.dtype].short
        self.load, self.store = ("", "") if short == "f32" else (f"from_{short}", f"to_{short}")

    def by_one(self) -> Kernel:
        """The kernel of tiles that a work-item has each: on a processor."""
        tree = self.epilogue()
        writer = OpenCLWriter(tree, self.shape, self.names())
        epilogue = writer.body(tree.body)
        rows, span = self._tile()
        height, width = rows * STRIPS, span * VECTOR
        lines = [
            *self._place(writer, height, width),
            f"const int64_t step = {width};",
            f"float sums[{height * width}];",
            f"multiply_@NAME@(sums, {self._arguments(writer)});",
        ]
        if self.store:
            lines += [
                f"uint16_t product[{height * width}];",
                f"for (int k = 0; k < {height * width}; ++k) product[k] = {self.store}(sums[k]);",
            ]
        else:
            lines.append("const float *const product = sums;")
        lines += self._stored(writer, "i = top; i < bottom; ++i", "j = left; j < right; ++j", width)
        template = f"MULTIPLY(@NAME@, {self.ctype}, {self.load}, {rows}, {span})"
        return self._made(template, writer, [*lines, *epilogue], height, width)

    def together(self) -> Kernel:
        """The kernel of tiles that a work-group has each. Its work-items have the sums in registers
        and exchange them in local memory, a part of the tile at a time."""
        self.piece.space = "shared"
        down, across, tall, wide = self._of_items()
        height, width = down * tall, across * wide
        rows, columns = down * min(tall, BESIDE), across * min(wide, BESIDE)
        apart = min(columns, self.shape.items)
        parts = {self.column: Part(1, apart), self.row: Part(apart, self.shape.items // apart)}
        tree = self.epilogue()
        writer = OpenCLWriter(tree, self.shape, self.names(), Shared(self.shape.items, parts))
        epilogue = writer.body(tree.body)
        lefts, rights = DEPTH * (height + BESIDE), DEPTH * (width + BESIDE)
        room = max(rows * columns, lefts + rights)  # the product comes when both have been read
        writer.local_memory.append(f"__local float room[{room}] __attribute__((aligned(16)));")
        along = width // columns
        each = [
            f"{name} = {start} + {part.first()}; {name} < {stop}; {name} += {part.count}"
            for name, start, stop, part in (
                ("i", "top", "bottom", parts[self.row]),
                ("j", "left", "right", parts[self.column]),
            )
        ]
        inside = [
            f"const int64_t top = first_row + part / {along} * {rows};",
            f"const int64_t left = first_column + part % {along} * {columns};",
            f"const int64_t bottom = min(top + {rows}, last_row), step = {columns};",
            f"const int64_t right = min(left + {columns}, last_column);",
            f"put_tile_@NAME@(product, sums, part / {along}, part % {along});",
            *self._stored(writer, each[0], each[1], columns),
            *epilogue,
        ]
        lines = [
            *self._place(writer, height, width, TILE[:2], TILE[2:]),
            f"float sums[{tall * wide}];",
            f"__local {self.ctype} *const product = (__local {self.ctype} *)room;",
            f"multiply_tile_@NAME@(sums, room, room + {lefts}, {self._arguments(writer, TILE)});",
            "#pragma unroll",
            f"for (int part = 0; part < {height // rows * along}; ++part) {{",
            *indent(inside),
            "}",
        ]
        sizes = f"{down}, {across}, {tall}, {wide}"
        template = f"MULTIPLY_TILE(@NAME@, {self.ctype}, {self.load}, {self.store}, {sizes})"
        return self._made(template, writer, lines, height, width)

    def _made(
        self, template: str, writer: OpenCLWriter, lines: list[str], height: int, width: int
    ) -> Kernel:
        down = floordiv(self.m + height - 1, height)
        across = floordiv(self.n + width - 1, width)
        text = writer.kernel(origin_of(self.whole.members), lines)
        return self.made(f"{template}\n{text}", writer, [self.batch * down * across])

    def _tile(self) -> tuple[int, int]:
        """Rows that go along a panel together, and vectors in one of its rows: as many as registers
        hold, less for a matrix that is smaller or would give too few tiles."""
        down, across, batch = map(size_hint, (self.m, self.n, self.batch))
        span = 2 if across > VECTOR else 1
        rows = 12 if down > 4 else 4 if down > 1 else 1
        units = self.shape.units
        while rows > 4 and batch * -(-down // (rows * STRIPS)) * -(-across // 32) < units:
            rows //= 2
        return rows, span

    def _of_items(self) -> tuple[int, int, int, int]:
        """How work-items lie in a tile, down and across, and how many elements each of them has
        either way. Large tiles read less, and many small ones keep all compute units at work: what
        is estimated to take least."""
        m, n, batch = map(size_hint, (self.m, self.n, self.batch))
        items = self.shape.items
        if m <= FEW or n <= FEW:
            few = 1 << (max(1, min(m, n)) - 1).bit_length()
            return (1, items, few, 1) if m <= n else (items, 1, 1, few)
        down = 1 << (items.bit_length() - 1) // 2
        across = items // down

        def time(tall: int, wide: int) -> int:
            tiles = batch * -(-m // (down * tall)) * -(-n // (across * wide))
            return -(-tiles // self.shape.units) * (tall * wide + READING * (tall + wide))

        each = [1 << k for k in range(MOST.bit_length())]
        fitting = (
            (tall, wide)
            for tall in each
            for wide in each
            if (tall == 1 or down * tall < 2 * m) and (wide == 1 or across * wide < 2 * n)
        )
        return down, across, *min(fitting, key=lambda sides: time(*sides))

    def _number(self, writer: OpenCLWriter, n: Index) -> str:
        text = writer.argument(self.arguments.number(n))
        return f"({text})" if " " in text else text

    def _matrix(self, writer: OpenCLWriter, buffer: Buffer, layout: Layout) -> tuple[str, str, str]:
        """Where a matrix starts, and its steps from row to row and from column to column."""
        steps = (self._number(writer, n) for n in three(layout.strides, 0))
        batch, down, along = steps
        offset = self._number(writer, layout.offset)
        return f"{writer.pointer(buffer)} + {offset} + b*{batch}", down, along

    def _arguments(self, writer: OpenCLWriter, ends: Sequence[str] = (*ROWS, *COLUMNS)) -> str:
        """What tells a template of the operands and of the tile's place."""
        operands = (self.node.left, self.node.right)
        a, b = (", ".join(self._matrix(writer, v.buffer, v.layout)) for v in operands)
        return f"{a}, {b}, {', '.join(ends)}, {self._number(writer, self.k)}"

    def _place(
        self,
        writer: OpenCLWriter,
        height: int,
        width: int,
        rows: tuple[str, str] = ROWS,
        columns: tuple[str, str] = COLUMNS,
    ) -> list[str]:
        """Where a work-group's tile is."""
        m, n = self._number(writer, self.m), self._number(writer, self.n)
        return [
            f"const int64_t across = ({n} + {width - 1}) / {width};",
            f"const int64_t down = ({m} + {height - 1}) / {height};",
            "const int64_t tile = get_group_id(0), b = tile / (across * down);",
            f"const int64_t {rows[0]} = tile / across % down * {height};",
            f"const int64_t {columns[0]} = tile % across * {width};",
            f"const int64_t {rows[1]} = min({rows[0]} + {height}, (int64_t){m});",
            f"const int64_t {columns[1]} = min({columns[0]} + {width}, (int64_t){n});",
        ]

    def _stored(self, writer: OpenCLWriter, rows: str, columns: str, width: int) -> list[str]:
        """The product itself into memory, where somebody needs it."""
        if self.node.buffer not in self.kept and self.members:
            return []
        out = self.target()
        assert out is not None
        start, down, along = self._matrix(writer, out, Layout.contiguous(self.node.out.sizes))
        return [
            f"for (int64_t {rows})",
            f"  for (int64_t {columns}) ({start})[i*{down} + j*{along}] =",
            f"      product[(i - top)*{width} + j - left];",
        ]
