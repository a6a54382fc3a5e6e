"""Ops that write arguments of which their schemas say nothing (`mutates` in the table of ops): what
they leave there is the CPU's, however they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor

aten = torch.ops.aten
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
Call = Callable[[Tensor, Tensor, Tensor, list[Tensor]], list[Tensor]]


def _native(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    return list(aten.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5))


def _native_out(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    named = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
    aten.native_batch_norm.out(x, None, None, mean, var, True, 0.1, 1e-5, **named)
    return outs


def _native_out_without(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    named = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
    aten.native_batch_norm.out(x, None, None, None, None, True, 0.1, 1e-5, **named)
    return outs


def _native_out_by_given(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    named = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
    aten.native_batch_norm.out(x, None, None, mean, var, False, 0.1, 1e-5, **named)
    return outs[:1]  # the CPU leaves the others as they are


def _update(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    return list(aten.batch_norm_update_stats(x, mean, var, 0.1))


def _update_out(x: Tensor, mean: Tensor, var: Tensor, outs: list[Tensor]) -> list[Tensor]:
    aten.batch_norm_update_stats.out(x, mean, var, 0.1, out0=outs[1], out1=outs[2])
    return outs[1:]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reference", "compiled"])
@pytest.mark.parametrize(
    "call",
    [_native, _native_out, _native_out_without, _native_out_by_given, _update, _update_out],
)
def test_what_an_op_writes_beside_its_schema_is_there(call: Call, mode: str) -> None:
    def steps(device: str) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.randn(4, 3, 5).to(device)
        # Part of a larger tensor, of which the rest stays.
        held = torch.zeros(8).to(device)
        mean, var = held[1:4], held[4:7]
        var.add_(1)
        found = []
        for _ in range(4):  # the first of them runs at once
            outs = [torch.zeros(4, 3, 5), torch.zeros(3), torch.zeros(3)]
            mean.add_(1)
            before = (mean * 2).sin()
            made = call(x, mean, var, [t.to(device) for t in outs])
            x = x + 1
            found = [t.cpu() for t in (before, (mean * 2).sin(), held, *made)]
        return found

    expected = steps("cpu")
    with executing(mode):
        assert_same(steps("tenon"), expected, **CLOSE)
