"""NaN, infinities and negative zeros go through what a plan makes of ops, as through the ops."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same, executing

from tests.ops.lowerings.by_plan import on_tenon, same_by_plans
from torch_tenon import _C

pytestmark = needs.plans

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, 3e-45]
Results = list[torch.Tensor]


@pytest.fixture(params=["eager", "torch.compile"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Runs a function on tensors of the device by a plan."""

    def by_plan(function: Callable[..., Results], *given: torch.Tensor) -> Results:
        there = [x.to("tenon") for x in given]
        _C.commit_all()
        if request.param == "torch.compile":
            torch._dynamo.reset()
            return [t.cpu() for t in torch.compile(function, backend="tenon")(*there)]
        with executing("compiled"):
            for _ in range(2):
                found = function(*there)
                _C.commit_all()
        return [t.cpu() for t in found]

    yield by_plan
    torch._dynamo.reset()


def neutral(x: torch.Tensor) -> Results:
    """What would change nothing, or give a number whatever x is, were all numbers finite."""
    return [
        x * 0, x * 0.0, x * -0.0, 0 * x, x + 0, x + 0.0, x + -0.0, x - 0.0, 0.0 - x, x * 1, x / 1,
        x / 0.0, x / -0.0, x / x, x - x, x**0, x**0.5, x**-0.5, x**1, x**2, x**3, x**-1, -x * 0,
        torch.add(x, x, alpha=0), torch.sub(x, x, alpha=0), torch.lerp(x, x, 0.0),
        torch.addcmul(x, x, x, value=0), torch.addcdiv(x, x, x, value=0), x.relu(), x.clamp(min=0),
        F.leaky_relu(x, 0.0), F.threshold(x, 0.0, -0.0), F.hardtanh(x, -0.0, 1.0), x.frac(),
        torch.where(x > 0, x, 0), x.masked_fill(x > 0, -0.0), x.nan_to_num(-0.0), x.sgn(), x.abs(),
        F.pad(x, (1, 1), value=-0.0), x.reshape(2, -1).triu(), torch.xlogy(x * 0, x), x.ceil(),
        torch.maximum(x, -x), x.sum(), (x * 0).sum(), x.amax(), x.reshape(-1, 1),
        F.dropout(x, 0.5, training=False), x.square(), x.copysign(-x),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_special_values_go_through(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    x = torch.tensor(SPECIAL * 8).to(dtype)
    for k, (got, want) in enumerate(zip(run(neutral, x), neutral(x), strict=True)):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=f"result {k}")
        number = ~want.isnan()
        assert torch.equal(got.signbit()[number], want.signbit()[number]), k


ENDS = [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.5, 2.5, 3.4e38, -3.4e38, 2e13, 1e-45]


def sums_of_ends(x: torch.Tensor) -> Results:
    """Rounded once where PyTorch rounds once: what leaves the range on the way may come back."""
    a, b, c = torch.cartesian_prod(*[torch.tensor(ENDS)] * 3).to(x.dtype).to(x.device).unbind(1)
    return [
        torch.lerp(a, b, c), *(torch.lerp(a, b, k) for k in (-1.0, 0.3, 0.75, 2.0, INF)),
        torch.addcmul(a, b, c), torch.addcmul(a, b, c, value=-2), x**-3, x**-4, x**-2, x**4,
        *(torch.sub(a, b, alpha=k) for k in (-(2**63), 2**63 - 1, 0, -1)),
        *(torch.rsub(a, b, alpha=k) for k in (-(2**63), 2**63 - 1)),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_sums_at_the_ends_of_the_range(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    x = torch.tensor(ENDS).to(dtype)
    for k, (got, want) in enumerate(zip(run(sums_of_ends, x), sums_of_ends(x), strict=True)):
        torch.testing.assert_close(
            got, want, rtol=1e-6, atol=1e-45, equal_nan=True, msg=f"result {k}"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["add", "sub", "rsub", "foreach"])
def test_factors_that_change(name: str, dtype: torch.dtype) -> None:
    """A number that a plan reads as it runs does what one does that stands in its code."""
    x = torch.tensor(SPECIAL[:-1]).to(dtype)  # products of the smallest numbers are rounded twice

    def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
        if name == "foreach":
            return torch._foreach_sub([x], [x], alpha=k)[0]  # type: ignore[no-any-return]
        return getattr(torch, name)(x, x, alpha=k)  # type: ignore[no-any-return]

    with executing("compiled"):
        for k in (1, 2, 3, 0, 0.0, -0.0, -4, 1.5, 0, -(2**63), 2**63 - 1, 0.0):
            got, want = scaled(x.to("tenon"), k).cpu(), scaled(x, k)
            assert_same(got, want)
            assert torch.equal(got[~want.isnan()].signbit(), want[~want.isnan()].signbit()), k


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_zeros_of_exponential_units(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    """They keep their signs, and nothing infinite is multiplied by them."""

    def units(x: torch.Tensor) -> Results:
        celu = [F.celu(x, k) for k in (INF, -INF, -2.0, 1.0)]
        return [*celu, *(F.elu(x, k) for k in (INF, -1.5, 0.0)), F.selu(x)]

    x = torch.tensor(ENDS[:-1]).to(dtype)
    for got, want in zip(run(units, x), units(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)
        assert torch.equal(got[~want.isnan()].signbit(), want[~want.isnan()].signbit())


def test_the_bessel_function_that_is_scaled_keeps_its_sign(run: Callable[..., Results]) -> None:
    x = torch.tensor([-INF, INF, -0.0, 0.0, -30.0])
    (got,) = run(lambda x: [torch.special.i1e(x)], x)
    assert torch.equal(got.signbit(), torch.special.i1e(x).signbit())


def test_bessel_functions_that_are_scaled_of_huge_numbers(run: Callable[..., Results]) -> None:
    """Twice pi times the number is infinite."""
    for dtype in (torch.float64, torch.float32):
        huge = torch.finfo(dtype).max
        x = torch.tensor([huge, -huge, huge / 7, -huge / 5, 1e37, 40.0], dtype=dtype)
        for function in (torch.special.i0e, torch.special.i1e):
            (got,) = run(lambda x, f=function: [f(x)], x)
            torch.testing.assert_close(got, function(x), rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.5, 1.0])
def test_dropout_multiplies(p: float, dtype: torch.dtype, run: Callable[..., Results]) -> None:
    """By 0 or a scale, whatever is dropped: NaN and infinities times 0 are NaN."""
    x = torch.tensor(SPECIAL * 32).to(dtype)

    def dropped(x: torch.Tensor) -> Results:
        y = x.detach().clone().requires_grad_()
        found = F.dropout(y, p)
        (gradient,) = torch.autograd.grad(found, y, x)
        return [found.detach(), gradient]

    for found in run(dropped, x):
        columns = found.reshape(-1, len(SPECIAL))
        assert columns[:, 0].isnan().all()
        infinite = columns[:, 1:3]
        assert (infinite.isnan() | infinite.isinf()).all() and infinite.isnan().any()
        assert (columns[:, 3:5] == 0).all() and columns[:, 4].signbit().all()
        assert not columns[:, 3].signbit().any()


@pytest.mark.parametrize("mask", [torch.bool, torch.int8, torch.float32])
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32, torch.bfloat16])
def test_gradients_of_dropout_multiply_in_turn(
    dtype: torch.dtype, mask: torch.dtype, run: Callable[..., Results]
) -> None:
    """By the mask, which may be any number, and then by the scale. Of whole numbers no 0 has a
    sign before that."""
    g = torch.tensor([0, -1, 2, -300.7, 1e4]).to(dtype)[:, None]
    kept = torch.tensor([0, 0.5, -3, 100]).to(mask)

    def gradients(g: torch.Tensor, kept: torch.Tensor) -> Results:
        return [torch.ops.aten.native_dropout_backward(g, kept, s) for s in (2.3, -1.0)]

    want = gradients(g, kept)
    for found, exact in zip(run(gradients, g, kept), want, strict=True):
        assert_same(found, exact)
        assert torch.equal(found.signbit(), exact.signbit())


@pytest.mark.slow
def test_numbers_equal_to_python_stay_apart(run: Callable[..., Results]) -> None:
    """In a graph with gradients, whose equal nodes become one."""
    x = torch.tensor([1.0, -2.0, 0.5, 3.0])

    def both(x: torch.Tensor) -> Results:
        y = x.detach().clone().requires_grad_()
        far, near = y / 0.0, y / -0.0
        found = torch.where(far > near, y * 1, y * 1.0) + torch.full_like(y, -0.0).copysign(near)
        (gradient,) = torch.autograd.grad(found.sum() + (y * y).sum(), y)
        zeros = [torch.full((2,), z, device=x.device) for z in (0.0, -0.0)]
        ones = [torch.full((2,), n, device=x.device) for n in (1, 1.0, True)]
        return [far.detach(), near.detach(), found.detach(), gradient, *zeros, *ones]

    for got, want in zip(run(both, x), both(x), strict=True):
        assert got.dtype is want.dtype
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        number = ~want.isnan()
        assert torch.equal(got.signbit()[number], want.signbit()[number])


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_logit_outside_of_its_domain(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    """Zero or NaN by eps, of which a negative one is none."""

    def gradients(x: torch.Tensor) -> Results:
        backward = torch.ops.aten.logit_backward
        found = [backward(x * 0 + 1, x, eps) for eps in (None, -0.1, -0.0, 0.0, 0.1, 0.5, 0.6, 2.0)]
        return [*found, backward(x, x, None), backward(x, x, NAN)]

    ends = torch.tensor([*SPECIAL, 0.05, 0.25, 0.5, 0.75, 1.25, -0.05])
    x = ends.repeat(64).to(dtype)  # whole vectors
    for got, want in zip(run(gradients, x), gradients(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("exponents", [torch.int64, torch.int32, torch.int8, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_ldexp_by_powers_that_overflow(
    dtype: torch.dtype, exponents: torch.dtype, run: Callable[..., Results]
) -> None:
    powers = torch.tensor([0, 1, -1, 20, -24, 100, -100, 126, 127, 128, 150, 200, 255])
    if exponents in (torch.int32, torch.int64):
        powers = torch.cat((powers, torch.tensor([-150, 270, -290, 2000, -2000, 2**31 - 1])))
        powers = torch.cat((powers, torch.tensor([1024, -1022, -1075, 1100, -1100, 2090, -2090])))
    ends = [1e-30, 1e-7, 3.0, 6e4, 5e-324, -3e-320, 1e-300, 1.7e308]
    x = (
        torch.tensor([*SPECIAL, *ends], dtype=torch.float64)
        .to(dtype)[:, None]
        .repeat(1, len(powers))
    )

    def scaled(x: torch.Tensor) -> Results:
        return [torch.ldexp(x, powers.to(exponents).to(x.device))]

    for got, want in zip(run(scaled, x), scaled(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32])
def test_ldexp_of_whole_numbers(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    """The power of 2 overflows by itself: of 0 it makes NaN."""
    powers = torch.tensor([0, 3, -3, 127, 128, 300, -149, -150, -155])

    def scaled(x: torch.Tensor) -> Results:
        return [torch.ldexp(x, powers.to(x.device)), torch.ldexp(x, powers.to(x.device)[4])]

    x = torch.tensor([0, 1, 1, 100]).to(dtype)[:, None].repeat(1, len(powers))
    for got, want in zip(run(scaled, x), scaled(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def default_dtype() -> Iterator[None]:
    """float64 is the dtype of fractions that are made of whole numbers."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("default_dtype")
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float32, torch.float16])
def test_ldexp_in_another_default_dtype(dtype: torch.dtype) -> None:
    x, by = torch.tensor([0, 1, 3, -5]).to(dtype), torch.tensor([1, -2, 70, 3])
    same_by_plans(lambda x, by: [torch.ldexp(x, by), torch.ldexp(x, by[2])], x, by)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float16, torch.float64])
@pytest.mark.parametrize("exponents", [torch.float16, torch.bfloat16, torch.float32])
def test_ldexp_by_powers_that_are_fractions(
    dtype: torch.dtype, exponents: torch.dtype, run: Callable[..., Results]
) -> None:
    """The power of 2 has the exponent's dtype, whatever is multiplied by it."""
    powers = torch.tensor([0.5, -1.5, 2.25, -0.125]).to(exponents)

    def scaled(x: torch.Tensor) -> Results:
        there = powers.to(x.device)
        return [torch.ldexp(x, there), torch.ldexp(x[1], there), torch.ldexp(x[1], there[1])]

    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    for got, want in zip(run(scaled, x), scaled(x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-6 if got.itemsize > 2 else 0, atol=0)


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_activations(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    """By every pair of a gradient and an input, NaN and the bounds among them."""
    aten = torch.ops.aten
    ends = [*SPECIAL[:-1], -1.0, 0.5, -0.5, 3.0, -3.0, 6.0, 20.0, -20.0, 2.0]
    x = torch.tensor(ends * 2 * len(ends)).to(dtype)  # whole vectors

    def gradients(x: torch.Tensor) -> Results:
        g = torch.tensor(ends).repeat_interleave(2 * len(ends)).to(x)
        return [
            aten.hardtanh_backward(g, x, -1.0, 1.0), aten.hardtanh_backward(g, x, 0.0, 6.0),
            aten.hardswish_backward(g, x), aten.hardsigmoid_backward(g, x),
            aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
            aten.elu_backward(g, 1.7, 1.1, 0.5, False, x),
            aten.elu_backward(g, 1.7, 1.1, 0.5, True, x.clamp(min=-1)),
            aten.leaky_relu_backward(g, x, 0.1, False), aten.threshold_backward(g, x, 0.5),
            aten.softplus_backward(g, x, 2.0, 5.0), aten.silu_backward(g, x),
            aten.softshrink_backward(g, x, 0.5), aten.hardshrink_backward(g, x, 0.5),
            aten.mish_backward(g, x), aten.sigmoid_backward(g, x), aten.tanh_backward(g, x),
        ]  # fmt: skip

    limit = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
    for k, (got, want) in enumerate(zip(run(gradients, x), gradients(x), strict=True)):
        torch.testing.assert_close(
            got, want, rtol=limit, atol=limit, equal_nan=True, msg=lambda m, k=k: f"{k}: {m}"
        )


def test_gradients_of_hard_activations_in_float64(run: Callable[..., Results]) -> None:
    """To the last digit, at the borders and beside them: the CPU's sixth is one of float32."""
    aten = torch.ops.aten
    borders = torch.tensor([-3.0, 3.0, 0.0, -0.0, NAN, INF, -INF, 1.1], dtype=torch.float64)
    up, down = (torch.nextafter(borders, torch.full_like(borders, k)) for k in (INF, -INF))
    x = torch.cat([borders, up, down, torch.randn(8, dtype=torch.float64)])

    def gradients(x: torch.Tensor) -> Results:
        g = x.flip(0) + 0.7
        return [aten.hardsigmoid_backward(g, x), aten.hardswish_backward(g, x)]

    for got, want in zip(run(gradients, x), gradients(x), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


PRODUCTS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda c, x: torch.addmm(c, x, x, alpha=0),
    lambda c, x: torch.addmm(c, x, x, alpha=0.0, beta=2),
    lambda c, x: torch.addmm(c[0], x, x, beta=0, alpha=0),
    lambda c, x: torch.addmv(c[0], x, x[0], beta=0, alpha=0),
    lambda c, x: torch.addbmm(c, x[None], x[None], alpha=0),
    lambda c, x: torch.baddbmm(c[None], x[None], x[None], alpha=0),
    lambda c, x: torch.addr(c, x[0], x[1], alpha=0),
]


@pytest.mark.parametrize("k", range(len(PRODUCTS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_times_0(k: int, dtype: torch.dtype) -> None:
    """Of most the kernel does not look at the operands, whatever they hold; of some it does."""
    x = torch.tensor([[NAN, INF, 1.0], [0.0, -INF, 2.0], [1.0, 2.0, 3.0]], dtype=dtype)
    same_by_plans(PRODUCTS[k], torch.arange(9.0).view(3, 3).to(dtype), x)


BOUNDS = [0.1, 0.5, 0.6, 1, 2.0, -0.1, NAN]


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_numbers_beside_tensors(dtype: torch.dtype) -> None:
    """Those that a dtype does not have, and bounds that are the wrong way round."""
    x = torch.tensor([NAN, INF, -INF, -1.0, 0.0, 0.3, 0.5, 0.7, 1.0, 2.0], dtype=dtype)

    def compute(x: torch.Tensor) -> Results:
        found = [x.nan_to_num(*k) for k in ((1e300,), (-0.0, 1e300, -1e300), (NAN, -INF, 70000.0))]
        return found + [torch.logit(x, k) for k in BOUNDS]

    same_by_plans(compute, x, rtol=torch.finfo(dtype).eps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_parts_of_complex_numbers_that_are_no_numbers(dtype: torch.dtype) -> None:
    def compute(a: torch.Tensor, b: torch.Tensor) -> Results:
        x = torch.complex(a, b)
        found = [
            x.nan_to_num(*k)
            for k in ((), (1.0, 2.0, 3.0), (None, 1e300, -1e300), (-0.0, -INF, NAN))
        ]
        found += [x.mT.nan_to_num(3.0), x.conj().nan_to_num(4.0), x[::2, 1:].nan_to_num(5.0)]
        return [torch.view_as_real(t) for t in found]

    def written(a: torch.Tensor, b: torch.Tensor) -> Results:
        x = torch.complex(a, b)
        found = [x.clone().nan_to_num_(2.0), torch.nan_to_num(x, out=torch.empty_like(x.mT))]
        return [torch.view_as_real(t) for t in found]

    a, b = torch.meshgrid(*[torch.tensor(ENDS, dtype=dtype.to_real())] * 2, indexing="ij")
    same_by_plans(compute, a, b)
    same_by_plans(compute, a, b, dynamic=True)
    with executing("compiled"):
        for _ in range(3):
            assert_same(written(*on_tenon((a, b))), written(a, b))


@pytest.mark.parametrize("factor", [1e-50, 1e300])
def test_factors_that_float32_does_not_have(factor: float) -> None:
    """What is too small is 0, and what is too large is refused, after other factors too."""
    x = torch.tensor([[INF, 1.0], [NAN, 2.0]], device="tenon")
    ones = torch.ones(2, 2, device="tenon")

    def compute(k: float) -> Results:
        return [
            torch.add(ones, x, alpha=k), torch.addcmul(ones, x, x, value=k),
            torch.lerp(ones, x, k), torch.addmm(x, ones, ones, beta=k),
        ]  # fmt: skip

    with executing("compiled"):
        for k in (1.5, 2.5, 3.5):
            compute(k)
        if factor > 1:
            for op in (torch.add, torch.sub):
                with pytest.raises(RuntimeError, match="overflow"):
                    op(ones, x, alpha=factor)
        else:
            assert compute(factor)[-1].tolist() == [[2, 2], [2, 2]]


def test_triangles_with_far_diagonals(run: Callable[..., Any]) -> None:
    """A row and a diagonal added up would be beyond 64 bits."""

    def triangles(x: torch.Tensor) -> Results:
        far = (2**63 - 1, 2**62, 3, -2, -(2**62), -(2**63))
        return [part(x, k) + 1 for k in far for part in (torch.tril, torch.triu)]

    x = torch.rand(5, 7)
    for got, want in zip(run(triangles, x), triangles(x), strict=True):
        assert got.tolist() == want.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_greatest_of_a_bag_with_nan(dtype: torch.dtype) -> None:
    """No number is less than NaN: one in the first row stays, and others do not count."""
    table = torch.arange(24.0).view(6, 4).to(dtype)
    table[3], table[4, :2], table[5] = NAN, NAN, -INF
    at, starts = (
        torch.tensor([3, 1, 1, 3, 2, 4, 0, 5, 5, 3, 3, 4]),
        torch.tensor([0, 2, 5, 7, 9, 9]),
    )

    def bags(table: torch.Tensor, at: torch.Tensor, starts: torch.Tensor) -> Any:
        found = [
            torch.ops.aten._embedding_bag(table, at, starts, False, 2, False, None, False, padding)
            for padding in (-1, 3, 1)
        ]
        return [[f[0], f[3]] for f in found]

    same_by_plans(bags, table, at, starts)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_small_powers_of_complex_infinities(dtype: torch.dtype) -> None:
    parts = [INF, -INF, 0.0, -0.0, 1.5, NAN]
    x = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)

    def powers(x: torch.Tensor) -> Results:
        # Part by part: a comparison takes complex numbers with one NaN for the same.
        return [torch.view_as_real(x**k) for k in (0, 1, 2, 3, 4, 2.0, 4.0)]

    same_by_plans(powers, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [NAN, INF, 2.0])
@pytest.mark.parametrize("beta", [0, 1, 0.5])
def test_factors_of_a_product_of_nothing(alpha: float, beta: float) -> None:
    c = torch.tensor([[NAN, 1.0], [INF, 2.0]])

    def sums(c: torch.Tensor) -> Results:
        x, y, how = c[:, :0], c[:0], {"alpha": alpha, "beta": beta}
        return [torch.addmm(c, x, y, **how), torch.baddbmm(c[None], x[None], y[None], **how)]

    same_by_plans(sums, c)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_logarithms_of_complex_numbers(dtype: torch.dtype) -> None:
    """The absolute value may be beyond the range, and so close to 1 that it is 1."""
    info = torch.finfo(dtype)
    far = [info.max, -info.max / 2, info.tiny, info.max**0.5, info.tiny**0.5]
    parts = [*SPECIAL, *far, 1e-4, -1e-8, 1.0001, 0.6, 0.8]
    special = torch.tensor([complex(a, b) for a in parts for b in parts], dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    near, angle, size = torch.rand(3, 300, dtype=torch.float64, generator=generator)
    around = torch.polar(1 + (near - 0.5) * 10 ** (-6 * size), 6.28 * angle).to(dtype)

    def parts_of(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(torch.log(z))

    rtol = 1e-5 if dtype is torch.complex64 else 1e-7
    same_by_plans(parts_of, torch.cat([special, around]), rtol=rtol)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_exponentials_of_complex_numbers(dtype: torch.dtype) -> None:
    """A part may be within the range where the absolute value is beyond it."""
    most, least = (math.log(getattr(torch.finfo(dtype), name)) for name in ("max", "tiny"))
    reals = [*SPECIAL, most - 1, most + 0.3, most + 2, least - 1, least - 9, 2 * most, 701.0]
    angles = [*SPECIAL, 1.5, 0.01, 3.14, 1e-5]
    special = torch.tensor([complex(a, b) for a in reals for b in angles], dtype=dtype)
    rtol, atol = 1e-5 if dtype is torch.complex64 else 1e-9, torch.finfo(dtype).tiny
    same_by_plans(lambda z: torch.view_as_real(torch.exp(z)), special, rtol=rtol, atol=atol)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8], ids=str
)
def test_divisors_of_the_least_numbers(dtype: torch.dtype) -> None:
    """Which have no absolute value but themselves."""
    info = torch.iinfo(dtype)
    ends = {info.min, info.min + 1, info.max - 1, info.max}
    some = {n for k in (0, 1, 2, 3, 6, 7, 9, 12, 64, 100) for n in (k, -k) if n >= info.min}
    numbers = torch.tensor(sorted(ends | some), dtype=dtype)
    x, y = torch.cartesian_prod(numbers, numbers).unbind(1)
    defined = (x != info.min) | (torch.gcd(x, y) != -1)  # else the CPU divides them, and traps

    def compute(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, w: torch.Tensor) -> Results:
        return [torch.gcd(x, y), torch.lcm(z, w)]

    same_by_plans(compute, x, y, x[defined], y[defined])


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("number", [NAN, INF, -INF, 3e9, -1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_literals_without_place_among_whole_numbers(
    dtype: torch.dtype, number: float, run: Callable[..., Results]
) -> None:
    """What the compiler sees in a branch is converted as what the processor reads."""

    def function(x: torch.Tensor) -> Results:
        chosen = [
            torch.where(x > 1, x, number), torch.where(x > 1, number, x),
            x.masked_fill(x > 1, number), x.clamp(min=number),
            F.threshold(x, 1.0, number), torch.full_like(x, number),
        ]  # fmt: skip
        kinds = [torch.int32, torch.int64, torch.int16, torch.bool]
        return [y.to(kind) for y in chosen for kind in kinds]

    x = torch.linspace(-3, 3, 72, dtype=dtype)
    for k, (got, want) in enumerate(zip(run(function, x), function(x), strict=True)):
        assert torch.equal(got, want), k
