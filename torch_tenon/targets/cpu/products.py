"""Kernels around a product of matrices: a call of the tuned product, and its epilogue.

The epilogue is a function over a piece of the product, which the target's kernel calls for each
piece while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_tenon.compiler.kernel import Kernel, origin_of
from torch_tenon.compiler.schedule import Group
from torch_tenon.ir.index import Index, product
from torch_tenon.ir.program import MATMUL_DTYPES, Matmul
from torch_tenon.ir.values import Buffer, Layout
from torch_tenon.targets.c_family import scalars as c
from torch_tenon.targets.c_family.dialect import indent
from torch_tenon.targets.c_family.products import Product, three
from torch_tenon.targets.cpu.autotune import FOLDER, INTERFACE
from torch_tenon.targets.cpu.dialect import CWriter

NARROW = (FOLDER / "narrow.h").read_text()
ENTRY = "void *tenon_matmul;"  # set when the object is loaded
PLACES = "const tenon_places_t places = {"
WINDOWS = "const tenon_windows_t windows = {"
HEAD = "void *const *a, const int64_t *s, int64_t *status"


def generate_product(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group with a product; `kept` are the buffers that somebody outside needs."""
    return CProduct(group, kept).kernel()


class CProduct(Product):
    """The product by the target's kernel, with the members after it as a function."""

    declared = ENTRY  # before the functions
    driver = "tenon_matmul"  # the address of what multiplies, in C

    def kernel(self) -> Kernel:
        """The epilogue, if there is one, and the function that calls the product with it."""
        tree = self.epilogue()
        writer = CWriter(tree, 0, self.names())
        epilogue = writer.body(tree.body)
        call = self._call(writer)
        arguments = [*writer.pointers(), *writer.sizes()]
        driver = self._narrow_driver() if self.node.is_narrow else [self.declared]
        source = [INTERFACE, *driver, f"/* {origin_of(self.whole.members)} */"]
        if self.members:
            source += self._function(arguments, epilogue)
        source += [f"void @NAME@({HEAD}) {{", *indent(arguments + call), "}", ""]
        return self.made("\n".join(source), writer)

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

    def _call(self, writer: CWriter) -> list[str]:
        node, out = self.node, self.target()

        def number(n: Index) -> str:
            return writer.argument(self.arguments.number(n))

        def steps(layout: Layout) -> str:
            return ", ".join(number(k) for k in three(layout.strides, 0))

        operands = [
            f"{writer.pointer(value.buffer)} + {number(value.layout.offset)}"
            for value in (node.left, node.right)
        ]
        (batch, m, n), k = three(node.out.sizes, 1), self._depth()
        windows = self._windows(number) if node.rows > 1 else []
        places = self._places(number) if node.places is not None else []
        c_steps = three(Layout.contiguous(node.out.sizes).strides, 0)[:2]
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
            "a_strides": f"{{{steps(_left_matrices(node))}}}",
            "b_strides": f"{{{steps(_matrices(node))}}}",
            "c_strides": f"{{{', '.join(number(k) for k in c_steps)}}}",
        }
        if self.members:
            fields |= {"epilogue": "epilogue_@NAME@", "arguments": "a", "sizes": "s"}
            fields["status"] = "status"
        if windows:
            fields["windows"] = "&windows"
        if places:
            fields["places"] = "&places"
        if node.panels:
            fields["panels"] = "1"
        text = [f".{name} = {value}," for name, value in fields.items()]
        run = [f"((void (*)(const tenon_matmul_t *)){self.driver})(&product);"]
        if node.is_narrow:
            run = self._run_narrow(writer, number)
        return [*windows, *places, "const tenon_matmul_t product = {", *indent(text), "};", *run]

    def _narrow_driver(self) -> list[str]:
        """A driver for weights of few bits: it is a part of the kernel, for its number of rows."""
        node = self.node
        if node.weights is not None:
            block = node.weights.block
            piece, width = f"narrow_four_bits_{block // 2}", block
        else:
            byte = "int8" if node.right.dtype is torch.int8 else "uint8"
            columns = node.right.layout.strides[-2] == 1
            piece, width = (
                (f"narrow_columns_{byte}", 64) if columns else (f"narrow_rows_{byte}", 512)
            )
        return [NARROW, f"NARROW_PRODUCT(@NAME@, {piece}, {node.left.sizes[-2]}, {width})"]

    def _run_narrow(self, writer: CWriter, number: Callable[[Index], str]) -> list[str]:
        weights = self.node.weights
        if weights is None:
            return ["multiply_@NAME@(&product, 0);"]
        start = f"{writer.pointer(weights.scales.buffer)} + {number(weights.scales.layout.offset)}"
        fields = f".scales = {start}, .group = {weights.group}, .block = {weights.block}"
        return [
            f"const tenon_four_bits_t weights = {{{fields}}};",
            "multiply_@NAME@(&product, &weights);",
        ]

    def _depth(self) -> Index:
        """The numbers that each element of the product is a sum over."""
        node = self.node
        if node.places is None:
            return node.left.sizes[-1]
        return product([node.left.sizes[1], *node.places.kernel])

    def _places(self, number: Callable[[Index], str]) -> list[str]:
        """The left operand as windows of an image by channel."""
        layout, p = self.node.left.layout, self.node.places
        assert p is not None
        pairs = {
            "size": layout.sizes[2:],
            "step": layout.strides[2:],
            "places": p.places,
            "kernel": p.kernel,
            "stride": p.stride,
            "padding": p.padding,
            "dilation": p.dilation,
        }
        text = [f".{name} = {{{number(y)}, {number(x)}}}," for name, (y, x) in pairs.items()]
        text.append(f".channels = {number(layout.sizes[1])},")
        return [PLACES, *indent(text), "};"]

    def _windows(self, number: Callable[[Index], str]) -> list[str]:
        """The right operand as windows of an image."""
        layout, first = self.node.right.layout, self.node.rows + 1

        def padded(numbers: Sequence[Index], count: int, filler: Index) -> str:
            full = [*[filler] * (count - len(numbers)), *numbers]
            return f"{{{', '.join(map(number, full))}}}"

        length = Layout(layout.sizes[1:], layout.strides[1:]).span()
        fields = {
            "rows": padded(layout.sizes[1:first], 4, 1),
            "row_steps": padded(layout.strides[1:first], 4, 0),
            "columns": padded(layout.sizes[first:], 3, 1),
            "column_steps": padded(layout.strides[first:], 3, 0),
            "length": number(length),
        }
        text = [f".{name} = {value}," for name, value in fields.items()]
        return [WINDOWS, *indent(text), "};"]


def _left_matrices(node: Matmul) -> Layout:
    """How the matrices of the left operand lie; of an image the driver asks for the batch alone."""
    layout = node.left.layout
    if node.places is None:
        return layout
    return Layout((layout.sizes[0], 1, 1), (layout.strides[0], 0, 0), layout.offset)


def _matrices(node: Matmul) -> Layout:
    """How the matrices of the right operand lie; of windows the driver asks for the batch alone."""
    layout = node.right.layout
    if node.rows == 1:
        return layout
    return Layout((layout.sizes[0], 1, 1), (layout.strides[0], 0, 0), layout.offset)
