"""Complex constants in graphs that run as eager code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.against_cpu import assert_same

inf, nan = math.inf, math.nan
PARTS = [
    complex(0, inf),
    complex(nan, -inf),
    complex(-inf, nan),
    complex(-0.0, 1),
    complex(1, -0.0),
]


@pytest.mark.parametrize("kind", ["shared elements", "another dtype", "reference"])
def test_their_parts_are_those_of_eager_code(kind: str) -> None:
    """What is infinite, no number, and the sign of a zero."""

    def compute(x: Tensor) -> list[Any]:
        if kind == "shared elements":
            x = x.clone().as_strided((3, 3), (1, 1)).mul_(1)
        found = [torch.full((1,), z, device=x.device, dtype=x.dtype) for z in PARTS]
        if kind == "another dtype":
            torch.add(x, PARTS[0], out=x.new_zeros(x.shape, dtype=torch.complex128))
        return [*(r for z in found for r in (z.real, z.imag, z.sqrt())), x + PARTS[0], x * PARTS[1]]

    torch._dynamo.reset()
    options: dict[str, Any] = {"reference": True} if kind == "reference" else {}
    graph = torch.compile(compute, backend="tenon", options=options)
    x = torch.tensor([1 + 2j, -1j, 0.5, -2, 1j])
    for got, want in zip(graph(x.to("tenon")), compute(x.clone()), strict=True):
        assert_same(got, want)
        if not want.is_complex():
            number = ~want.isnan()
            assert torch.equal(got.cpu()[number].signbit(), want[number].signbit())
