"""Numbers that ops are given: of any kind, special ones, and ones that are known at run time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.against_cpu import assert_same, executing, same_on_both
from tests.ops.lowerings.by_plan import compiled, on_tenon, same_at_sizes, same_by_plans

pytestmark = needs.plans
aten = torch.ops.aten
inf, nan = math.inf, math.nan
SPECIAL = torch.tensor([0.0, -0.0, 1, -1, 2.5, -2.5, 0.5, -0.5, inf, -inf, nan, 3e10, -3e10])

# Whole and not, negative, past the number of elements, none, and no numbers.
CORRECTIONS = (0, 1, 1.5, 2.75, -1, -0.5, 5, 9, 9.5, 100, inf, -inf, nan, True, None)


@pytest.mark.slow
def test_corrections_of_variances() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        found = [x.var(0, correction=c) for c in CORRECTIONS]
        more = [x.std(1, correction=c, keepdim=True) for c in (1.5, 9, nan)]
        return found + more + [x.var(correction=c) for c in (0.5, 99)]

    same_by_plans(compute, torch.randn(5, 3), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_corrections_where_sizes_change() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        found = [x.var(0, correction=c) for c in (1, 1.5, 6, 6.5, nan, -inf)]
        return [*found, x.std(0, correction=2.75)]

    same_at_sizes(compute, lambda n: [torch.randn(n, 4)], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_corrections_that_follow_from_sizes() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        n = x.shape[0]
        return [x.var(0, correction=n - 1), x.var(0, correction=n + 3), x.std(0, correction=n / 2)]

    run = compiled(compute, dynamic=True)
    for n in (5, 7, 4, 12):
        x = torch.randn(n, 3)
        assert_same(run(x.to("tenon")), compute(x), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_exponents() -> None:
    exponents = (inf, -inf, nan, 1e300, -1e300, 10**18, 0.0, -0.0, 4.5, -3, 4, 5, True, -0.5, 1 / 3)

    def compute(x: Tensor, n: Tensor) -> list[Tensor]:
        whole = [n**e for e in exponents if isinstance(e, int) and e >= 0]
        return [f for e in exponents for f in (x**e, torch.pow(e, x))] + whole

    same_by_plans(compute, SPECIAL, torch.tensor([0, 1, -1, 2, -3, 2**40]), rtol=1e-5)


@pytest.mark.slow
def test_decimals() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        return [x.round(decimals=d) for d in (1, -1, 5, 10, -10, 39, -39, 400, -400)]

    for dtype in (torch.float32, torch.float64):
        same_by_plans(compute, SPECIAL.to(dtype))


def test_orders_of_norms() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        orders = (inf, -inf, 0, 1, 2, 3, -1, 0.5, 2.5, nan)
        return [torch.linalg.vector_norm(x, o, dim=1) for o in orders]

    x = torch.tensor([[1.0, nan], [0.0, 0.0], [inf, 1.0], [-2.0, 3.0]])
    same_by_plans(compute, x, rtol=1e-5)


@pytest.mark.slow
def test_constants_that_are_converted() -> None:
    """Beyond the whole numbers a plan's maker converts as the processor does."""
    whole = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool)

    def compute(x: Tensor) -> list[Tensor]:
        numbers = (3e10, -3e10, nan, inf, -inf, 300.7, -1.5, 1e20)
        return [torch.full_like(x, v).to(d) | x.to(d) for v in numbers for d in whole]

    same_by_plans(compute, torch.zeros(3))


@pytest.mark.parametrize(
    ("dtype", "numbers"),
    [
        (torch.uint8, (300, nan, inf, 2**40)),
        (torch.int32, (nan, inf, 2**40, -(2**40))),
        (torch.float16, (2**40, 1e6)),
        (torch.float32, (1e300,)),
    ],
)
def test_numbers_that_overflow(dtype: torch.dtype, numbers: tuple[Any, ...]) -> None:
    """Where PyTorch's kernel says that a number has no place in a dtype, a compiled graph does."""
    fills: list[Callable[[Tensor, Any], Tensor]] = [
        lambda x, v: torch.full_like(x, v),
        lambda x, v: x.scatter(0, x.long(), v),
    ]
    x = torch.ones(3, dtype=dtype)
    for v in numbers[:2]:
        for fill in fills:
            with pytest.raises(RuntimeError, match="without overflow"):
                fill(x, v)
            with pytest.raises(RuntimeError, match="without overflow"):
                compiled(fill)(x.to("tenon"), v)


# Numbers that a dtype has not.
BEYOND: dict[torch.dtype, tuple[Any, ...]] = {
    torch.float16: (1e5, 65519.0, -7e4),
    torch.bfloat16: (3.4e38, -1e39),
    torch.float32: (1e39, -1e300),
    torch.int8: (128, -129, 300),
    torch.uint8: (256, -1, -300),
    torch.int32: (2**40, -(2**40)),
}


def _as_on_the_cpu(compute: Callable[..., Any], run: Callable[..., Any], x: Tensor, k: Any) -> None:
    try:
        want = compute(x, k)
    except (RuntimeError, OverflowError) as error:
        with pytest.raises(type(error), match=r"without overflow|too large"):
            _ = [t.cpu() for t in tree_leaves(run(x.to("tenon"), k))]
    else:
        assert_same(run(x.to("tenon"), k), want)


FACTORS: list[Callable[[Tensor, float], Any]] = [
    lambda x, k: torch.add(x, x, alpha=k),
    lambda x, k: torch.sub(x, x, alpha=k),
    lambda x, k: torch._foreach_add([x, x], [x, x], alpha=k),
    lambda x, k: torch.addcmul(x, x, x, value=k),
    lambda x, k: torch._foreach_addcmul([x], [x], [x], k),
    lambda x, k: torch.lerp(x, x + 1, k),
    lambda x, k: x * k,
]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_factors_beyond_a_dtype_in_windows(dtype: torch.dtype) -> None:
    """Also where an op's numbers have become run-time values."""
    x = torch.full((5,), 0.25, dtype=dtype)
    with executing("compiled"):
        for compute in FACTORS:
            for k in (2.5, 3.5, 4.5, *BEYOND[dtype], 2.25):
                _as_on_the_cpu(compute, compute, x, k)


# Where a compiled graph takes a number that is known only when it runs.
TAKEN: list[Callable[[Tensor, Any], Any]] = [
    torch.full_like,
    lambda x, k: x.new_full((2,), k),
    lambda x, k: torch.full((3,), k, dtype=x.dtype, device=x.device),
    lambda x, k: x.clone().fill_(k),
    lambda x, k: x.masked_fill(x > 1, k),
    lambda x, k: x.clamp(-1, k),
    lambda x, k: x.clamp_min(k),
    lambda x, k: torch.where(x > 1, x, k),
    lambda x, k: torch.add(x, x, alpha=k),
    lambda x, k: x * k,
]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", range(len(TAKEN)))
@pytest.mark.parametrize("dtype", BEYOND)
def test_run_time_numbers_beyond_a_dtype(dtype: torch.dtype, k: int) -> None:
    """What PyTorch's kernels refuse is refused, and what they wrap is wrapped."""
    x = torch.tensor([0, 1, 2, 3], dtype=dtype)
    run = compiled(TAKEN[k], dynamic=True)
    for number in (2, 3, 4) if not dtype.is_floating_point else (2.5, 3.5, 4.5):
        _as_on_the_cpu(TAKEN[k], run, x, number)
    for number in (*BEYOND[dtype], 5):
        _as_on_the_cpu(TAKEN[k], run, x, number)


def test_numbers_that_wrap() -> None:
    """Negative ones do where there are none, and so does what meets a tensor as an operand."""

    def compute(x: Tensor) -> list[Tensor]:
        filled = [x.clone().fill_(-1), torch.full_like(x, -255), x.masked_fill(x > 1, -3)]
        return [*filled, x == 300, x > -1, x + 300, x * -1, x // 2, -1 - x]

    same_by_plans(compute, torch.tensor([0, 44, 2, 255], dtype=torch.uint8))


def test_a_number_that_is_searched_for() -> None:
    def compute(x: Tensor, n: Tensor) -> list[Tensor]:
        found = [torch.searchsorted(t, v) for t in (x, n) for v in (0.5, 2, nan, -inf)]
        return [*found, torch.searchsorted(n, 1.5, right=True), torch.bucketize(1.5, n)]

    same_by_plans(compute, torch.arange(5.0), torch.arange(5))


@pytest.mark.slow
@pytest.mark.parametrize("low", [0, 3])
def test_whole_numbers_out_of_as_many_as_a_size_says(
    low: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They are those of eager code with the same seed."""

    def draw(x: Tensor) -> list[Tensor]:
        n = x.shape[0]
        return [
            torch.randint(low, n + low, (100,), device=x.device),
            torch.randint(low, n * 1_000_000, (100,), device=x.device),
        ]

    caplog.set_level(logging.WARNING, "torch_tenon")
    run = compiled(draw, dynamic=True)
    for n in (5, 9, 4, 30):
        x = torch.zeros(n, device="tenon")
        torch.manual_seed(n)
        want = draw(x)
        torch.manual_seed(n)
        with torch._dynamo.config.patch(error_on_recompile=n != 5):  # one graph serves them all
            found = run(x)
        assert_same(found, want)
        assert low <= int(found[0].min()) and int(found[0].max()) < n + low
    assert not caplog.messages  # that the graph runs by reference


@pytest.mark.slow
def test_whole_numbers_between_two_sizes() -> None:
    """Draws that have numbers between their bounds as the graph's guards say, and one after them,
    are those of eager code with the same seed."""

    def draw(x: Tensor, y: Tensor) -> list[Tensor]:
        n, m = x.shape[0], y.shape[0]
        return [
            torch.randint(n, m, (64,), device=x.device),
            torch.randint(n - 9, m * 1_000_000, (64,), device=x.device),
            torch.randint(m - n, (2, 8), device=x.device, dtype=torch.int16),
            torch.rand(5, device=x.device),
        ]

    run = compiled(draw, dynamic=True)
    for k, (n, m) in enumerate(((5, 9), (3, 50), (7, 8), (40, 41))):
        given = [torch.zeros(s, device="tenon") for s in (n, m)]
        torch.manual_seed(n)
        want = draw(*given)
        torch.manual_seed(n)
        with torch._dynamo.config.patch(error_on_recompile=k > 0):
            assert_same(run(*given), want)


@pytest.mark.slow
def test_sizes_as_numbers() -> None:
    """Of fills, progressions, bounds, shifts and triangles."""

    def compute(x: Tensor) -> list[Tensor]:
        n, m = x.shape
        return [
            torch.full((3,), n, device=x.device),
            torch.arange(2, n * 3, 2, device=x.device) + x.new_full((), m),
            torch.linspace(0, n, n + 3, device=x.device),
            x.clamp(-n, n / 8),
            x.clamp_min(m - n),
            x[1 : n - 1],
            x[n // 2 :].sum(0),
            x[-2:],
            x.tril(n - 4),
            x.roll(n - 2, 0),
            x**n,
            torch.add(x, x, alpha=n),
            x.long() << (n % 4),
            x.long() % n,
            torch.eye(n, m, device=x.device),
            x.masked_fill(x > 0, n),
            x.cumsum(0)[n - 1],
            x.narrow(0, n - 3, 2),
            x.repeat(1, n)[:, n],
        ]

    run = compiled(compute, dynamic=True)
    for n in (5, 7, 12):
        x = torch.randn(n, 4)
        assert_same(run(x.to("tenon")), compute(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
def test_bits_as_another_dtype(source: torch.dtype) -> None:
    """Between all dtypes, of equal and of other widths; what is seen is also computed."""
    widths = {
        1: (torch.int8, torch.uint8),
        2: (torch.int16, torch.uint16, torch.float16, torch.bfloat16),
        4: (torch.int32, torch.uint32, torch.float32),
        8: (torch.int64, torch.uint64, torch.float64),
    }
    dtypes = [d for found in widths.values() for d in found]

    def compute(x: Tensor) -> list[Tensor]:
        made = x * 3
        seen = [made.view(d) for d in dtypes]
        # As often as it takes to come back, by way of every dtype of a width.
        back = [made.view(d).clone().view(e).clone() for d in dtypes for e in widths[d.itemsize]]
        return [*[s.clone() for s in seen], *back]

    same_by_plans(compute, torch.arange(1, 17).to(source))


@pytest.mark.parametrize("dim", [(), (0, -1), None])
def test_truth_of_dimensions(dim: Any) -> None:
    def compute(x: Tensor) -> list[Tensor]:
        return [f(t, dim=dim) for f in (torch.any, torch.all) for t in (x > 0, x.byte(), x)]

    same_by_plans(compute, torch.tensor([[0.0, 2.0, nan], [1.0, -1.0, 0.0]]))


def test_the_extreme_of_nothing() -> None:
    run = compiled(lambda x: x.max(0).values)
    with pytest.raises(IndexError, match="Expected reduction dim 0 to have non-zero size"):
        run(torch.zeros(0, 3, device="tenon"))


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["layer", "group", "instance", "batch"])
def test_one_number_deviates_by_nothing(norm: str) -> None:
    """Of one number its mean is that number, also where it is computed again for the gradients."""

    def normalized(x: Tensor, w: Tensor) -> Tensor:
        x = (x + 0.1) * 1.3 - x * x
        if norm == "layer":
            return torch.layer_norm(x, (1,), w[:1])
        if norm == "group":
            return torch.group_norm(x, 4, w)
        if norm == "instance":
            return torch.instance_norm(x, w, None, None, None, True, 0.1, 1e-5, False)
        return torch.batch_norm(x[:1, :, 0], w, None, None, None, True, 0.1, 1e-5, False)

    x, w = torch.randn(16, 4, 1) * 3 + 5, torch.full((4,), 1.5)
    with executing("compiled"):
        for run in (normalized, normalized, compiled(normalized)):
            x_, w_ = (t.requires_grad_() for t in on_tenon([x, w]))
            y = run(x_, w_)
            gradients = torch.autograd.grad((y + 1).square().sum(), (x_, w_))
        for found in (y, *gradients):
            assert torch.equal(found.cpu(), torch.zeros(found.shape))


def test_numbers_that_are_complex_and_have_no_imaginary_part() -> None:
    whole, truths = torch.tensor([1, -2, 3]), torch.tensor([True, False, True])
    value = complex(2, 0)

    def compute(device: torch.device) -> list[torch.Tensor]:
        x, n, t = (v.to(device) for v in (whole.float(), whole, truths))
        found = [aten.full_like(v, value) for v in (x, n, t)]
        found += [aten.fill.Scalar(v, value) for v in (x, n, t)]
        found += [aten.full_like(t, 1j), aten.masked_fill.Scalar(x, t, value)]
        for dtype in (torch.float32, torch.int64):
            found.append(aten.arange.start_step(complex(-1, 0), 3, 1, dtype=dtype, device=device))
        return found

    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            same_on_both(compute)


def test_powers_of_truth_values_and_more_decimals_than_there_are() -> None:
    truths, numbers = torch.tensor([True, False]), torch.tensor([1.25, -2, 0])

    def compute(device: torch.device) -> list[torch.Tensor]:
        t, x = truths.to(device), numbers.to(device)
        found = [*aten._foreach_pow.Scalar([t], False), *aten._foreach_pow.Scalar([t], True)]
        for decimals in (30, 400, -400):
            found += [torch.round(v, decimals=decimals) for v in (x, x.double())]
        return found

    with executing("compiled"):
        for _ in range(2):
            same_on_both(compute)


def test_a_first_call_that_fails() -> None:
    """Its error is the CPU's also in the call that compiles the graph."""
    run = compiled(lambda x: torch.linalg.cholesky(x) + 1)
    for _ in range(2):
        with pytest.raises(torch.linalg.LinAlgError, match="is not positive-definite"):
            run(-torch.eye(3, device="tenon"))


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str
)
def test_progressions_of_whole_numbers_between_fractions(dtype: torch.dtype) -> None:
    def progressions(x: Tensor) -> list[Tensor]:
        how: Any = {"dtype": dtype, "device": x.device}
        return [
            *(torch.linspace(0.7, last, count, **how) for last in (3.7, 100.9) for count in (1, 5)),
            *(torch.linspace(first, 9, 7, **how) for first in (0, 2.6)),
            torch.logspace(0.9, 6.2, 4, base=2.0, **how),
        ]

    same_by_plans(progressions, torch.ones(1))


def test_progressions_between_truth_values() -> None:
    def progressions(truth: Tensor) -> list[Tensor]:
        how: Any = {"device": truth.device}
        return [
            torch.linspace(0, False, 2, **how),
            torch.linspace(True, truth, 3, **how),
            torch.logspace(False, truth, 3, base=2.0, **how),
            torch.logspace(True, False, 2, **how),
        ]

    same_by_plans(progressions, torch.tensor(True))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_long_whole_numbers_are_rounded_once(dtype: torch.dtype) -> None:
    halfway = [2**60 + 2**36, 2**62 + 3 * 2**38, 2**53 + 2**29]
    numbers = [sign * (n + k) for n in halfway for k in (-1, 0, 1) for sign in (1, -1)]

    def compute(x: Tensor) -> list[Tensor]:
        found = [y for n in numbers for y in (x * n, x + n, x == n, torch.full_like(x, n))]
        return [*found, torch.where(x > 0, x, numbers[0]), x.clamp(min=numbers[2])]

    same_by_plans(compute, torch.ones(3, dtype=dtype))


NARROW = (torch.int8, torch.uint8, torch.int16, torch.bool)
WIDER = (torch.int16, torch.int32, torch.int64, torch.uint8, torch.float32, torch.bool)


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 700])
def test_positions_in_narrow_dtypes_begin_again(count: int) -> None:
    """Of a progression, whose numbers are places in a loop, only the last bits are left."""

    def compute(x: Tensor) -> list[Tensor]:
        places = torch.arange(count, device=x.device)
        narrow = [places.to(dtype) for dtype in NARROW]
        wider = [n.to(dtype) for n in narrow for dtype in WIDER]
        chosen = [
            torch.where(kept, x, 0.0)
            for n in narrow[:2]
            for kept in (n < 5, n >= 9, n <= 100, n > 70, n == 3, n < 90)
        ]
        rows = places.view(-1, 10).to(torch.int8)
        return [*wider, *chosen, (rows.long() < 30).sum(1), rows.sum(0), rows[1:] < 4]

    same_by_plans(compute, torch.randn(count))


def test_positions_in_narrow_dtypes_where_sizes_change() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        n = torch.arange(x.shape[0], device=x.device).to(torch.int8)
        return [n.long(), x * (n < 5), n.to(torch.uint8).int()]

    graph = compiled(compute, dynamic=True)
    for count in (100, 300, 130, 257):
        x = torch.randn(count)
        assert_same(graph(x.to("tenon")), compute(x))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_whole_numbers_without_sign_stay_in_the_op_that_takes_them(dtype: torch.dtype) -> None:
    """Its kernel does, and none of the ops that a graph would take it apart into."""

    def compute(x: Tensor) -> Tensor:
        return aten.unfold_backward(x, [3, 3], 0, 3, 3)

    same_by_plans(compute, torch.arange(9).view(1, 3, 3).to(dtype))
