"""Products of matrices in OpenCL C, with what was fused with them over each tile."""

from __future__ import annotations

from torch_tenon.compiler.kernel import Kernel, origin_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, floordiv
from torch_tenon.ir.values import Buffer, Layout, size_hint
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.products import Product, three
from torch_tenon.targets.opencl.device import Shape
from torch_tenon.targets.opencl.dialect import OpenCLWriter

VECTOR = 16  # columns of a vector, as in templates/product.h
STRIPS = 8  # strips of rows that go along one panel


def generate_product(group: Group, kept: set[Buffer], shape: Shape) -> Kernel:
    """The kernel of a group with a product; `kept` are the buffers that somebody outside needs."""
    return OpenCLProduct(group, kept).tiled(shape)


class OpenCLProduct(Product):
    """A product in tiles, each by one work-item, with the members after it over the tile."""

    def tiled(self, shape: Shape) -> Kernel:
        """The kernel."""
        tree = self.epilogue()
        writer = OpenCLWriter(tree, shape, self.names())
        epilogue = writer.body(tree.body)
        (batch, m, _), n = three(self.node.left.sizes, 1), self.node.right.sizes[-1]
        rows, span = self._tile(m, n, size_hint(batch), shape)
        height, width = rows * STRIPS, span * VECTOR
        lines = [*self._multiply(writer, height, width), *epilogue]
        origin = origin_of(self.whole.members)
        short = TABLE[self.node.buffer.dtype].short
        load = "" if short == "f32" else f"from_{short}"
        ctype = c.MEMORY[self.node.buffer.dtype]
        template = f"MULTIPLY(@NAME@, {ctype}, {load}, {rows}, {span})"
        groups = batch * floordiv(m + height - 1, height) * floordiv(n + width - 1, width)
        return self.made(f"{template}\n{writer.kernel(origin, lines)}", writer, [groups])

    def _tile(self, m: Index, n: Index, batch: int, shape: Shape) -> tuple[int, int]:
        """Rows that go along a panel together, and vectors in one of its rows: as many as registers
        hold, less for a matrix that is smaller or would give too few tiles."""
        down, across = size_hint(m), size_hint(n)
        span = 2 if across > VECTOR else 1
        rows = 12 if down > 4 else 4 if down > 1 else 1
        while rows > 4 and batch * -(-down // (rows * STRIPS)) * -(-across // 32) < shape.units:
            rows //= 2
        return rows, span

    def _multiply(self, writer: OpenCLWriter, height: int, width: int) -> list[str]:
        """What computes a tile, and stores it where somebody needs the product itself."""
        node, out = self.node, self.target()

        def number(n: Index) -> str:
            text = writer.argument(self.arguments.number(n))
            return f"({text})" if " " in text else text

        def matrix(buffer: Buffer, layout: Layout) -> tuple[str, str, str]:
            batch, down, along = map(number, three(layout.strides, 0))
            start = f"{writer.pointer(buffer)} + {number(layout.offset)} + b*{batch}"
            return start, down, along

        a, b = (", ".join(matrix(v.buffer, v.layout)) for v in (node.left, node.right))
        (_, m, k), n = three(node.left.sizes, 1), node.right.sizes[-1]
        lines = [
            f"const int64_t across = ({number(n)} + {width - 1}) / {width};",
            f"const int64_t down = ({number(m)} + {height - 1}) / {height};",
            "const int64_t tile = get_group_id(0), b = tile / (across * down);",
            f"const int64_t top = tile / across % down * {height}, left = tile % across * {width};",
            f"const int64_t bottom = min(top + {height}, (int64_t){number(m)});",
            f"const int64_t right = min(left + {width}, (int64_t){number(n)}), step = {width};",
            f"float sums[{height * width}];",
            f"multiply_@NAME@(sums, {a}, {b}, top, bottom, left, right, {number(k)});",
        ]
        short = TABLE[node.buffer.dtype].short
        if short == "f32":
            lines.append("const float *const product = sums;")
        else:
            lines += [
                f"uint16_t product[{height * width}];",
                f"for (int k = 0; k < {height * width}; ++k) product[k] = to_{short}(sums[k]);",
            ]
        if node.buffer in self.kept or not self.members:
            assert out is not None
            start, down, along = matrix(out, Layout.contiguous(node.out.sizes))
            lines += [
                "for (int64_t i = top; i < bottom; ++i)",
                f"  for (int64_t j = left; j < right; ++j) ({start})[i*{down} + j*{along}] =",
                f"      product[(i - top)*{width} + j - left];",
            ]
        return lines
