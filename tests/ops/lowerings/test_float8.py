"""Numbers of 8 bits: each of them, and conversions both ways."""

from __future__ import annotations

import math

import needs
import pytest
import torch

from tests.against_cpu import assert_same
from torch_tenon import _C
from torch_tenon.frontends.dynamo import explain_graphs

FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]
WIDE = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@needs.plans
@pytest.mark.parametrize("dtype", FLOAT8)
def test_each_number_is_decoded(dtype: torch.dtype, compiled: None) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype)
    given = (numbers, numbers.view(16, 16)[:, 3:].t(), numbers[::3])
    torch._dynamo.reset()

    def decode(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.to(wide) for wide in WIDE]

    graph = torch.compile(decode, backend="tenon", dynamic=False)
    for x in given:
        there = x.to("tenon")
        for run in (decode, decode, decode, graph):  # the first runs at once, by the CPU's kernel
            found = run(there)
            _C.commit_all()
            for got, want in zip(found, decode(x), strict=True):
                assert_same(got, want)
                is_number = ~want.isnan()  # whose sign is that of zeros as well
                assert torch.equal(got.cpu().signbit()[is_number], want.signbit()[is_number])


@needs.plans
@pytest.mark.parametrize("dtype", FLOAT8)
def test_numbers_are_rounded_as_the_cpu_rounds(dtype: torch.dtype, compiled: None) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = numbers[numbers.isfinite()].sort().values
    between = (finite[1:] + finite[:-1]) / 2  # ties
    beside = [torch.nextafter(between, torch.tensor(to)) for to in (math.inf, -math.inf)]
    special = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1e30, -1e30, 1e-30, 3e-45])
    given = torch.cat([finite, between, *beside, special, torch.randn(1000) * 50])
    if dtype is torch.float8_e8m0fnu:
        given = given.abs()
    for wide in (torch.float32, torch.bfloat16, torch.float16):
        x = given.to(wide)
        there = x.to("tenon")
        for _ in range(3):
            found = there.to(dtype)
            again = found.float()
            _C.commit_all()
            assert_same(found.view(torch.uint8), x.to(dtype).view(torch.uint8))
            assert_same(again, x.to(dtype).float())


@needs.plans
def test_decoding_is_fused() -> None:
    x = torch.randn(8, 64, device="tenon").to(torch.float8_e4m3fn)
    (graph,) = explain_graphs(lambda x: (x.float() * 2).sum(1), x)
    assert graph.kernels == 1 and not graph.calls
