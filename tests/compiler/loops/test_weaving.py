"""Loops of few iterations that are written out."""

from __future__ import annotations

import torch

from tests.compiler.loops.trees import groups_of, plain, prints
from torch_tenon.compiler.loops.interchange import interchange
from torch_tenon.compiler.loops.show import show
from torch_tenon.compiler.loops.split import split_reductions
from torch_tenon.compiler.loops.weave import weave
from torch_tenon.ir.index import product
from torch_tenon.targets.c_family import layout as decide

randn = torch.randn


def test_few_iterations_are_woven_into_the_loops_inside() -> None:
    tree, (rows, columns), _ = plain(lambda x, w: x * w, randn(6, 2), randn(6, 1))
    prints(
        weave(interchange(tree, [columns, rows]), columns, 100),
        """
        parallel i0 from 0 to 6:
          t0: f32 = in0[2*i0]
          t1: f32 = in0[2*i0 + 1]
          t2: f32 = in1[i0]
          t3: f32 = in1[i0]
          t4: f32 = mul(t0, t2)
          t5: f32 = mul(t1, t3)
          buf2[2*i0] = t4
          buf2[2*i0 + 1] = t5
        """,
    )


def test_woven_columns_have_totals_of_their_own() -> None:
    tree, (columns,), (rows,) = plain(lambda x: x.sum(0), randn(6, 2))
    prints(
        split_reductions(weave(tree, columns, 100), rows, 100, alone=True),
        """
        acc: f32 of sum
        acc_1: f32 of sum
        reduce j0 from 0 to 6:
          t0: f32 = in0[2*j0]
          t1: f32 = in0[2*j0 + 1]
          acc sum= t0
          acc_1 sum= t1
        buf1[0] = acc
        buf1[1] = acc_1
        """,
    )


def test_a_loop_with_too_much_inside_is_not_woven() -> None:
    tree, (_, columns), _ = plain(lambda x, w: x * w, randn(6, 2), randn(6, 1))
    assert show(weave(tree, columns, 5)) == show(tree)


def test_rows_of_all_columns_fit_on_the_stack() -> None:
    """Each column that is written out has rows of its own."""
    kept_rows = 0
    for count in (500, 2000, 9000, 20000):
        given = randn(count, 7, dtype=torch.float64)
        for group, kept in groups_of(lambda x: torch.softmax(x.sin(), 0), given):
            layout = decide.Layout(group, kept)
            if layout.few is None:
                continue
            length = product(s.extent for s in group.inner)
            assert isinstance(length, int)
            sizes = [7 * length * b.dtype.itemsize for b in layout.rows]
            assert sum(sizes) <= decide.STACK_BYTES
            assert all(n <= decide.ROW_BYTES for n in sizes)
            kept_rows += len(sizes)
    assert kept_rows > 0
