"""Products of matrices by tiles: the trees, their results, and which products they are for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from tests.compiler.loops.trees import prints
from tests.targets.tree import TreeBackend
from torch_tenon import device
from torch_tenon.compiler.capabilities import Capabilities, Tiles
from torch_tenon.compiler.kernel import Kernel
from torch_tenon.compiler.loops.addresses import addresses
from torch_tenon.compiler.loops.double_buffer import double_buffer
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.tile_product import tile_product, tiles_for
from torch_tenon.compiler.loops.tree import CopyBlock, TileProduct, Tree, walk
from torch_tenon.compiler.schedule import Group
from torch_tenon.frontends.dynamo import compile_graph, decompositions
from torch_tenon.ir.program import Loop, Matmul, Program
from torch_tenon.ir.values import Buffer, Layout, Stored
from torch_tenon.targets.c_family.fusion import epilogue_problem

Function = Callable[..., torch.Tensor]
SPACES = {"scratch": 2048, "accumulator": 512}


class Multiplying(TreeBackend):
    """Trees, with a matrix unit for products."""

    def __init__(self, *tiles: Tiles, spaces: Any = SPACES, prologues: bool = True) -> None:
        self.capabilities = Capabilities(spaces=spaces, tiles=tiles)
        self.product_dtypes = frozenset(t.operands for t in tiles)
        self.prologues = prologues
        self.trees: list[Tree] = []
        self.groups: list[Group] = []

    def fusion_problem(self, members: Any) -> str | None:
        return epilogue_problem(members)

    def prologue_problem(self, loop: Loop, product: Matmul) -> str | None:
        return None if self.prologues else "no"

    def kernel(self, group: Group, kept: set[Buffer]) -> Kernel:
        self.groups.append(group)
        if not any(isinstance(m.node, Matmul) for m in group.members):
            return super().kernel(group, kept)  # type: ignore[no-any-return, no-untyped-call]
        tree = tile_product(group, kept, self.capabilities, double_buffer)
        for t in self.capabilities.tiles:
            self.capabilities.addresses(tree, t.reads), self.capabilities.addresses(tree, t.adds)
        self.trees.append(tree)
        found = parameters(tree)
        made = Kernel.of(group, kept, "", found.storages, found.sizes)
        made.tree = tree
        return made

    def files(self, kernels: Any) -> None:
        return None


def unit(
    rows: int = 4, columns: int = 4, depth: int = 4, dtype: torch.dtype = torch.float32, **more: Any
) -> Tiles:
    """A matrix unit."""
    return Tiles(rows, columns, depth, dtype, torch.float32, **more)


def agree(backend: Multiplying, function: Function, *inputs: torch.Tensor) -> list[Tree]:
    """The trees of a function's products, whose results are the CPU's."""
    module = make_fx(lambda *a: [function(*a)], decompositions(), tracing_mode="fake")(*inputs)
    backend.trees, backend.groups = [], []
    given = [x.clone() for x in inputs]
    # Lowerings ask the device's backend which products are kernels.
    with mock.patch.object(device, "backend", lambda *of: backend):
        (found,) = compile_graph(module, inputs, backend=backend)(given)
    most = {torch.float32: 1e-4, torch.bfloat16: 2e-2}.get(inputs[0].dtype, 0)
    torch.testing.assert_close(found, function(*inputs), rtol=most, atol=most)
    return backend.trees


def rand(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


def test_the_tree_of_a_product_with_its_epilogue() -> None:
    backend = Multiplying(unit())
    (tree,) = agree(backend, lambda x, y, b: torch.relu(x @ y + b), rand(6, 9), rand(9, 8), rand(8))
    prints(
        tile_product(backend.groups[0], _outputs(backend), backend.capabilities, lambda t: t),
        """
        parallel i_piece from 0 to 6 by 8:
          parallel j_piece from 0 to 8 by 8:
            sums: accumulator f32[64]
            serial k_step from 0 to 9 by 12:
              left: scratch f32[96]
              left[0] by 12, 1 = min(8, - i_piece + 6) by min(12, - k_step + 9) """
        """of in0[9*i_piece + k_step] by 9, 1, 0 up to 8 by 12
              right: scratch f32[96]
              right[0] by 8, 1 = min(12, - k_step + 9) by 8 """
        """of in1[8*k_step + j_piece] by 8, 1, 0 up to 12 by 8
              parallel i_tile from 0 to min(8, - i_piece + 6) by 4:
                parallel j_tile from 0 to 8 by 4:
                  serial k_tile from 0 to min(12, - k_step + 9) by 4:
                    sums[8*i_tile + j_tile] by 8, 1 += 4 by 4 times 4 by 4 """
        """of left[12*i_tile + k_tile] by 12, 1 times right[8*k_tile + j_tile] by 8, 1, """
        """after k_step + k_tile
            staged: scratch f32[8]
            staged[0] by 8, 1 = 1 by min(8, - j_piece + 8) of in2[j_piece] by 0, 1
            parallel i from i_piece to min(i_piece + 8, 6):
              parallel j from j_piece to min(j_piece + 8, 8):
                t0: f32 = sums[8*i - 8*i_piece + j - j_piece]
                t1: f32 = staged[j - j_piece]
                t2: f32 = add(t0, t1)
                t3: f32 = maximum(t2, 0.0)
                buf4[8*i + j] = t3
        """,
    )
    assert "staged" in show(tree)


def _outputs(backend: Multiplying) -> set[Buffer]:
    return {backend.groups[-1].members[-1].node.buffer}


PROLOGUES: dict[str, Function] = {
    "number": lambda x: x * 2 - 1,
    "function": torch.tanh,
    "row": lambda x: x * x[..., :1],
    "column": lambda x: x + x[..., :1, :],
    "mask": lambda x: torch.where(x > 0, x, 0),
    "place": lambda x: F.pad(x, (1, 1))[..., 2:].flip(-2),
}
EPILOGUES: dict[str, Function] = {
    "nothing": lambda v: v,
    "number": lambda v: v * 2 + 1,
    "row": lambda v: v * torch.arange(v.shape[-1]),
    "transposed": lambda v: v.mT + v.mT,
}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(4, 4, 4), (7, 9, 5), (1, 13, 6), (12, 1, 1), (9, 30, 10)])
@pytest.mark.parametrize("by_columns", [(), ("left", "sums"), ("right",), ("left", "right")])
def test_any_sizes_and_layouts(sizes: tuple[int, int, int], by_columns: tuple[str, ...]) -> None:
    m, k, n = sizes
    tiles = unit(2, 4, 3, by_columns=frozenset(by_columns))
    backend = Multiplying(tiles, spaces={"scratch": 600, "accumulator": 128})
    operands = (rand(m, k), rand(k, n)), (rand(k, m).t(), rand(n, k).t())
    batch = rand(3, m, k), rand(3, n, k).mT
    for x, y in (*operands, batch):
        for name in ("nothing", "row"):
            after = EPILOGUES[name]
            (tree,) = agree(backend, lambda x, y, f=after: f(x @ y), x, y)  # type: ignore[misc]
            assert len(backend.groups) == 1
            assert any(isinstance(s, TileProduct) for s in walk(tree.body))
            assert not backend.groups[0].prologue


@pytest.mark.slow
@pytest.mark.parametrize("before", PROLOGUES)
def test_operands_are_computed_as_they_are_copied(before: str) -> None:
    f = PROLOGUES[before]
    for sizes, by_columns in (((8, 8, 8), ()), ((5, 10, 6), ("left",)), ((3, 9, 14), ("right",))):
        m, k, n = sizes
        backend = Multiplying(unit(by_columns=frozenset(by_columns)))
        for x, y in ((rand(m, k), rand(k, n)), (rand(2, m, k), rand(2, k, n))):
            for function in (
                lambda x, y: f(x) @ y,
                lambda x, y: (x @ f(y)).exp(),
                lambda x, y: f(x) @ f(y) + 1,
                lambda x, y: f(x.mT.contiguous()).mT @ y,
            ):
                (tree,) = agree(backend, function, x, y)
                if before != "place":  # some of these are two loops
                    assert len(backend.groups) == 1, (function, [g.members for g in backend.groups])
                    assert "left" in show(tree) and backend.groups[0].prologue


def test_what_an_operand_is_computed_of_is_copied_ahead() -> None:
    backend = Multiplying(unit())
    (tree,) = agree(backend, lambda x, y: torch.relu(x) @ y, rand(8, 40), rand(40, 8))
    copies = [s for s in walk(tree.body) if isinstance(s, CopyBlock)]
    assert len(copies) == 4 and all(s.asynchronous for s in copies), show(tree)


def test_an_operand_that_somebody_else_reads_is_in_memory() -> None:
    def again(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        u = torch.relu(x)
        v = u @ y
        return v.sum() + u.sum()

    x, y = rand(6, 8), rand(8, 5)
    index = torch.tensor([3, 0, 1])
    for function, *given in (
        (again, x, y),
        (lambda x, y: x.softmax(1) @ y, x, y),
        (lambda x, y, k: x[k] @ y, x, y, index),  # with a check of the index
    ):
        backend = Multiplying(unit())
        agree(backend, function, *given)
        assert len(backend.groups) > 1 and not any(g.prologue for g in backend.groups)
    backend = Multiplying(unit(), prologues=False)
    agree(backend, lambda x, y: torch.relu(x) @ y, x, y)
    assert len(backend.groups) == 2


def test_spaces_are_the_units() -> None:
    x, y = rand(9, 30), rand(30, 10)
    for tiles, spaces in (
        (unit(adds="scratch"), {"scratch": 700}),
        (unit(reads="shared", adds="private"), {"shared": 600, "private": 128}),
    ):
        backend = Multiplying(tiles, spaces=spaces)
        (tree,) = agree(backend, lambda x, y: torch.relu(x) @ y + 1, x, y)
        for space, most in spaces.items():
            assert 0 < addresses(tree, space)[1] <= most  # type: ignore[arg-type]


def test_one_number_twice() -> None:
    agree(Multiplying(unit()), lambda x: torch.relu(x) @ torch.relu(x).t(), rand(6, 9))


def test_sums_have_a_dtype_of_their_own() -> None:
    x, y = rand(6, 90).bfloat16(), rand(90, 5).bfloat16()
    backend = Multiplying(unit(dtype=torch.bfloat16))
    (tree,) = agree(backend, lambda x, y: torch.relu(x * 2) @ y + 1, x, y)
    products = [s for s in walk(tree.body) if isinstance(s, TileProduct)]
    assert {(s.left.dtype, s.memory.dtype) for s in products} == {(torch.bfloat16, torch.float32)}
    # An epilogue computes with the product as its dtype has it.
    big = torch.full((4, 4), 257.0 / 4).bfloat16()
    agree(backend, lambda x, y: x @ y - 16512.0, big, torch.full((4, 4), 64.0).bfloat16())


@pytest.mark.slow
def test_memory_decides_how_large_pieces_are(caplog: pytest.LogCaptureFixture) -> None:
    x, y = rand(16, 32), rand(32, 16)
    function = lambda x, y: torch.relu(x) @ y + x[:, :16]  # noqa: E731
    moved = []
    for scratch, sums in itertools.product((400, 1200, 4096), (64, 256, 1024)):
        backend = Multiplying(unit(), spaces={"scratch": scratch, "accumulator": sums})
        (tree,) = agree(backend, function, x, y)
        pieces = [s for s in walk(tree.body) if getattr(s, "kind", "") == "parallel"][:2]
        moved.append([getattr(s, "step", 0) for s in pieces])
    assert moved[0] == [4, 4] and moved[-1] == [16, 16], moved
    for spaces in ({"scratch": 100, "accumulator": 64}, {"scratch": 4096, "accumulator": 60}, {}):
        caplog.clear()
        backend = Multiplying(unit(), spaces=spaces)
        assert agree(backend, lambda x, y: torch.relu(x) @ y, x, y) == []
        assert "no room for a tile of the product" in caplog.text


def test_a_prologue_without_room_is_a_kernel_before_the_product() -> None:
    backend = Multiplying(unit(), spaces={"scratch": 900, "accumulator": 64})
    inputs = [rand(6, 9) for _ in range(8)]

    def several(y: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        return sum(inputs[1:], inputs[0]) @ torch.relu(y) + 1  # type: ignore[return-value]

    (tree,) = agree(backend, several, rand(9, 5), *inputs)
    assert any(isinstance(s, TileProduct) for s in walk(tree.body))
    product = backend.groups[-1]
    assert isinstance(product.members[0].node, Matmul) and len(product.members) == 2
    # First with both operands in it, then these two, and it without.
    assert len(backend.groups) == 4 and not product.prologue
    # With room for what the operands are computed of it is one kernel.
    backend = Multiplying(unit(), spaces={"scratch": 9000, "accumulator": 64})
    agree(backend, several, rand(9, 5), *inputs)
    assert len(backend.groups) == 1 and len(backend.groups[0].prologue) == 2


def test_whole_numbers_have_sums_of_more_bits() -> None:
    wide = Tiles(4, 4, 4, torch.int8, torch.int32)
    bytes = [torch.randint(-128, 128, sizes).to(torch.int8) for sizes in ((7, 50), (50, 9))]
    backend = Multiplying(wide)
    (tree,) = agree(backend, torch._int_mm, *bytes)
    products = [s for s in walk(tree.body) if isinstance(s, TileProduct)]
    assert {(s.left.dtype, s.memory.dtype) for s in products} == {(torch.int8, torch.int32)}
    # A product of bytes as bytes wraps, which sums of 32 bits may do later.
    assert len(agree(backend, lambda x, y: (x @ y) // 3, *bytes)) == 1
    # Sums of fewer bits than the result, or of floats, are none of it.
    for sums in (torch.int8, torch.int16, torch.float32):
        backend = Multiplying(Tiles(4, 4, 4, torch.int8, sums))
        assert agree(backend, torch._int_mm, *bytes) == []
        assert not any(isinstance(m.node, Matmul) for g in backend.groups for m in g.members)
    # An operand may be rounded as it is copied, and what follows is of floats.
    x, scale = rand(7, 50) * 50, rand(9)

    def layer(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        bytes = (x * 2).round().clamp(-128, 127).to(torch.int8)
        return torch.relu(torch._int_mm(bytes, y) * scale)

    backend = Multiplying(wide)
    assert len(agree(backend, layer, x, bytes[1], scale)) == 1
    assert len(backend.groups) == 1 and backend.groups[0].prologue


@pytest.mark.slow
def test_random_products_of_whole_numbers() -> None:
    """Any sizes, units, memories and layouts, to the last bit."""
    for seed in range(40):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        m, k, n = (rng.choice([1, 2, 3, 5, 8, 9, 13, 17, 70]) for _ in range(3))
        x, y = (torch.randint(-128, 128, s).to(torch.int8) for s in ((m, k), (k, n)))
        x = x if rng.random() < 0.6 else x.t().contiguous().t()
        y = y if rng.random() < 0.6 else y.t().contiguous().t()
        by_columns = frozenset(rng.sample(["left", "right", "sums"], rng.randint(0, 3)))
        sizes = [rng.choice([1, 2, 3, 4, 5]) for _ in range(3)]
        tiles = Tiles(*sizes, torch.int8, torch.int32, by_columns=by_columns)
        spaces = {"scratch": rng.choice([900, 2000, 8000]), "accumulator": rng.choice([200, 2000])}
        p = rng.choice([lambda x: x, lambda x: x.clamp(min=0), lambda x: x ^ 3])
        q = rng.choice([lambda x: x, lambda x: -x, lambda x: x + x[:1]])
        e = rng.choice([lambda v: v, lambda v: v * 3 + 1, lambda v: (v >> 8).to(torch.int8)])
        trees = agree(
            Multiplying(tiles, spaces=spaces),
            lambda x, y, p=p, q=q, e=e: e(torch._int_mm(p(x), q(y))),  # type: ignore[misc]
            x,
            y,
        )
        assert len(trees) == 1


def test_products_that_no_unit_is_for(caplog: pytest.LogCaptureFixture) -> None:
    declared = Multiplying(unit(dtype=torch.bfloat16))
    declared.product_dtypes = frozenset((torch.float32,))
    for backend in (declared, Multiplying(Tiles(4, 4, 4, torch.float32, torch.float64))):
        caplog.clear()
        assert agree(backend, lambda x, y: x @ y, rand(4, 4), rand(4, 4)) == []
        assert "no matrix unit for the product" in caplog.text
    # Others are calls, as before.
    backend = Multiplying(unit(dtype=torch.bfloat16))
    assert agree(backend, lambda x, y: (x @ y).exp(), rand(4, 4), rand(4, 4)) == []


def test_operands_that_lie_otherwise_are_for_no_unit() -> None:
    program, capabilities = Program(), Capabilities(tiles=(unit(),))

    def stored(*sizes: int, dtype: torch.dtype = torch.float32) -> Stored:
        return program.temporary(dtype, Layout.contiguous(sizes))

    out, left = stored(2, 6, 5), stored(2, 6, 9)
    plain = Matmul(left, stored(2, 9, 5), out)
    assert tiles_for(plain, capabilities) == unit()
    for other in (
        Matmul(left, stored(2, 1, 3, 3, 5, 1), out, rows=3),
        Matmul(left, stored(2, 9, 5, dtype=torch.int8), out),
        Matmul(left, stored(2, 1, 9, 32), out, panels=True),
    ):
        assert tiles_for(other, capabilities) is None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_products(first: int) -> None:
    """Any sizes, units, memories, layouts, and loops before and after."""
    before = [
        lambda x: x,
        *PROLOGUES.values(),
        lambda x: x.mT.contiguous().mT * 2,
        lambda x: x[..., :1].expand_as(x) * 1.5,
        lambda x: torch.cat([x[..., :1], x[..., 1:] * 2], -1),
    ]
    after = [*EPILOGUES.values(), lambda v: v.softmax(-1), lambda v: v.sum(0)]
    multiplied = 0
    for seed in range(first, first + 15):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        m, k, n = (rng.choice([1, 2, 3, 5, 8, 9, 13, 17]) for _ in range(3))
        batch = rng.choice([(), (), (2,), (3,)])
        x = rand(*batch, m, k) if rng.random() < 0.6 else rand(*batch, k, m).mT
        y = rand(*batch, k, n) if rng.random() < 0.6 else rand(*batch, n, k).mT
        by_columns = frozenset(rng.sample(["left", "right", "sums"], rng.randint(0, 3)))
        tiles = unit(*(rng.choice([1, 2, 3, 4, 5]) for _ in range(3)), by_columns=by_columns)
        spaces = {"scratch": rng.choice([900, 2000, 8000])}
        spaces["accumulator"] = rng.choice([100, 400, 2000])
        p, q, e = rng.choice(before), rng.choice(before), rng.choice(after)
        trees = agree(
            Multiplying(tiles, spaces=spaces),
            lambda x, y, p=p, q=q, e=e: e(p(x) @ q(y)),  # type: ignore[misc]
            x,
            y,
        )
        multiplied += bool(trees)
    assert multiplied >= 10
