"""Where rewrites put values and loops in a small tree, as it is printed."""

from __future__ import annotations

import re

import torch

from tests.compiler.loops.trees import column, plain, prints
from torch_tenon.compiler.loops.interchange import interchange, sink
from torch_tenon.compiler.loops.place import place_inside, place_values
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.tile import share_out
from torch_tenon.compiler.loops.tree import (
    Constant,
    Load,
    Statement,
    Store,
    Tree,
    map_loops,
    walk,
)
from torch_tenon.ir.index import var
from torch_tenon.ir.values import Buffer

randn = torch.randn


def test_values_move_out_of_the_loops_that_they_do_not_depend_on() -> None:
    x, y = randn(5, 6), randn(5)
    tree, _, _ = plain(lambda x, y: (x * 2 + y[:, None]) + y[:, None].exp(), x, y)
    prints(
        place_values(tree),
        """
        parallel i0 from 0 to 5:
          t0: f32 = in1[i0]
          t1: f32 = exp(t0)
          parallel i1 from 0 to 6:
            t2: f32 = in0[6*i0 + i1]
            t3: f32 = mul(t2, 2.0)
            t4: f32 = add(t3, t0)
            t5: f32 = add(t4, t1)
            buf2[6*i0 + i1] = t5
        """,
    )
    # Nothing comes to stand between the loops of the grid.
    text = show(place_values(share_out(tree, 2)))
    assert text.startswith("grid i0 from 0 to 5:\n  grid i1 from 0 to 6:\n    t0")


def test_equal_values_become_one() -> None:
    tree, _, _ = plain(lambda x, i: x[i] + x[i] * 2, randn(20), torch.arange(3))
    text = show(place_values(tree))
    assert text.count("check") == text.count("within") == text.count("= in0[") == 1


def test_interchange() -> None:
    tree, (a, b, c), _ = plain(lambda x: x.permute(2, 1, 0).contiguous(), randn(2, 3, 4))
    heads = show(interchange(tree, [b, c, a])).splitlines()[:3]
    assert [text.split()[1] for text in heads] == [b.name, c.name, a.name]


def test_a_loop_sinks_into_those_that_it_holds() -> None:
    tree, _, _ = column()
    prints(
        tree,
        """
        parallel tile from 0 to 6 by 4:
          acc: f32[4] of sum
          reduce j0 from 0 to 5:
            parallel i0 from tile to min(tile + 4, 6):
              t0: f32 = in0[6*j0 + i0]
              acc[i0 - tile] sum= t0
          parallel i0 from tile to min(tile + 4, 6):
            buf1[i0] = acc[i0 - tile]
        """,
    )


def test_values_between_passes_are_one_for_each_lane() -> None:
    tree, (lane,), _ = plain(lambda x: torch.log_softmax(x, 0), randn(5, 6))
    text = show(sink(tree, lane, 6))
    assert "lane: f32[6]\n" in text
    assert "lane[i0] = t" in text
    assert ", lane[i0])" in text


def test_a_place_that_is_one_for_all_rows_has_a_symbol_in_each_loop() -> None:
    tree, (lane,), _ = plain(lambda x, i: x[i].sum(1), randn(7, 5), torch.arange(6))
    text = show(sink(place_inside(tree, lambda loop: loop.symbol is lane), lane, 6))
    lines = [line.strip() for line in text.splitlines()]
    (load,) = (line for line in lines if "in0[" in line)
    (symbol,) = re.findall(r"5\*(\w+)", load)
    loop = max(k for k in range(lines.index(load)) if lines[k].startswith("parallel"))
    assert f"{symbol}: i64 = copy(lane[i0])" in lines[loop : lines.index(load)], text


def test_what_is_one_for_all_rows_is_computed_before_them() -> None:
    tree, (lane,), _ = plain(
        lambda x, w, y: (x - x.sum(0).sqrt() * w * y[0]) * w, randn(5, 6), randn(6), randn(5, 6)
    )
    prints(
        sink(place_inside(tree, lambda loop: loop.symbol is lane), lane, 6),
        """
        lane: f32[6]
        acc: f32[6] of sum
        reduce j0 from 0 to 5:
          parallel i0 from 0 to 6:
            t0: f32 = in0[6*j0 + i0]
            acc[i0] sum= t0
        barrier
        parallel i0 from 0 to 6:
          t1: f32 = sqrt(acc[i0])
          t2: f32 = in1[i0]
          t3: f32 = mul(t1, t2)
          t4: f32 = in2[i0]
          t5: f32 = mul(t3, t4)
          lane[i0] = t5
        parallel j0 from 0 to 5 again:
          parallel i0 from 0 to 6:
            t6: f32 = in1[i0]
            t7: f32 = in0[6*j0 + i0]
            t8: f32 = sub(t7, lane[i0])
            t9: f32 = mul(t8, t6)
            buf4[6*j0 + i0] = t9
        """,
    )


def test_what_a_later_version_replaces_is_not_loaded_again() -> None:
    tree, (lane,), _ = plain(lambda x, w: (x - x.sum(0) * w) * w, randn(5, 6), randn(6))
    (load,) = (s for s in walk(tree.body) if isinstance(s, Load) and s.index == var(lane))
    assert isinstance(load.memory, Buffer)
    after = Buffer("in1_v1", load.dtype, load.memory.storage, load.memory, 1)

    def loads(write: list[Statement]) -> int:
        inside = map_loops(
            tree.body,
            lambda loop: (
                [loop.holding([*loop.body[:-1], *write, loop.body[-1]])]
                if loop.symbol is lane
                else [loop]
            ),
        )
        placed = place_inside(Tree(inside), lambda loop: loop.symbol is lane)
        return show(sink(placed, lane, 6)).count("in1[i0]")

    assert loads([]) == 2
    assert loads([Store(after, var(lane), Constant(0.0, load.dtype))]) == 1
