"""Kernels around a product of matrices: a call of the tuned product, and its epilogue.

The epilogue is the pointwise loops that were fused with the product. It is a function over a piece
of the product, which the target's kernel calls for each piece while it is in the cache.
"""

from __future__ import annotations

from torch_tenon.compiler.kernel import Kernel, bytes_moved, origin_of
from torch_tenon.compiler.schedule import Group, Member
from torch_tenon.ir.dtypes import TABLE
from torch_tenon.ir.index import Index, Symbol, product, strides
from torch_tenon.ir.program import MATMUL_DTYPES, Matmul
from torch_tenon.ir.values import Buffer, Layout, size_hint
from torch_tenon.targets.cpu import dialect as c
from torch_tenon.targets.cpu.autotune import INTERFACE
from torch_tenon.targets.cpu.generate import _Writer
from torch_tenon.targets.cpu.iteration import Segment
from torch_tenon.targets.cpu.nest import Nest, Span, indent

ENTRY = "void *tenon_matmul;"  # set when the object is loaded
HEAD = "void *const *a, const int64_t *s, int64_t *status"


def generate_matmul(group: Group, kept: set[Buffer]) -> Kernel:
    """The kernel of a group with a product; `kept` are the buffers that somebody outside needs."""
    first = next(m for m in group.members if isinstance(m.node, Matmul))
    return _Epilogue(group, first, kept).write()


class _PieceNest(Nest):
    """Rows outside, columns inside; the product's loops may be joins of the members'."""

    def __init__(self, group: Group, matmul: Member) -> None:
        assert isinstance(matmul.node, Matmul)
        self.matmul, self.node = matmul, matmul.node
        self.declared: dict[int, list[str]] = {0: [], 1: []}
        super().__init__(group)

    def _choose_layout(self) -> str:
        return "flat"

    def _lay_out(self) -> None:
        self.names, self.depth = {}, {}
        self.lane = self.turned = None
        self.lanes, self.collapse, self.in_parts = 0, 0, False
        self.inner, self.row = [], []
        for name, depth, symbol in zip("bij", (0, 1, 2), self.node.axes, strict=True):
            if symbol is not None:
                self._name_parts(name, depth, symbol)
        self.spans = [Span("i", "top", "bottom")]
        self.full = [Span("j", "left", "right")]
        self.vector = [s for s, name in self.names.items() if name == "j"]
        self.base = 1
        self.work = 0

    def _name_parts(self, name: str, depth: int, symbol: Symbol) -> None:
        steps = strides(self.matmul.values[symbol]) or {}
        whole = symbol.extent
        for k, (s, step) in enumerate(steps.items()):
            self.depth[s] = depth
            if len(steps) == 1:
                self.names[s] = name
                continue
            assert s.extent is not None
            self.names[s] = f"{name}{k}"
            text = f"{name} / ({self.size(step)})" if step != 1 else name
            if step * s.extent != whole:
                text = f"{text} % ({self.size(s.extent)})"
            self.declared[depth].append(f"const int64_t {name}{k} = {text};")


class _Epilogue(_Writer):
    """Writes the members after the product as loops over a piece of it."""

    nest: _PieceNest

    def __init__(self, group: Group, matmul: Member, kept: set[Buffer]) -> None:
        assert isinstance(matmul.node, Matmul)
        self.matmul, self.node, self.whole = matmul, matmul.node, group
        rest = Group(0, [m for m in group.members if m is not matmul], group.outer, [])
        super().__init__(rest, kept, _PieceNest(rest, matmul))

    def _segment(self, members: list[Member], full: bool) -> Segment:
        buffer = self.node.buffer
        self.forward[buffer] = ("product_ij", 2)
        segment = super()._segment(members, full)
        # Read before anything is stored: a result may take the product's place in memory.
        where = "product[(i - top) * step + j - left]"
        text = c.from_memory(where, buffer.dtype)
        ctype = c.register_type(TABLE[buffer.dtype].compute)
        segment.lines.setdefault(2, []).insert(0, f"const {ctype} product_ij = {text};")
        return segment

    def write(self) -> Kernel:
        """The epilogue, if there is one, and the function that calls the product with it."""
        epilogue = []
        if self.members:
            segment = self._segment(self.members, True)
            body = self.nest.declared[1] + self._spell_segment(segment)
            head = (
                "static void epilogue_@NAME@(const void *piece, int64_t step, const int64_t *box, "
                f"{HEAD}) {{"
            )
            ctype = c.MEMORY[self.node.buffer.dtype]
            lines = [
                f"const {ctype} *const product = piece;",
                # Names for the bounds: the stores might change memory behind a pointer.
                "const int64_t top = box[0], bottom = box[1], left = box[2], right = box[3];",
            ]
            if self.nest.declared[0]:
                lines += ["const int64_t b = box[4];", *self.nest.declared[0]]
            elif self.node.axes[0] is not None:
                lines.append("const int64_t b = box[4];")
            lines += [*self.prelude.get(0, []), *self.nest.spans[0].around(body)]
            epilogue = [head, *indent(self._arguments() + lines), "}"]
        call = self._call()
        origin = origin_of(self.whole.members)
        function = [f"void @NAME@({HEAD}) {{", *indent(self._arguments() + call), "}"]
        source = "\n".join([INTERFACE, ENTRY, f"/* {origin} */", *epilogue, *function, ""])
        return Kernel(
            source,
            self.storages,
            self.nest.sizes,
            origin,
            self._traffic(),
            "matmul",
            work=product(s.extent for s in self.whole.symbols()),
            body=[],  # products have threads of their own
            checks=[calls for _, calls in self.checks.values()],
        )

    def _arguments(self) -> list[str]:
        names = []
        for (storage, dtype), name in self.pointers.items():
            ctype = c.MEMORY[dtype]
            names.append(f"{ctype} *const {name} = a[{self.storages.index(storage)}];")
        return names + [f"const int64_t n{k} = s[{k}];" for k, _ in enumerate(self.nest.sizes)]

    def _call(self) -> list[str]:
        node, out = self.node, self._target()
        kept = node.buffer in self.kept
        operands = []
        for value in (node.left, node.right):
            where = self.pointer(value.buffer)
            operands.append(f"{where} + {self.nest.argument(value.layout.offset)}")

        def steps(layout: Layout) -> str:
            return ", ".join(self.nest.argument(k) for k in _three(layout.strides, 0))

        (batch, m, k), n = _three(node.left.sizes, 1), node.right.sizes[-1]
        c_steps = _three(Layout.contiguous(node.out.sizes).strides, 0)[:2]
        fields = {
            "a": operands[0],
            "b": operands[1],
            "c": "0" if out is None else self.pointer(out),
            "kept": str(int(kept)),
            "dtype": str(MATMUL_DTYPES.index(node.buffer.dtype)),
            "batch": self.nest.argument(batch),
            "m": self.nest.argument(m),
            "n": self.nest.argument(n),
            "k": self.nest.argument(k),
            "a_strides": f"{{{steps(node.left.layout)}}}",
            "b_strides": f"{{{steps(node.right.layout)}}}",
            "c_strides": f"{{{', '.join(self.nest.argument(k) for k in c_steps)}}}",
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

    def _traffic(self) -> int:
        operands = (self.node.left, self.node.right)
        read = sum(size_hint(product(v.sizes)) * v.dtype.itemsize for v in operands)
        return read + bytes_moved(self.whole, self.kept)


def _three(parts: tuple[Index, ...], first: Index) -> tuple[Index, ...]:
    return parts if len(parts) == 3 else (first, *parts)
