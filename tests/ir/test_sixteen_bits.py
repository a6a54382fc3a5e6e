"""Which scalars are 16-bit numbers without being rounded."""

from collections.abc import Callable

import pytest
import torch

from torch_tenon.ir.scalar import Scalar, Trace, ops, tracing
from torch_tenon.ir.sixteen_bits import rounded_number
from torch_tenon.ir.values import Buffer, Storage

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
Body = Callable[[Scalar], Scalar]

EXACT: dict[str, Body] = {
    "what was loaded": lambda x: x,
    "its opposite": lambda x: ops.neg(ops.abs(x)),
    "the greatest": lambda x: ops.maximum(x, ops.neg(x)),
    "a choice": lambda x: ops.where(ops.lt(x, 0.3), x, 0.0),
    "a whole part": lambda x: ops.floor(x),
    "a truth": lambda x: ops.to(ops.lt(x, 0.3), torch.float32),
    "what was rounded": lambda x: ops.rounded(ops.add(x, 1), x.args[0].dtype),
}
WIDE: dict[str, Body] = {
    "a sum": lambda x: ops.add(x, x),
    "a product": lambda x: ops.mul(x, 2),
    "a bound that is no such number": lambda x: ops.minimum(x, 0.3),
    "a choice of one": lambda x: ops.where(ops.lt(x, 0.3), ops.mul(x, x), x),
    "an integer": lambda x: ops.to(ops.to(x, torch.int32), torch.float32),
}


@DTYPES
@pytest.mark.parametrize("body", [*EXACT, *WIDE])
def test_only_what_may_have_more_digits_is_rounded(body: str, dtype: torch.dtype) -> None:
    with tracing(Trace()) as trace:
        x = ops.load(Buffer("x", dtype, Storage("x", "input", 64)), 0)
        value = (EXACT | WIDE)[body](x)
        before = len(trace.scalars)
        ops.rounded(value, dtype)
        assert len(trace.scalars) - before == (body in WIDE)
        other = torch.float16 if dtype is torch.bfloat16 else torch.bfloat16
        assert ops.rounded(x, other) is not x
        assert ops.rounded(value, torch.float32) is value


@DTYPES
def test_numbers_are_rounded_as_tensors_are(dtype: torch.dtype) -> None:
    edges = [0.0, -0.0, 65519.99, 65520.0, -70000.0, 2.0**-25, 3e-8, 1e-40, 3.39e38, 1e300]
    for x in [*torch.randn(500).tolist(), *torch.randn(99, dtype=torch.float64).tolist(), *edges]:
        want = torch.tensor(x, dtype=dtype)
        got = torch.tensor(rounded_number(x, dtype), dtype=torch.float64)
        assert got == want and got.signbit() == want.signbit()


def test_a_nan_of_float16_has_digits_that_a_bfloat16_has_not() -> None:
    with tracing(Trace()):
        for dtype, plain in ((torch.bfloat16, True), (torch.float16, False)):
            x = ops.load(Buffer("x", dtype, Storage("x", "input", 64)), 0)
            assert x.plain_nan == ops.neg(x).plain_nan == plain
