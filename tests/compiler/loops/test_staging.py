"""What loops read in blocks near to where they compute: the trees, and where arrays lie."""

from __future__ import annotations

import pytest
import torch

from tests.compiler.loops.evaluate import run
from tests.compiler.loops.trees import plain, prints
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.loops.addresses import addresses
from torch_tenon.compiler.loops.double_buffer import double_buffer
from torch_tenon.compiler.loops.interchange import interchange
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.stage import stage
from torch_tenon.compiler.loops.tile import as_lanes, share_out
from torch_tenon.compiler.loops.tree import (
    Array,
    CopyBlock,
    Declare,
    For,
    Load,
    Statement,
    Store,
    Tree,
    Wait,
    map_loops,
    walk,
)
from torch_tenon.ir.index import Symbol, var

randn = torch.randn


def test_a_loop_runs_in_tiles_that_have_room() -> None:
    tree, _, _ = plain(lambda x, y: x * y, randn(100), randn(100))
    prints(
        stage(tree, "scratch", 400),
        """
        parallel i0_tile from 0 to 100 by 34:
          staged: scratch f32[34]
          staged[0] by 34, 1 = 1 by min(34, - i0_tile + 100) of in0[i0_tile] by 0, 1
          staged_1: scratch f32[34]
          staged_1[0] by 34, 1 = 1 by min(34, - i0_tile + 100) of in1[i0_tile] by 0, 1
          parallel i0 from i0_tile to min(i0_tile + 34, 100):
            t0: f32 = staged[i0 - i0_tile]
            t1: f32 = staged_1[i0 - i0_tile]
            t2: f32 = mul(t0, t1)
            buf2[i0] = t2
        """,
    )


def test_rows_that_fit_are_copied_together_once_for_all_passes() -> None:
    tree, _, _ = plain(lambda x, y: (x - x.mean(1, True)) * y, randn(20, 9), randn(9))
    prints(
        stage(place_values(tree), "scratch", 300),
        """
        staged: scratch f32[9]
        staged[0] by 9, 1 = 1 by 9 of in1[0] by 0, 1
        parallel i0_tile from 0 to 20 by 4:
          staged_1: scratch f32[36]
          staged_1[0] by 9, 1 = min(4, - i0_tile + 20) by 9 of in0[9*i0_tile] by 9, 1
          parallel i0 from i0_tile to min(i0_tile + 4, 20):
            acc: f32 of sum
            reduce j0 from 0 to 9:
              t0: f32 = staged_1[9*i0 - 9*i0_tile + j0]
              acc sum= t0
            barrier
            t1: f32 = div(acc, 9.0)
            parallel j0 from 0 to 9 again:
              t2: f32 = staged_1[9*i0 - 9*i0_tile + j0]
              t3: f32 = sub(t2, t1)
              t4: f32 = staged[j0]
              t5: f32 = mul(t3, t4)
              buf3[9*i0 + j0] = t5
        """,
    )


def test_rows_that_do_not_fit_are_copied_in_pieces_by_each_pass() -> None:
    tree, _, _ = plain(lambda x: x - x.mean(1, True), randn(20, 900))
    text = show(stage(place_values(tree), "scratch", 1024))
    assert text.startswith("parallel i0 from 0 to 20:\n"), text
    assert text.count(" from 0 to 900 by 240") == text.count(" j0 from j0_tile") == 2, text


def test_blocks_of_memory_that_is_read_across_are_rectangles() -> None:
    tree, loops, _ = plain(lambda x: (x.t() + 1).contiguous(), randn(20, 30))
    text = show(stage(interchange(tree, loops), "scratch", 500))
    assert "= 20 by min(5, - i0_tile + 30) of in0[i0_tile] by 30, 1" in text, text
    assert "t0: f32 = staged[5*i1 + i0 - i0_tile]" in text, text


def test_a_step_of_the_grid_has_rows_of_its_own() -> None:
    tree, _, _ = plain(lambda x: x[:, 1:] - x[:, 1:].sum(2, True), randn(4, 6, 9))
    text = show(stage(share_out(tree, 2), "shared", 100))
    head = "grid i0 from 0 to 4:\n  grid i1 from 0 to 5:\n    staged: shared f32[9]\n"
    assert text.startswith(head), text
    assert "tile" not in text and text.count("staged[0] by") == 1


def test_an_index_that_is_known_before_the_loop_gives_a_block() -> None:
    tree, _, _ = plain(lambda x, k: x[k] + 1, randn(20, 30), torch.arange(4))
    text = show(stage(place_values(tree), "scratch", 200))
    assert "    staged[0] by 30, 1 = 1 by 30 of in0[30*t4] by 0, 1" not in text
    assert "  staged[0] by 30, 1 = 1 by 30 of in0[30*t4] by 0, 1" in text, text


def test_a_loop_that_never_runs_copies_nothing() -> None:
    x = randn(9)
    tree, _, _ = plain(lambda x: x + 1, x)
    never = tree.replacing(lambda loop: True, lambda loop: [loop.like(stops=(-2,))])
    made, out = double_buffer(stage(never, "scratch", 100)), torch.zeros(9)
    assert "staged: scratch f32[1]\n" in show(made)
    run(made, [x.view(torch.uint8), out.view(torch.uint8)], [], [])
    assert not out.any()


def test_what_stays_in_memory() -> None:
    in_place, (s,), _ = plain(lambda x: x + 1, randn(50))
    (load,) = (t for t in walk(in_place.body) if isinstance(t, Load))
    stores = [t for t in walk(in_place.body) if isinstance(t, Store)]
    changed = map_loops(
        in_place.body,
        lambda loop: [loop.holding([*loop.body, Store(load.memory, var(s), stores[0].value)])],
    )
    masked, _, _ = plain(lambda x: torch.nn.functional.pad(x, (1, 2)), randn(5))
    gathered, _, _ = plain(lambda x, k: x.gather(0, k), randn(5), torch.arange(3))
    for tree, stays in ((Tree(changed), "in0[i0]"), (masked, "if t"), (gathered, "in0[t1]")):
        text = show(stage(tree, "scratch", 1000))
        assert f"= {load.memory.name}" not in text or stays in text, text
        assert stays in text and ("of in0" not in text), text


def test_lanes_and_groups_have_no_copies_inside() -> None:
    tree, _, _ = plain(lambda x: x.sum(1), randn(5, 900))
    text = show(stage(as_lanes(tree, lambda loop: True), "scratch", 500))
    assert "reduce j0_tile" in text and "lane j0 from j0_tile" in text, text
    group = tree.replacing(lambda loop: True, lambda loop: [loop.like(kind="group")])
    assert show(stage(group, "shared", 500)) == show(group)


def test_a_loop_in_tiles_has_two_buffers() -> None:
    tree, _, _ = plain(lambda x: x + 1, randn(100))
    prints(
        double_buffer(stage(tree, "scratch", 240)),
        """
        staged: scratch f32[88]
        staged[0] by 44, 1 = 1 by min(44, 100) of in0[0] by 0, 1, asynchronous
        wait staged
        serial i0_tile from 0 to 100 by 44:
          t0: bool = lt(i0_tile + 44, 100)
          if t0:
            staged[- 44*((((i0_tile) // (44))) % (2)) + 44] by 44, 1 = """
        """1 by min(44, - i0_tile + 56) of in0[i0_tile + 44] by 0, 1, asynchronous
          parallel i0 from i0_tile to min(i0_tile + 44, 100):
            t1: f32 = staged[i0 - i0_tile + 44*((((i0_tile) // (44))) % (2))]
            t2: f32 = add(t1, 1.0)
            buf1[i0] = t2
          wait staged
        """,
    )
    # A work-group's memory is filled by the work-items, which then cannot compute.
    shared = stage(tree, "shared", 240)
    assert show(double_buffer(shared)) == show(shared)


def test_a_loop_around_one_with_two_buffers_has_none_of_its_own() -> None:
    tree, _, _ = plain(lambda x: (x.t() + 1).contiguous(), randn(2000, 30))
    tree = double_buffer(stage(tree, "scratch", 1000))
    text = show(tree)
    assert text.startswith("parallel i0 from 0 to 30:\n  staged: scratch f32[468]\n"), text
    assert addresses(tree, "scratch")[1] <= 2000 and text.count("= 1 by min(234, ") == 2, text


def test_nothing_is_there_before_the_wait() -> None:
    x = randn(50)
    tree, _, _ = plain(lambda x: x * 2, x)
    tree = double_buffer(stage(tree, "scratch", 140))

    def result(tree: Tree) -> torch.Tensor:
        out = torch.zeros(50)
        run(tree, [x.view(torch.uint8), out.view(torch.uint8)], [], [])
        return out

    assert result(tree).equal(x * 2)

    def without(body: list[Statement]) -> list[Statement]:
        return [s for s in body if not isinstance(s, Wait)]

    early = map_loops(without(tree.body), lambda loop: [loop.holding(without(loop.body))])
    assert not result(Tree(early)).equal(x * 2)


def test_arrays_lie_on_each_other_where_one_is_over() -> None:
    def scratch(label: str, length: int) -> Array:
        return Array(label, torch.float32, length, space="scratch")

    def copy(to: Array, source: Array) -> CopyBlock:
        return CopyBlock(to, 0, (16, 1), source, 0, (16, 1), (1,), (16,))

    a, b, c, d = (scratch(label, 16) for label in "abcd")
    k = Symbol("k", 3)
    loop = For(k, "serial", k, (0,), (3,), [Declare(c), copy(c, a)])
    tree = Tree([Declare(a), copy(a, a), loop, Declare(b), copy(b, b), Declare(d), copy(d, b)])
    offsets, nbytes = addresses(tree, "scratch")
    # `a` is there in all iterations; `b` comes when it is over, and `d` beside it.
    assert nbytes == 128 and {offsets[a], offsets[c]} == {offsets[b], offsets[d]} == {0, 64}
    assert addresses(tree, "shared") == ({}, 0)
    assert Capabilities(spaces={"scratch": 128}).addresses(tree, "scratch") == offsets
    for spaces in ({"scratch": 127}, {}):
        with pytest.raises(NotImplementedError, match="128 bytes of scratch memory, of which"):
            Capabilities(spaces=spaces).addresses(tree, "scratch")
