"""What becomes of places in memory that are remainders by a run-time size."""

from __future__ import annotations

import torch

from tests.compiler.loops.trees import plain, prints
from torch_tenon.compiler.loops.cut import cut_where_conditions_change
from torch_tenon.compiler.loops.divisions import divisions_before
from torch_tenon.compiler.loops.place import place_values
from torch_tenon.compiler.loops.tree import Constant, For, Let, Load, Tree, is_innermost
from torch_tenon.ir.index import Symbol, mod, var


def two_halves() -> Tree:
    """Rows of which a run-time size says where they are read from: a row around, and a place in the
    row from the third on and then from its start."""
    tree, (i, j), _ = plain(lambda x: x[:, :4].exp(), torch.randn(5, 6))
    (rows,) = tree.body
    assert isinstance(rows, For)
    (columns,) = rows.body
    assert isinstance(columns, For)
    load, exp, store = columns.body
    assert isinstance(load, Load) and isinstance(exp, Let)
    n = var(Symbol("n", lower=1))
    place, ahead = mod(var(i) - 2, n) * n, mod(3, n)
    index, bound = (Let("index", (e,), torch.int64) for e in (var(j), n - ahead))
    here = Let("lt", (index, bound), torch.bool)
    there = Let("logical_not", (here,), torch.bool)
    first = Load(load.memory, place + var(j) + ahead, load.dtype, here, Constant(0.0, load.dtype))
    other = Load(load.memory, place + mod(var(j) + ahead, n), load.dtype, there, first)
    exp.args = (other,)
    columns = columns.holding([index, bound, here, first, there, other, exp, store])
    return Tree([rows.holding([columns])])


def test_divisions_by_sizes_leave_the_loops_that_they_do_not_depend_on() -> None:
    """As of rows that are rolled: gcc made no vectors around them."""
    prints(
        place_values(divisions_before(two_halves())),
        """
        t0: i64 = index(((3) % (n)))
        t1: i64 = index(- t0 + n)
        parallel i0 from 0 to 5:
          t2: i64 = index(((i0 - 2) % (n)))
          parallel i1 from 0 to 4:
            t3: i64 = index(i1)
            t4: bool = lt(t3, t1)
            t5: f32 = in0[n*t2 + t0 + i1] if t4 else 0.0
            t6: bool = logical_not(t4)
            t7: f32 = in0[n*t2 + ((t0 + i1) % (n))] if t6 else t5
            t8: f32 = exp(t7)
            buf1[4*i0 + i1] = t8
        """,
    )


def test_loads_are_cut_at_a_size() -> None:
    placed = place_values(two_halves())
    prints(
        cut_where_conditions_change(placed, 8, is_innermost),
        """
        t0: i64 = index(n - ((3) % (n)))
        parallel i0 from 0 to 5:
          parallel i1 from 0 to min(4, n - ((3) % (n))):
            t1: i64 = index(i1)
            t2: bool = copy(True)
            t3: f32 = in0[n*((i0 - 2) % (n)) + i1 + ((3) % (n))] if t2 else 0.0
            t4: bool = logical_not(t2)
            t5: f32 = in0[n*((i0 - 2) % (n)) + ((i1 + ((3) % (n))) % (n))] if t4 else t3
            t6: f32 = exp(t5)
            buf1[4*i0 + i1] = t6
          parallel i1 from max(0, n - ((3) % (n))) to 4:
            t7: i64 = index(i1)
            t8: bool = copy(False)
            t9: f32 = in0[n*((i0 - 2) % (n)) + i1 + ((3) % (n))] if t8 else 0.0
            t10: bool = logical_not(t8)
            t11: f32 = in0[n*((i0 - 2) % (n)) + ((i1 + ((3) % (n))) % (n))] if t10 else t9
            t12: f32 = exp(t11)
            buf1[4*i0 + i1] = t12
        """,
    )
