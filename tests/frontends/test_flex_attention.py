"""Compiled `flex_attention`: fused with the graph around it, forward and backward."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from tests.against_cpu import assert_same
from torch_tenon.frontends.dynamo import explain_graphs

pytestmark = needs.plans

ScoreMod = Callable[..., torch.Tensor]


def _distance(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s + (i - j) * 0.1 - b


def _soft_cap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return 3 * torch.tanh(s / 3)


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return i >= j


def _near(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i - j).abs() <= 3 + h


def _few_rows(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (i % 5 != 2) & (j > 1)


def _expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, mask_mod: Any
) -> torch.Tensor:
    """By its definition; a row of which nothing counts is 0."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    places = [
        torch.arange(n).view([-1 if d == e else 1 for e in range(4)])
        for d, n in enumerate(scores.shape)
    ]
    scores = score_mod(scores, *places) if score_mod else scores
    mask = mask_mod(*places) if mask_mod else torch.tensor(True)
    weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
    return torch.where(mask.any(-1, keepdim=True), weights, 0) @ v


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "shape", "dtype"),
    [
        (None, None, (2, 2, 2, 33, 47, 16), torch.float32),
        (_distance, None, (2, 4, 2, 50, 50, 8), torch.float32),
        (_soft_cap, _causal, (1, 3, 3, 65, 65, 24), torch.float32),
        (None, _near, (1, 6, 2, 131, 131, 16), torch.float32),
        (_distance, _few_rows, (2, 2, 1, 37, 150, 8), torch.float32),
        (_soft_cap, _causal, (1, 4, 2, 40, 40, 32), torch.bfloat16),
        (None, _causal, (1, 2, 2, 21, 21, 8), torch.float64),
    ],
)
def test_values_and_gradients(
    score_mod: Any, mask_mod: Any, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    batch, heads, kv_heads, rows, columns, width = shape
    torch.manual_seed(0)
    q = torch.randn(batch, heads, rows, width, dtype=dtype)
    k, v = (torch.randn(batch, kv_heads, columns, width, dtype=dtype) for _ in range(2))
    grad = torch.randn(batch, heads, rows, width, dtype=dtype)
    mask = None
    if mask_mod is not None:
        mask = create_block_mask(mask_mod, batch, heads, rows, columns, device="tenon")

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = flex_attention(q * 2, k, v, score_mod, mask, enable_gqa=heads != kv_heads)
        return out.sin()

    wide = [x.double().requires_grad_() for x in (q, k, v)]
    want = _expected(2 * wide[0], *wide[1:], score_mod, mask_mod).sin()
    wanted = [want, *torch.autograd.grad(want, wide, grad.double())]
    there = [x.to("tenon").requires_grad_() for x in (q, k, v)]
    torch._dynamo.reset()
    out = torch.compile(f, backend="tenon", fullgraph=True)(*there)
    found = [out, *torch.autograd.grad(out, there, grad.to("tenon"))]
    close = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float64: 1e-6}[dtype]
    for x, y in zip(found, wanted, strict=True):
        assert_same(
            x.detach(), y.detach().to(dtype), rtol=close, atol=close * float(y.detach().abs().max())
        )


@pytest.mark.slow
@pytest.mark.parametrize("needed", [5, 4])
def test_what_a_score_reads_has_gradients_and_other_results_are_there(needed: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 3, 20, 8) for _ in range(3))
    bias, shift = torch.randn(3), torch.randn(20, 20)

    def f(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v, bias, shift = given

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s * bias[h] + shift[i, j]

        out, aux = flex_attention(
            q, k, v, score_mod, return_aux=AuxRequest(lse=True, max_scores=True)
        )
        assert aux.lse is not None and aux.max_scores is not None
        return out, aux.lse, aux.max_scores

    wide = [x.double() for x in (q, k, v, bias, shift)]
    there = [x.to("tenon") for x in (q, k, v, bias, shift)]
    for x in (*wide[:needed], *there[:needed]):
        x.requires_grad_()
    scores = wide[0] @ wide[1].mT / math.sqrt(8) * wide[3].view(3, 1, 1) + wide[4]
    want = (scores.softmax(-1) @ wide[2], scores.logsumexp(-1), scores.amax(-1))
    wanted = torch.autograd.grad(want[0].sum() + want[1].sin().sum(), wide[:needed])
    torch._dynamo.reset()
    found = torch.compile(f, backend="tenon", fullgraph=True)(*there)
    gradients = torch.autograd.grad(found[0].sum() + found[1].sin().sum(), there[:needed])
    for x, y in zip((*found, *gradients), (*want, *wanted), strict=True):
        assert_same(x.detach(), y.detach().float(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_graph_around_it_is_fused(caplog: pytest.LogCaptureFixture) -> None:
    q, k, v = (torch.randn(1, 2, 64, 16, device="tenon", requires_grad=True) for _ in range(3))
    mask = create_block_mask(_causal, None, None, 64, 64, device="tenon")

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q.relu(), k, v, _distance, mask).sin()

    with caplog.at_level(logging.WARNING, "torch_tenon"):
        graphs = explain_graphs(f, q, k, v)
    assert not caplog.records and [g.kind for g in graphs] == ["forward", "backward"]
    assert all(not g.calls and not g.fallbacks for g in graphs)


@pytest.mark.slow
def test_lengths_that_change() -> None:
    f = torch.compile(
        lambda q, k, v: flex_attention(q, k, v, _distance), backend="tenon", dynamic=True
    )
    torch._dynamo.reset()
    for n in (20, 33, 70):
        q, k, v = (torch.randn(1, 2, n, 8) for _ in range(3))
        found = f(*(x.to("tenon") for x in (q, k, v)))
        assert_same(found, _expected(q, k, v, _distance, None), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_traced_runs_op_by_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise ValueError("no such scores")

    monkeypatch.setattr("torch_tenon.frontends.flex_attention._forward", fails)
    x = torch.randn(1, 2, 16, 8)
    with torch.no_grad():
        got = torch.compile(flex_attention, backend="tenon")(*[x.to("tenon")] * 3)
        torch.testing.assert_close(got.cpu(), flex_attention(x, x, x))
