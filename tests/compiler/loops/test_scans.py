"""Loops with scans, in order, and what is computed before and behind them, in lanes."""

from __future__ import annotations

import pytest
import torch

from tests.compiler.loops.trees import plain, prints
from tests.ops.lowerings.by_plan import same_at_sizes, same_by_plans
from torch_tenon.compiler.loops.fission import scans_apart
from torch_tenon.compiler.loops.tree import Accumulate, Let, is_innermost

randn = torch.randn


def test_what_is_computed_of_a_running_value_is_a_loop_of_lanes() -> None:
    tree, _, _ = plain(lambda x: (x * 2).cumsum(1).exp().amax(1), randn(5, 50))
    prints(
        scans_apart(tree, 8, is_innermost, lambda s: isinstance(s, Accumulate)),
        """
        parallel i0 from 0 to 5:
          acc: f64 of sum
          acc_1: f32 of max
          serial j0_tile from 0 to 50 by 8:
            passed: f32[8]
            serial j0 from j0_tile to min(j0_tile + 8, 50):
              t0: f32 = in0[50*i0 + j0]
              t1: f32 = mul(t0, 2.0)
              t2: f64 = to(t1)
              acc sum= t2
              t3: f32 = copy(acc)
              passed[j0 - j0_tile] = t3
            lane j0 from j0_tile to min(j0_tile + 8, 50):
              t4: f32 = copy(passed[j0 - j0_tile])
              t5: f32 = exp(t4)
              acc_1 max= t5
          buf2[i0] = acc_1
        """,
    )


def test_what_goes_into_a_scan_is_a_loop_of_lanes_where_it_is_dear() -> None:
    tree, _, _ = plain(lambda x: x.exp().cumsum(1), randn(5, 6))
    prints(
        scans_apart(tree, 8, is_innermost, lambda s: isinstance(s, Let) and s.op == "exp"),
        """
        parallel i0 from 0 to 5:
          acc: f64 of sum
          passed: f64[8]
          lane j0 from 0 to 6:
            t0: f32 = in0[6*i0 + j0]
            t1: f32 = exp(t0)
            t2: f64 = to(t1)
            passed[j0] = t2
          serial j0 from 0 to 6:
            t3: f64 = copy(passed[j0])
            acc sum= t3
            t4: f32 = copy(acc)
            buf1[6*i0 + j0] = t4
        """,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [1, 2, 37, 600])
def test_results(dtype: torch.dtype, length: int) -> None:
    x = torch.rand(5, length).to(dtype)
    rtol = 1e-5 if dtype is torch.float32 else 0.02
    same_by_plans(lambda x: x.cumsum(1), x, rtol=rtol)
    same_by_plans(lambda x: (-x).exp().cumprod(1) * x, x, rtol=rtol, atol=1e-30)


def test_in_place() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        x = x * 1
        x[:, ::2].exp_().cumsum_(1)
        return x

    same_by_plans(compute, torch.rand(6, 40), rtol=1e-5)


def test_run_time_sizes() -> None:
    same_at_sizes(
        lambda x: x.exp().cumsum(1).log(), lambda n: [torch.rand(n, 90 * n)], rtol=1e-5, atol=1e-5
    )
