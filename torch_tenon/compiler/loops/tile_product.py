"""A product of matrices by a matrix unit: loops over tiles, with operands that are copied near to
it, computed there if need be, and what follows over each piece of the sums.

A piece is as many tiles as the sums have room for. Its operands come in steps along what is summed
over, so that the next step is copied while the unit multiplies (`double_buffer`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch_tenon.compiler.capabilities import Capabilities, Tiles
from torch_tenon.compiler.loops.lower import Lowering, joined_loops
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.stage import stage
from torch_tenon.compiler.loops.tree import (
    Array,
    Constant,
    CopyBlock,
    Declare,
    For,
    Kind,
    Let,
    Load,
    Operand,
    Statement,
    Store,
    TileProduct,
    Tree,
)
from torch_tenon.compiler.schedule import Group, Member, operand_loops
from torch_tenon.ir.dtypes import compute_dtype
from torch_tenon.ir.index import Index, Symbol, substitute, var
from torch_tenon.ir.program import Loop, Matmul
from torch_tenon.ir.values import Buffer, Stored, size_hint

EPILOGUE = 8  # the part of the operands' memory that one tile of the epilogue may fill


def tile_product(
    group: Group,
    kept: set[Buffer],
    capabilities: Capabilities,
    rewrite: Callable[[Tree], Tree],
) -> Tree:
    """The tree of a group with a product, by the first matrix unit for its dtype.

    `rewrite` is what is done to the tree then, as `double_buffer`: the pieces are the largest that
    have room after it. `kept` are the buffers that somebody outside needs. Raises
    NotImplementedError where there is no such unit, or no room.
    """
    matmul = next(m for m in group.members if isinstance(m.node, Matmul))
    assert isinstance(matmul.node, Matmul)
    tiles = tiles_for(matmul.node, capabilities)
    if tiles is None:
        raise NotImplementedError("no matrix unit for the product")
    for piece in pieces(matmul.node, group.prologue, tiles, capabilities):
        tree = rewrite(_Product(group, matmul, kept, tiles, piece, capabilities).tree())
        try:
            for space in {tiles.reads, tiles.adds}:
                capabilities.addresses(tree, space)
        except NotImplementedError:
            continue
        return tree
    raise NotImplementedError("no room for a tile of the product")


def tiles_for(node: Matmul, capabilities: Capabilities) -> Tiles | None:
    """The matrix unit for a product of two matrices as they lie in memory; None where there is
    none."""
    return capabilities.tiles_of(node.left.dtype, node.buffer.dtype) if node.is_plain else None


@dataclass(frozen=True)
class Piece:
    """A part of a product: so many rows and columns of it, and numbers of a step along the sums."""

    rows: int
    columns: int
    depth: int


def pieces(
    node: Matmul, prologue: Sequence[Loop], tiles: Tiles, capabilities: Capabilities
) -> Iterator[Piece]:
    """Pieces for a product: first the one that moves the least, then smaller ones."""
    *_, rows, columns = node.out.sizes
    depth = node.left.sizes[-1]
    m, n, k = (size_hint(x) for x in (rows, columns, depth))
    room, sums = (capabilities.spaces.get(s, 0) for s in (tiles.reads, tiles.adds))
    left, right = (_bytes_of(x, prologue) for x in (node.left, node.right))
    found = []
    for a, b in itertools.product(_multiples(m, tiles.rows), _multiples(n, tiles.columns)):
        nbytes = a * b * tiles.sums.itemsize
        if nbytes > sums:
            continue
        left_over = room - nbytes if tiles.reads == tiles.adds else room
        steps = left_over // ((a * left + b * right) * tiles.depth)
        if steps > 0:
            step = min(steps, -(-k // tiles.depth)) * tiles.depth
            moved = -(-n // b) * m * left + -(-m // a) * n * right
            found.append((moved, -step * min(a, b), Piece(a, b, step)))
    if not found:
        return
    *_, best = min(found, key=lambda x: x[:2])
    yield best
    # What else lies there may leave less room.
    rows, columns, depth = best.rows, best.columns, best.depth - tiles.depth
    while depth > 0:
        yield Piece(rows, columns, depth)
        depth = depth // (2 * tiles.depth) * tiles.depth
    while rows > tiles.rows or columns > tiles.columns:
        rows = max(rows // (2 * tiles.rows), 1) * tiles.rows
        columns = max(columns // (2 * tiles.columns), 1) * tiles.columns
        yield Piece(rows, columns, tiles.depth)


def _multiples(n: int, tile: int) -> range:
    return range(tile, -(-n // tile) * tile + 1, tile)


def _bytes_of(operand: Stored, prologue: Sequence[Loop]) -> int:
    """Bytes near to the unit for each number of an operand: of two buffers, or of one that is
    computed, beside two for each of what it is computed of."""
    size = operand.dtype.itemsize
    for loop in prologue:
        if loop.buffer is operand.buffer.base:
            return size + 2 * sum(s.args[0].dtype.itemsize for s in loop.loads)
    return 2 * size


class _Product:
    """The tree for one size of pieces."""

    def __init__(
        self,
        group: Group,
        matmul: Member,
        kept: set[Buffer],
        tiles: Tiles,
        piece: Piece,
        capabilities: Capabilities,
    ) -> None:
        assert isinstance(matmul.node, Matmul)
        self.group, self.matmul, self.node, self.kept = group, matmul, matmul.node, kept
        self.tiles, self.piece = tiles, piece
        self.room = capabilities.spaces.get(tiles.reads, 0)
        *_, self.rows, self.columns = self.node.out.sizes
        self.depth = self.node.left.sizes[-1]
        batch = self.node.out.sizes[0] if len(self.node.out.sizes) == 3 else 1
        # Over matrices, and over the pieces and steps of one.
        self.batch = Symbol("b", batch)
        self.top, self.left = Symbol("i_piece", self.rows), Symbol("j_piece", self.columns)
        self.step = Symbol("k_step", self.depth)
        length = piece.rows * piece.columns
        self.sums = Array("sums", tiles.sums, length, space=tiles.adds)
        self.sum_steps = self._steps("sums", piece.rows, piece.columns)

    def tree(self) -> Tree:
        """Loops over pieces, each of which is summed up and then gone through."""
        copies: list[Statement] = []
        computed: list[Statement] = []
        operands = [
            self._operand("left", self.node.left, self.top, self.step, copies, computed),
            self._operand("right", self.node.right, self.step, self.left, copies, computed),
        ]
        steps = For(
            self.step,
            "serial",
            self.step,
            (0,),
            (self.depth,),
            [*copies, *computed, self._multiply(*operands)],
            self.piece.depth,
        )
        body: list[Statement] = [Declare(self.sums), steps, *self._epilogue()]
        for symbol, extent, width in (
            (self.left, self.columns, self.piece.columns),
            (self.top, self.rows, self.piece.rows),
        ):
            body = [For(symbol, "parallel", symbol, (0,), (extent,), body, width)]
        if self.batch.extent != 1:
            assert self.batch.extent is not None
            body = [For(self.batch, "parallel", self.batch, (0,), (self.batch.extent,), body)]
        return Tree(body)

    def _steps(self, which: str, rows: int, columns: int) -> tuple[Index, Index]:
        """How far apart the rows and the columns of an array lie."""
        return (1, rows) if which in self.tiles.by_columns else (columns, 1)

    def _operand(
        self,
        which: str,
        operand: Stored,
        down: Symbol,
        across: Symbol,
        copies: list[Statement],
        computed: list[Statement],
    ) -> tuple[Array, tuple[Index, Index]]:
        """The array of an operand's piece, whose rows begin at `down` and columns at `across`: adds
        what copies it, or copies what it is computed of and computes it."""
        ends = {self.top: self.piece.rows, self.left: self.piece.columns}
        ends[self.step] = self.piece.depth
        rows, columns = ends[down], ends[across]
        array = Array(which, operand.dtype, rows * columns, space=self.tiles.reads)
        steps = self._steps(which, rows, columns)
        counts = [_left(s, n) for s, n in ((down, rows), (across, columns))]
        of = next((p for p in self.group.prologue if p.buffer is operand.buffer), None)
        if of is not None:
            made = self._computed(of, operand, array, steps, (down, across), (rows, columns))
            while len(made) > 1 and isinstance(made[1], CopyBlock):
                copies += made[:2]
                made = made[2:]
            computed += [Declare(array), *made]
            return array, steps
        *batch, row, column = operand.layout.strides
        first = operand.layout.offset + row * var(down) + column * var(across)
        first = first + sum(step * self._matrix() for step in batch)
        block = counts[0], counts[1]
        filled = () if self._is_whole() else (rows, columns)
        source = operand.buffer, first, (row, column)
        copies += [Declare(array), CopyBlock(array, 0, steps, *source, *block, False, filled)]
        return array, steps

    def _is_whole(self) -> bool:
        """Whether no tile has fewer numbers to sum over."""
        return isinstance(self.depth, int) and self.depth % self.tiles.depth == 0

    def _matrix(self) -> Index:
        return 0 if self.batch.extent == 1 else var(self.batch)

    def _computed(
        self,
        loop: Loop,
        operand: Stored,
        array: Array,
        steps: tuple[Index, Index],
        begins: tuple[Symbol, Symbol],
        sizes: tuple[int, int],
    ) -> list[Statement]:
        """What computes a piece of an operand, behind the copies that this reads."""
        row, column = (Symbol(name, s.extent) for name, s in zip("rc", begins, strict=True))
        positions = [self._matrix(), var(row), var(column)][-len(operand.sizes) :]
        values = operand_loops(loop, operand, positions)
        assert values is not None
        lowering = Lowering(Group(0, []), set(), {})
        body = list(lowering.statements([Member.of(loop, values, True)]))
        offsets = [var(s) - var(first) for s, first in zip((row, column), begins, strict=True)]
        element = sum(n * k for n, k in zip(offsets, steps, strict=True))
        body.append(Store(array, element, lowering.forward[loop.buffer]))
        loops = [
            For(s, "parallel", s, (var(first),), (var(first) + n, first.extent or 1), [])
            for s, first, n in zip((row, column), begins, sizes, strict=True)
        ]
        order = loops if steps[1] == 1 else loops[::-1]
        made: list[Statement] = [order[0].holding([order[1].holding(body)])]
        made = stage(place_values(Tree(made)), self.tiles.reads, self.room).body
        if not self._is_whole():
            made += self._zeros(array, steps, begins, sizes)
        return made

    def _zeros(
        self,
        array: Array,
        steps: tuple[Index, Index],
        begins: tuple[Symbol, Symbol],
        sizes: tuple[int, int],
    ) -> list[Statement]:
        """Zeros for what is summed over beyond the edge."""
        row, column = Symbol("r"), Symbol("c")
        zero = Constant(0, compute_dtype(array.dtype))
        body: list[Statement] = [Store(array, var(row) * steps[0] + var(column) * steps[1], zero)]
        axes = list(zip((row, column), begins, sizes, strict=True))
        for s, first, n in axes[::-1] if steps[1] == 1 else axes:
            start = (self.depth - var(first),) if first is self.step else (0,)
            stop = (n,) if first is self.step else _left(first, n)
            body = [For(s, "parallel", s, start, stop, body)]
        return body

    def _multiply(
        self, left: tuple[Array, tuple[Index, Index]], right: tuple[Array, tuple[Index, Index]]
    ) -> Statement:
        """The products of tiles of one step."""
        tiles, piece = self.tiles, self.piece
        row, column, depth = (Symbol(name) for name in ("i_tile", "j_tile", "k_tile"))

        def at(steps: tuple[Index, Index], down: Symbol, across: Symbol) -> Index:
            return var(down) * steps[0] + var(across) * steps[1]

        body: list[Statement] = [
            TileProduct(
                self.sums,
                at(self.sum_steps, row, column),
                self.sum_steps,
                left[0],
                at(left[1], row, depth),
                left[1],
                right[0],
                at(right[1], depth, column),
                right[1],
                var(self.step) + var(depth),
                (tiles.rows, tiles.columns, tiles.depth),
            )
        ]
        for symbol, first, length, tile in (
            (depth, self.step, piece.depth, tiles.depth),
            (column, self.left, piece.columns, tiles.columns),
            (row, self.top, piece.rows, tiles.rows),
        ):
            kind: Kind = "serial" if symbol is depth else "parallel"
            body = [For(symbol, kind, symbol, (0,), _left(first, length), body, tile)]
        return body[0]

    def _epilogue(self) -> list[Statement]:
        """What is stored of a piece, and computed of it."""
        members = [m for m in self.group.members if m is not self.matmul]
        loops: dict[Symbol, Index] = {}
        row, column = Symbol("i", self.rows), Symbol("j", self.columns)
        axes = (self.batch, row, column)
        of_batch, of_row, of_column = (
            joined_loops(self.matmul, s, axis, loops)
            for axis, s in zip(axes, self.node.axes, strict=True)
        )
        down, across = var(row) - var(self.top), var(column) - var(self.left)
        index = down * self.sum_steps[0] + across * self.sum_steps[1]
        element: Load | Let = Load(self.sums, index, self.tiles.sums)
        body: list[Statement] = [*of_column, element]
        dtype = compute_dtype(self.node.buffer.dtype)
        if dtype is not self.tiles.sums:  # whole numbers of fewer bits
            element = Let("to", (element,), dtype)
            body.append(element)
        forward: dict[Buffer, Operand] = {self.node.buffer: element}
        if self.node.buffer in self.kept:
            where = substitute(self.matmul.index, loops)
            body.append(Store(self.node.buffer, where, element))
        rest = Group(0, members, self.group.outer, [])
        body += Lowering(rest, self.kept, loops, forward).statements(members)
        for symbol, first, width, extent, computed in (
            (column, self.left, self.piece.columns, self.columns, of_row),
            (row, self.top, self.piece.rows, self.rows, of_batch),
        ):
            stops = (var(first) + width, extent)
            loop = For(symbol, "parallel", symbol, (var(first),), stops, body)
            body = [*computed, loop]
        tree = place_values(Tree(body))
        return stage(tree, self.tiles.reads, self.room // EPILOGUE).body


def _left(first: Symbol, length: int) -> tuple[Index, ...]:
    """How many there are from a position on: so many, or until the end."""
    extent = first.extent
    assert extent is not None
    if isinstance(extent, int) and extent % length == 0:
        return (length,)
    return (length, extent - var(first))
