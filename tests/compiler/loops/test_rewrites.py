"""What each rewrite does to a small tree, as it is printed."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from tests.compiler.loops.pipeline import adds_up, adds_up_columns
from tests.compiler.loops.trees import column, group_of, groups_of, plain, prints
from torch_tenon.compiler.capabilities import Capabilities
from torch_tenon.compiler.loops.atomics import atomic_stores
from torch_tenon.compiler.loops.batch import batched
from torch_tenon.compiler.loops.checks import collect_checks
from torch_tenon.compiler.loops.copy import Copy, instead
from torch_tenon.compiler.loops.cut import Change, change_of, cut_where_conditions_change
from torch_tenon.compiler.loops.draws import draw_before
from torch_tenon.compiler.loops.fission import fission
from torch_tenon.compiler.loops.interchange import interchange, sink
from torch_tenon.compiler.loops.jam import jam
from torch_tenon.compiler.loops.lower import axes, lower, read_later
from torch_tenon.compiler.loops.neighbours import lanes_of, neighbours
from torch_tenon.compiler.loops.numbers import Numbers, numbers_as_arguments
from torch_tenon.compiler.loops.parameters import parameters
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.rows import keep_rows
from torch_tenon.compiler.loops.share import share_stores
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.side_by_side import side_by_side
from torch_tenon.compiler.loops.split import split_reductions
from torch_tenon.compiler.loops.tile import as_lanes, share_out, tile
from torch_tenon.compiler.loops.transpose import transpose_tiles
from torch_tenon.compiler.loops.tree import (
    Array,
    Constant,
    For,
    Let,
    Load,
    Node,
    Operand,
    Tree,
    changed,
    indices,
    is_innermost,
    operands,
    read,
    used,
    walk,
)
from torch_tenon.compiler.loops.unswitch import unswitch
from torch_tenon.ir.index import Index, Symbol, var
from torch_tenon.targets.c_family.layout import common_coordinate

randn = torch.randn


def test_the_plain_tree_has_the_passes_over_a_row_one_after_the_other() -> None:
    tree, _, _ = plain(lambda x: torch.softmax(x, 1), randn(5, 6))
    prints(
        tree,
        """
        parallel i0 from 0 to 5:
          acc: f32 of max
          reduce j0 from 0 to 6:
            t0: f32 = in0[6*i0 + j0]
            acc max= t0
          barrier
          acc_1: f32 of sum
          reduce j0 from 0 to 6 again:
            t1: f32 = in0[6*i0 + j0]
            t2: f32 = sub(t1, acc)
            t3: f32 = exp(t2)
            buf2[6*i0 + j0] = t3
            acc_1 sum= t3
          barrier
          t4: f32 = reciprocal(acc_1)
          barrier
          parallel j0 from 0 to 6 again:
            t5: f32 = buf2[6*i0 + j0]
            t6: f32 = mul(t5, t4)
            buf5[6*i0 + j0] = t6
        """,
    )


def test_a_row_that_later_passes_read_is_kept() -> None:
    group, kept = group_of(lambda x: torch.softmax(x, 1), randn(5, 6))
    inner = [axes(group)[s] for s in group.inner]
    text = show(keep_rows(lower(group, kept), list(read_later(group)), inner))
    assert "  row: f32[6]\n" in text
    assert "    row[j0] = t3\n" in text
    assert "    t5: f32 = row[j0]\n" in text
    assert "buf2" not in text


def test_tiles_that_are_never_cut_have_no_other_end() -> None:
    tree, (s,), _ = plain(lambda x: x * 2, randn(8))
    assert "from tile to tile + 4:" in show(tile(tree, s, 4, Symbol("tile", 8)))
    assert "from tile to min(tile + 3, 8):" in show(tile(tree, s, 3, Symbol("tile", 8)))


def test_sums_are_split_in_blocks() -> None:
    tree, lane, rows = column()
    tree = as_lanes(share_out(tree, 1), lambda loop: loop.symbol is lane)
    prints(
        split_reductions(tree, rows, 2),
        """
        grid tile from 0 to 6 by 4:
          acc: f64[4] of sum
          reduce j0_block from 0 to 5 by 2:
            partial: f32[4] of sum
            reduce j0 from j0_block to min(j0_block + 2, 5):
              lane i0 from tile to min(tile + 4, 6):
                t0: f32 = in0[6*j0 + i0]
                partial[i0 - tile] sum= t0
            parallel k from 0 to 4:
              acc[k] sum= partial[k]
          lane i0 from tile to min(tile + 4, 6):
            buf1[i0] = acc[i0 - tile]
        """,
    )


def test_neighbours_load_once_what_they_share() -> None:
    tree, *_ = plain(lambda x: x[:-1, :5] * x[1:, :5], torch.randn(6, 6))
    prints(
        neighbours(tree, lambda loop: 3 if lanes_of(loop) else 1),
        """
        parallel i0_several from 0 to 3 by 3:
          parallel i1 from 0 to 5:
            t0: f32 = in0[6*i0_several + i1]
            t1: f32 = in0[6*i0_several + i1 + 6]
            t2: f32 = mul(t0, t1)
            t3: f32 = in0[6*i0_several + 12 + i1]
            t4: f32 = mul(t1, t3)
            t5: f32 = in0[6*i0_several + 18 + i1]
            t6: f32 = mul(t3, t5)
            buf1[5*i0_several + i1] = t2
            buf1[5*i0_several + 5 + i1] = t4
            buf1[5*i0_several + 10 + i1] = t6
        parallel i0 from 3 to 5:
          parallel i1 from 0 to 5:
            t7: f32 = in0[6*i0 + i1]
            t8: f32 = in0[6*i0 + i1 + 6]
            t9: f32 = mul(t7, t8)
            buf1[5*i0 + i1] = t9
        """,
    )


def test_rows_of_a_column_are_jammed() -> None:
    tree, lane, rows = column()
    tree = as_lanes(tree, lambda loop: loop.symbol is lane)
    prints(
        jam(
            split_reductions(tree, rows, 100),
            lambda loop: 2 if adds_up_columns(loop) else 1,
        ),
        """
        parallel tile from 0 to 6 by 4:
          acc: f64[4] of sum
          partial: f32[4] of sum
          reduce j0_few from 0 to 4 by 2:
            lane i0 from tile to min(tile + 4, 6):
              register: f32 = partial[i0 - tile]
              unrolled j0_row from 0 to 2:
                t0: f32 = in0[6*j0_few + 6*j0_row + i0]
                register sum= t0
              partial[i0 - tile] = register
          reduce j0 from 4 to 5:
            lane i0 from tile to min(tile + 4, 6):
              t1: f32 = in0[6*j0 + i0]
              partial[i0 - tile] sum= t1
          parallel k from 0 to 4:
            acc[k] sum= partial[k]
          lane i0 from tile to min(tile + 4, 6):
            buf1[i0] = acc[i0 - tile]
        """,
    )


def row(columns: int, block: int) -> Tree:
    """Row sums in blocks, two accumulators side by side."""
    tree, _, (s,) = plain(lambda x: x.sum(1), randn(5, columns))
    tree = split_reductions(as_lanes(tree, lambda loop: loop.symbol is s), s, block)
    return side_by_side(tree, 2, adds_up)


def test_accumulators_side_by_side() -> None:
    prints(
        row(7, 100),
        """
        parallel i0 from 0 to 5:
          acc: f64 of sum
          partial: f32 of sum
          partial_1: f32 of sum
          partial_2: f32 of sum
          lane k from 0 to 3:
            t0: i64 = index(k)
            t1: f32 = in0[t0 + 7*i0]
            partial_1 sum= t1
            t2: i64 = index(k + 3)
            t3: f32 = in0[t2 + 7*i0]
            partial_2 sum= t3
          lane j0 from 6 to 7:
            t4: f32 = in0[7*i0 + j0]
            partial_1 sum= t4
          partial sum= partial_1
          partial sum= partial_2
          acc sum= partial
          buf1[i0] = acc
        """,
    )


def test_what_is_left_of_a_block_is_added_up_too() -> None:
    """12 columns are a multiple of 2, but blocks of 3 are not."""
    assert show(row(12, 3)).count("lane j0") == 1
    assert show(row(12, 4)).count("lane j0") == 0


def test_a_loop_is_cut_where_a_condition_changes() -> None:
    x, y = randn(5, 4), randn(5, 3)
    tree, _, _ = plain(lambda x, y: torch.cat([x, y.exp()], 1), x, y)
    prints(
        cut_where_conditions_change(tree, 8, is_innermost),
        """
        parallel i0 from 0 to 5:
          parallel i1 from 0 to min(7, 4):
            t0: i64 = index(i1)
            t1: bool = copy(True)
            t2: f32 = in0[4*i0 + i1] if t1 else 0.0
            t3: bool = logical_not(t1)
            t4: f32 = in1[3*i0 + i1 - 4] if t3 else 0.0
            t5: f32 = exp(t4)
            t6: f32 = where(t3, t5, 0.0)
            t7: f32 = where(t1, t2, t6)
            buf2[7*i0 + i1] = t7
          parallel i1 from 4 to 7:
            t8: i64 = index(i1)
            t9: bool = copy(False)
            t10: f32 = in0[4*i0 + i1] if t9 else 0.0
            t11: bool = logical_not(t9)
            t12: f32 = in1[3*i0 + i1 - 4] if t11 else 0.0
            t13: f32 = exp(t12)
            t14: f32 = where(t11, t13, 0.0)
            t15: f32 = where(t9, t10, t14)
            buf2[7*i0 + i1] = t15
        """,
    )


def test_a_loop_is_made_for_either_answer_of_a_condition() -> None:
    tree, _, _ = plain(lambda x: F.pad(x, (0, 0, 1, 1)), randn(5, 4))
    prints(
        unswitch(place_values(tree), is_innermost, 100),
        """
        parallel i0 from 0 to 7:
          t0: i64 = index(i0 - 1)
          t1: bool = ge(t0, 0)
          t2: bool = lt(t0, 5)
          t3: bool = logical_and(t1, t2)
          if t3:
            parallel i1 from 0 to 4:
              t4: bool = copy(True)
              t5: f32 = in0[4*i0 + i1 - 4] if t4 else 0.0
              buf1[4*i0 + i1] = t5
          t6: bool = logical_not(t3)
          if t6:
            parallel i1 from 0 to 4:
              t7: bool = copy(False)
              t8: f32 = in0[4*i0 + i1 - 4] if t7 else 0.0
              buf1[4*i0 + i1] = t8
        """,
    )


def test_a_loop_is_made_for_either_answer_of_several_conditions() -> None:
    tree, _, _ = plain(lambda x: F.avg_pool2d(x, (3, 1), 1, (1, 0)), randn(1, 1, 5, 40))
    placed = place_values(tree)

    def loops(most: int) -> list[For]:
        made = unswitch(placed, is_innermost, most)
        return [s for s in walk(made.body) if isinstance(s, For) and is_innermost(s)]

    assert len(loops(0)) == 2
    assert len(loops(1000)) == 4
    masks = [s.mask for s in loops(1000)[0].body if isinstance(s, Load)]
    assert len(masks) == 3
    assert all(isinstance(m, Let) and m.op in ("copy", "logical_and") for m in masks if m)


def test_a_loop_without_conditions_of_outside_stays() -> None:
    tree, _, _ = plain(lambda x: F.pad(x, (1, 1)).exp(), randn(5, 4))
    placed = place_values(tree)
    assert show(unswitch(placed, is_innermost, 100)) == show(placed)


def test_where_comparisons_change() -> None:
    s, around, made = Symbol("i", 100), Symbol("o", 7), Symbol("m", 100)
    loop = For(s, "lane", s, (0,), (100,), [Let("index", (3,), torch.int64, made)])
    expected = {"lt": (70, True), "le": (71, True), "gt": (71, False), "ge": (70, False)}
    bound = Let("index", (var(around) * 9,), torch.int64)
    for op, (at, first) in expected.items():
        place = Let("index", (var(s) + 5,), torch.int64)
        compared = Let(op, (place, Constant(75, torch.int64)), torch.bool)
        assert change_of(compared, loop) == Change(at, first)
        later = Let("index", (var(s) + var(around) * 8 + 5,), torch.int64)
        by_bound = Let(op, (later, bound), torch.bool)
        assert change_of(by_bound, loop) == Change(var(around) + at - 75, first)
        for other in (var(s) * -2, var(s) * var(around), var(s) + var(made)):
            across = Let("index", (other,), torch.int64)
            compared = Let(op, (across, Constant(75, torch.int64)), torch.bool)
            assert change_of(compared, loop) is None


def test_where_comparisons_of_every_nth_place_change() -> None:
    s = Symbol("i", 100)
    loop = For(s, "lane", s, (0,), (100,), [])
    compare = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
    for step, offset, bound in itertools.product((2, 3), (-4, 0, 5), range(40, 47)):
        place = Let("index", (var(s) * step + offset,), torch.int64)
        for op, holds in compare.items():
            change = change_of(Let(op, (place, Constant(bound, torch.int64)), torch.bool), loop)
            assert change is not None
            for i in range(100):
                assert holds(i * step + offset, bound) is (change.first is (i < change.at))


def test_what_changes_before_the_loop_is_the_same_in_each_piece() -> None:
    s = Symbol("i", 100)
    place = Let("index", (var(s),), torch.int64)
    compared = [Let("lt", (place, Constant(n, torch.int64)), torch.bool) for n in (0, 70)]
    loop = For(s, "lane", s, (0,), (100,), [place, *compared])
    prints(
        cut_where_conditions_change(Tree([loop]), 8, is_innermost),
        """
        lane i from 0 to min(100, 70):
          t0: i64 = index(i)
          t1: bool = copy(False)
          t2: bool = copy(True)
        lane i from 70 to 100:
          t3: i64 = index(i)
          t4: bool = copy(False)
          t5: bool = copy(False)
        """,
    )


def test_a_long_iteration_becomes_several_loops() -> None:
    tree, (s,), _ = plain(lambda x: (x.exp() + 1).tanh() * x, randn(50))
    tree = tile(tree, s, 8, Symbol("tile", 50))
    prints(
        fission(tree, {"exp", "tanh"}, 8, is_innermost),
        """
        parallel tile from 0 to 50 by 8:
          passed: f32[8]
          passed_1: f32[8]
          parallel i0 from tile to min(tile + 8, 50):
            t0: f32 = in0[i0]
            t1: f32 = exp(t0)
            t2: f32 = add(t1, 1.0)
            passed[i0 - tile] = t0
            passed_1[i0 - tile] = t2
          parallel i0 from tile to min(tile + 8, 50):
            t3: f32 = copy(passed[i0 - tile])
            t4: f32 = copy(passed_1[i0 - tile])
            t5: f32 = tanh(t4)
            t6: f32 = mul(t5, t3)
            buf1[i0] = t6
        """,
    )


def test_random_numbers_are_drawn_before_the_loop_that_uses_them() -> None:
    tree, _, _ = plain(lambda x: (x + torch.randn_like(x)).amax(1), randn(5, 200))
    prints(
        draw_before(place_values(tree), 64, is_innermost),
        """
        t0: i64 = seed[0]
        t1: i64 = offset[0]
        parallel i0 from 0 to 5:
          acc: f32 of max
          reduce j0_piece from 0 to 200 by 64:
            drawn: f32[64]
            drawn = min(64, - j0_piece + 200) of random_normal(t0, t1, j0_piece + 200*i0 on)
            reduce j0 from j0_piece to min(j0_piece + 64, 200):
              t2: i64 = index(j0 + 200*i0)
              t3: f32 = copy(drawn[j0 - j0_piece])
              t4: f32 = add(t3, 0.0)
              t5: f32 = in0[200*i0 + j0]
              t6: f32 = add(t5, t4)
              acc max= t6
          buf4[i0] = acc
        """,
    )


def test_random_numbers_across_the_loop_are_drawn_one_by_one() -> None:
    tree, loops, _ = plain(lambda x: x + torch.rand(50, 40).t(), randn(40, 50))
    along, across = (place_values(interchange(tree, order)) for order in (loops, loops[::-1]))
    assert "random_unit" in show(across)
    assert show(draw_before(across, 64, is_innermost)) == show(across)
    assert "= 40 of random_unit" in show(draw_before(along, 64, is_innermost))


def test_tiles_are_transposed() -> None:
    tree, (rows, lanes), _ = plain(lambda x: (x.mT + 1).contiguous(), randn(20, 30))
    a, b = Symbol("a", 30), Symbol("b", 20)
    tree = interchange(tile(tile(tree, rows, 4, a), lanes, 4, b), [a, b, rows, lanes])
    prints(
        transpose_tiles(tree, rows, lanes, 4, lambda load: True),
        """
        parallel a from 0 to 30 by 4:
          parallel b from 0 to 20 by 4:
            tile: f32[16]
            tile[0] by 4, 1 = min(4, - a + 30) by 4 of in0[a + 30*b] by 1, 30
            parallel i0 from a to min(a + 4, 30):
              parallel i1 from b to b + 4:
                t0: f32 = tile[4*i0 - 4*a + i1 - b]
                t1: f32 = add(t0, 1.0)
                buf1[20*i0 + i1] = t1
        """,
    )


def test_numbers_that_come_from_shapes_are_arguments() -> None:
    tree, (_, lane), _ = plain(lambda x, i: x[i], randn(20, 30), torch.arange(3))
    which = Numbers(4, 4, (), [lane], {"add", "lt"}, lambda loop: loop.symbol is lane)
    tree = numbers_as_arguments(place_values(tree), which)
    prints(
        tree,
        """
        parallel i0 from 0 to 3:
          t0: i64 = in1[i0]
          t1: bool = lt(t0, 0)
          t2: i64 = add(t0, n0)
          t3: i64 = where(t1, t2, t0)
          check t3 in n0 (index of -1)
          t4: i64 = within(t3, n0)
          parallel i1 from 0 to n1:
            t5: f32 = in0[t4*n2 + i1]
            buf2[i0*n2 + i1] = t5
        """,
    )
    assert [tree.numbers[s] for s in parameters(tree).sizes] == [20, 30, 30]


def test_steps_along_what_is_reduced_stay_numbers() -> None:
    tree, _, inner = plain(lambda x: x.sum((0, 2)), randn(20, 5, 30))
    which = Numbers(4, 4, inner, inner[-1:], set(), lambda loop: loop.symbol in inner)
    assert "in0[150*j0 + i0*n1 + j1]" in show(numbers_as_arguments(tree, which))


def test_checks_leave_the_innermost_loop() -> None:
    tree, (_, lane), _ = plain(
        lambda x, i: x.gather(1, i), randn(20, 30), torch.zeros(20, 5, dtype=torch.long)
    )
    prints(
        collect_checks(tree, lambda loop: loop.symbol is lane),
        """
        parallel i0 from 0 to 20:
          low: i64 = 0
          high: i64 = -1
          parallel i1 from 0 to 5:
            t0: i64 = in1[5*i0 + i1]
            low min= t0
            high max= t0
            t1: i64 = within(t0, 30)
            t2: f32 = in0[30*i0 + t1]
            buf2[5*i0 + i1] = t2
          check low to high in 30 (gather of -1)
        """,
    )


def test_stores_are_shared_out_by_where_they_go() -> None:
    group, kept = groups_of(
        lambda x, i, v: x.index_add(0, i, v), randn(5, 4), torch.arange(3), randn(3, 4)
    )[-1]
    (column,) = group.outer
    coordinate = common_coordinate(group, column)
    assert coordinate is not None
    lane = axes(group)[column]
    tree = share_stores(lower(group, kept), lane, coordinate, Symbol("shares", lower=1))
    prints(
        place_values(sink(tree, lane, 4)),
        """
        parallel share from 0 to shares:
          serial j0 from 0 to 3:
            t0: i64 = in1[j0]
            check t0 in 5 (embedding of -1)
            t1: i64 = within(t0, 5)
            t2: i64 = bitwise_and(t1, shares - 1)
            t3: bool = eq(t2, share)
            if t3:
              parallel i0 from 0 to 4:
                t4: f32 = in2[4*j0 + i0]
                buf3_v1[4*t1 + i0] sum= t4
        """,
    )


def test_stores_that_may_meet_are_atomic() -> None:
    here = Capabilities(atomics={torch.int64: frozenset({"sum"})})

    def tree_of(reduce: str, dtype: torch.dtype) -> Tree:
        table, values = torch.ones(5, 4, dtype=dtype), torch.ones(3, 4, dtype=dtype)
        places = torch.tensor([2, 0, 2])[:, None].expand(3, 4)
        found = groups_of(lambda x, k, v: x.scatter_reduce(0, k, v, reduce), table, places, values)
        return next(lower(*f) for f in found if f[0].members[0].node.kind == "scatter")

    prints(
        atomic_stores(tree_of("sum", torch.int64), here),
        """
        parallel i0 from 0 to 4:
          parallel j0 from 0 to 3:
            t0: i64 = in1[j0]
            check t0 in 5 (gather of -1)
            t1: i64 = within(t0, 5)
            t2: i64 = in2[4*j0 + i0]
            buf3_v1[4*t1 + i0] sum= t2, atomic
        """,
    )
    # Another combination, a dtype without it, numbers that are wider than what they are stored in.
    for reduce, dtype in (("amax", torch.int64), ("sum", torch.float32), ("sum", torch.int16)):
        tree = tree_of(reduce, dtype)
        assert atomic_stores(tree, here) is tree
        assert "serial" in show(tree)


def test_equal_kernels_are_one() -> None:
    tree, _, _ = plain(lambda x: x * 2, randn(5, 6))
    prints(
        batched(share_out(tree, 1), 3),
        """
        grid set from 0 to 3:
          parallel i0 from 0 to 30:
            t0: f32 = in0[i0]
            t1: f32 = mul(t0, 2.0)
            buf1[i0] = t1
        """,
    )


@dataclass(eq=False, slots=True)
class Swap(Node):
    """Exchanges elements of an array with a value: a node that no file here knows."""

    array: Array
    index: Index
    value: Operand
    counts: tuple[Index, ...]
    label: str


def test_a_node_is_declared_once() -> None:
    old, new, i, j = Array("a", torch.float32, 8), Array("b", torch.float32, 8), *map(Symbol, "ij")
    value = Let("exp", (Constant(1.0, torch.float32),), torch.float32)
    swap: Any = Swap(old, var(i) + 1, value, (var(i), 4), "x")
    assert operands(swap) == [value] and list(changed(swap)) == [old] and not list(read(swap))
    assert list(indices(swap)) == [var(i) + 1, var(i)] and used(swap) == {value, i}
    assert Copy(fresh=False).statement(swap) is swap
    copy = Copy(symbols={i: var(j)}, arrays={old: instead(new)})
    value_copy, made = copy.body([value, swap])
    assert (made.array, made.index, made.value) == (new, var(j) + 1, value_copy)
    assert made.counts == (var(j), 4) and made.label == "x"
    assert "swap t0" in show(Tree([value, swap]))
