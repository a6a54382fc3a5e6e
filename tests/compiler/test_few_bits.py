"""Products of a few rows with weights of 8 or 4 bits, which are read as they lie."""

from __future__ import annotations

import random
from collections.abc import Callable

import needs
import pytest
import torch

import torch_tenon
from tests.against_cpu import assert_same
from torch_tenon import _C

aten = torch.ops.aten
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
Op = Callable[..., torch.Tensor]


def _check(op: Op, given: list[torch.Tensor], want: torch.Tensor) -> None:
    """Compares eager code, by a plan, and a compiled graph."""
    there = [t.to("tenon") for t in given]
    torch._dynamo.reset()
    close = CLOSE[want.dtype]
    graph = torch.compile(op, backend="tenon", dynamic=False)
    for run in (op, op, op, graph):  # the first runs at once, by the CPU's kernels
        found = run(*there)
        _C.commit_all()
        assert_same(found, want, rtol=close, atol=close * float(want.abs().nan_to_num().max()))


def _rows(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x @ w.to(x.dtype)) * s


def _columns(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (x @ w.to(x.dtype).mT) * s


@pytest.mark.slow
@needs.plans
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [_rows, _columns])
def test_bytes(op: Op, dtype: torch.dtype, compiled: None) -> None:
    for seed in range(2):
        rng = random.Random(f"{op.__name__} {dtype} {seed}")
        torch.manual_seed(seed)
        m, n = rng.randint(1, 9), rng.choice((1, 17, 64, 70, 530))
        k = rng.choice((1, 15, 48, 99, 260))
        bytes_of = rng.choice((torch.int8, torch.uint8))
        info = torch.iinfo(bytes_of)
        batch = rng.choice(((), (), (3,)))
        shape = (k, n) if op is _rows else (n, k)
        weights = torch.randint(info.min, info.max + 1, (*batch, *shape)).to(bytes_of)
        x, scales = torch.randn(*batch, m, k, dtype=dtype), torch.rand(n, dtype=dtype)
        if rng.random() < 0.5:
            x = x.mT.contiguous().mT  # its columns are dense
        want = op(x.double(), weights, scales.double()).to(dtype)
        _check(op, [x, weights, scales], want)


@needs.plans
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_a_part_with_a_bias(dtype: torch.dtype, compiled: None) -> None:
    weights = torch.randint(-128, 128, (90, 200), dtype=torch.int8)
    x, bias = torch.randn(3, 70, dtype=dtype), torch.randn(40, dtype=dtype)

    def op(x: torch.Tensor, w: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.addmm(c, x, w[2:82:2, 5:75].to(x.dtype).t()).relu()

    want = op(x.double(), weights, bias.double()).to(dtype)
    _check(op, [x, weights, bias], want)


@needs.plans
@pytest.mark.parametrize(
    ("m", "dtype"), [(1, torch.bfloat16), (2, torch.float16), (9, torch.float32)]
)
def test_pytorch_s_product_of_bytes(m: int, dtype: torch.dtype, compiled: None) -> None:
    given = [
        torch.randn(m, 96, dtype=dtype),  # of other lengths the CPU reads beyond the end
        torch.randint(-128, 128, (72, 96), dtype=torch.int8),
        torch.rand(72, dtype=dtype),
    ]
    _check(aten._weight_int8pack_mm, given, aten._weight_int8pack_mm(*given))


@pytest.mark.slow
@needs.plans
@pytest.mark.parametrize(
    ("m", "dtype"),
    [
        (1, torch.float32),
        (3, torch.bfloat16),
        (6, torch.float16),
        (8, torch.bfloat16),
        (9, torch.float32),
    ],
)
def test_pytorch_s_product_of_four_bits(m: int, dtype: torch.dtype, compiled: None) -> None:
    for n, k, group in ((112, 192, 64), (160, 256, 128)):
        x = torch.randn(m, k, dtype=dtype)
        packed = _packed(torch.randint(0, 16, (n, k)))
        scales = torch.randn(k // group, n, 2, dtype=dtype)

        def op(
            x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, group: int = group
        ) -> torch.Tensor:
            return aten._weight_int4pack_mm_for_cpu(x, w, group, s) + 1

        _check(op, [x, packed, scales], op(x, packed, scales))


@needs.plans
def test_four_bits_keep_what_is_not_finite(compiled: None) -> None:
    x, scales = torch.randn(4, 128), torch.randn(2, 64, 2)
    x[1, 3], x[2, 100] = float("inf"), float("nan")
    scales[0, 5, 0], scales[1, 40, 1] = float("inf"), float("-inf")
    packed = _packed(torch.randint(0, 16, (64, 128)))

    def op(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return aten._weight_int4pack_mm_for_cpu(x, w, 64, s)

    want = op(x, packed, scales)
    assert want.isinf().any() and want.isfinite().any()
    there = [t.to("tenon") for t in (x, packed, scales)]
    for _ in range(3):  # the first runs at once, by the CPU's kernels
        found = op(*there)
        _C.commit_all()
        assert_same(found, want, rtol=1e-4, atol=1e-3)


@needs.host_memory
def test_weights_are_not_widened_in_memory(compiled: None) -> None:
    x, w = torch.randn(8, 96, device="tenon"), torch.ones(80, 96, dtype=torch.int8)
    given, kept = (x, w.to("tenon"), torch.ones(80, device="tenon")), []

    def keep() -> None:
        kept[:] = [_columns(*given).sinh()]

    (plan,) = torch_tenon.explain(keep).plans
    assert plan.calls == 0 and plan.peak_bytes < 80 * 96


def _packed(weights: torch.Tensor) -> torch.Tensor:
    return aten._convert_weight_to_int4pack_for_cpu(weights.to(torch.int32), 1)


@pytest.mark.parametrize("greatest", [1e30, 1e33, 2e37, 1e38])
def test_four_bits_times_numbers_near_the_end_of_the_range(greatest: float) -> None:
    """Products with the bits alone would be infinite."""
    torch.manual_seed(0)
    weights = torch.randint(0, 16, (64, 128), dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(weights, 1)
    scales, x = torch.randn(1, 64, 2) * 0.01, (torch.rand(1, 128) * 2 - 1) * greatest

    def function(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(x, w, 128, s)
        return found

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="tenon")
    got = compiled(*(t.to("tenon") for t in (x, packed, scales))).cpu()
    want = function(x, packed, scales)
    assert want.isfinite().all()
    torch.testing.assert_close(got / greatest, want / greatest)
