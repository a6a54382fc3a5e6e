"""Products with an operand that is computed of less memory than it would take: few rows read it
where it is computed, and what does need memory lies as what it is computed of."""

from __future__ import annotations

from collections.abc import Callable

import needs
import pytest
import torch
import torch.nn.functional as F

import torch_tenon
from tests.against_cpu import assert_same
from torch_tenon import _C
from torch_tenon.ir.program import Program
from torch_tenon.ir.scalar import ops
from torch_tenon.ir.values import Layout, Lazy, steps_read

K, N = 96, 70
Product = Callable[..., torch.Tensor]


def _ints(*sizes: int) -> torch.Tensor:
    return torch.randint(-127, 127, sizes, dtype=torch.int8)


# Of x (rows, K), with weights of 8 bits, of 4 in halves of bytes, or of 16.
CASES: dict[str, tuple[Product, Callable[[], list[torch.Tensor]]]] = {
    "rows of weights": (
        lambda x, w, s: F.linear(x, w.to(x.dtype) * s),
        lambda: [_ints(N, K), torch.rand(N, 1)],
    ),
    "columns of weights": (
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        lambda: [_ints(K, N), torch.rand(1, N)],
    ),
    "groups": (
        lambda x, w, s: x @ (w.view(N, 6, 16).to(x.dtype) * s).view(N, K).t(),
        lambda: [_ints(N, K), torch.rand(N, 6, 1)],
    ),
    "groups from the end": (
        lambda x, w, s: x @ (w.view(N, 3, 32).to(x.dtype) * s.flip(1)).view(N, K).flip(1).t(),
        lambda: [_ints(N, K), torch.rand(N, 3, 1)],
    ),
    "halves of bytes": (
        lambda x, w: x @ (torch.stack([w & 15, w >> 4], -1).view(N, K).to(x.dtype) - 8).t(),
        lambda: [_ints(N, K // 2).view(torch.uint8)],
    ),
    "batches": (
        lambda x, w: torch.bmm(x.expand(3, -1, -1), w.to(x.dtype).transpose(1, 2)),
        lambda: [_ints(3, N, K)],
    ),
    "with a bias": (
        lambda x, w, c: F.linear(x, w.to(x.dtype), c).relu(),
        lambda: [_ints(N, K).to(torch.int16), torch.randn(N)],
    ),
    "on the left": (
        lambda x, w: ((w.to(x.dtype) * 0.5) @ x.t()).sum(1),
        lambda: [_ints(N, K)],
    ),
}


def _seen(name: str, rows: int, dtype: torch.dtype) -> int:
    """Compares with the CPU; gives the most memory of the plan beside its results."""
    compute, weights = CASES[name]
    given = [torch.randn(rows, K, dtype=dtype)]
    given += [t.to(dtype) if t.is_floating_point() else t for t in weights()]
    want = compute(*(t.double() if t.is_floating_point() else t for t in given)).to(dtype)
    there = [t.to("tenon") for t in given]
    close = 1e-5 if dtype is torch.float32 else 2e-2
    for _ in range(3):
        found = compute(*there)
        _C.commit_all()
        assert_same(found, want, rtol=close, atol=close * float(want.abs().max()))
    kept: list[torch.Tensor] = []  # what nobody keeps is not computed

    def keep() -> None:
        kept[:] = [compute(*there)]

    (plan,) = torch_tenon.explain(keep).plans
    return plan.peak_bytes


@pytest.mark.sampled(12)
@needs.plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("name", CASES)
def test_products_equal_the_cpu_s(name: str, rows: int, dtype: torch.dtype, compiled: None) -> None:
    _seen(name, rows, dtype)


@needs.host_memory
@pytest.mark.parametrize("name", CASES)
def test_a_row_needs_no_memory_for_the_weights(name: str, compiled: None) -> None:
    assert _seen(name, 1, torch.float32) < 4 * N * K // 4
    assert _seen(name, 9, torch.float32) >= 4 * N * K


@needs.plans
def test_weights_lie_as_what_they_are_computed_of() -> None:
    program = Program()
    w = program.input(torch.int8, Layout.contiguous((N, K)))
    wide = Lazy((K, N), torch.float32, lambda p: ops.to(w.load(p[::-1]), torch.float32), (w,))
    assert steps_read(wide) == [1, K]
    both = Lazy((K, N), torch.float32, lambda p: ops.to(w.load([p[1], 0]), torch.float32), (w,))
    assert steps_read(both) is None
