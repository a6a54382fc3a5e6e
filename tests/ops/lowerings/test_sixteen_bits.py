"""16-bit floats: what a plan gives is what the ops one by one give, each rounded where it ends."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same, executing

from tests.ops.lowerings.by_plan import same_by_plans, same_gradients
from torch_tenon import _C

pytestmark = needs.plans

aten = torch.ops.aten
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
N = 512  # whole vectors: of what is left over at the end of a row PyTorch rounds some otherwise
K = 0.3371  # no 16-bit number

Results = list[torch.Tensor]


@pytest.fixture(params=["eager", "torch.compile"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Runs a function on tensors of the device by a plan."""

    def by_plan(function: Callable[..., Results], *given: torch.Tensor) -> Results:
        there = [t.to("tenon") for t in given]
        _C.commit_all()
        if request.param == "torch.compile":
            torch._dynamo.reset()
            return [t.cpu() for t in torch.compile(function, backend="tenon")(*there)]
        with executing("compiled"):
            for _ in range(2):  # the first call of an op runs at once
                found = function(*there)
                _C.commit_all()
        return [t.cpu() for t in found]

    yield by_plan
    torch._dynamo.reset()


def numbers(dtype: torch.dtype, count: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, generator=generator).to(dtype) for _ in range(count)]


def decisions(x: torch.Tensor, y: torch.Tensor) -> Results:
    """What tells a rounded number from one that is not."""
    z = x * 20
    far = x.abs() * 60000
    least, greatest = z.reshape(16, -1).min(1), z.reshape(16, -1).max(1)
    return [
        z.floor(), z.ceil(), z.round(), z.trunc(), z.frac(), z.sign(), z.long(), z.int(),
        z.to(torch.int8), z.float(), z.double(), z > 4.0, z <= K, z == 6.25, z.eq(x * 20.0),
        (x * K).ne(K), far.isinf(), far.isfinite(), (x * 1e-30 * 1e-30).bool(), z.signbit(),
        aten.threshold_backward(y, z, K), F.threshold(z, K, 0.777), z.clamp(-K, K), z.relu(),
        z.remainder(0.7), z.fmod(y), z // 3, torch.div(z, y, rounding_mode="trunc"),
        torch.div(z, y, rounding_mode="floor"), torch.where(z > 0.77, x, y), z.argmax(),
        least.values, least.indices, greatest.values, greatest.indices, z.sort().indices,
        z.cummax(0).indices, torch.isclose(z, x * 20), torch.frexp(z).mantissa,
        torch.nextafter(z, y), z.nonzero(), z - z.float().to(x.dtype), (z * z - z.square()),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.sampled(2)
@DTYPES
def test_what_decides_sees_rounded_numbers(dtype: torch.dtype, run: Callable[..., Results]) -> None:
    x, y = numbers(dtype, 2)
    if dtype is torch.float16:
        y = y + 4  # quotients that fit
    check(run, decisions, x, y)


def as_bfloat16(x: torch.Tensor, y: torch.Tensor) -> Results:
    """Numbers of float16 as those of bfloat16, and beside some."""
    return [x.bfloat16(), (-x).bfloat16(), (x * 2).bfloat16(), y.clone().copy_(x), x + y]


def test_a_nan_stays_one_whatever_its_digits(run: Callable[..., Results]) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    nans = bits[bits.isnan()]
    assert len(nans) == 2046
    assert all(t.isnan().all() for t in run(as_bfloat16, nans, torch.ones(2046).bfloat16()))


UNARY = [
    torch.neg, torch.abs, torch.floor, torch.relu, torch.square, torch.reciprocal, torch.sqrt,
    torch.sign, torch.round, lambda x: x.clamp(-K, 3.3), lambda x: x * K, lambda x: x + K,
    lambda x: x - 257, lambda x: K - x, lambda x: x / 3, lambda x: x * 257, lambda x: x**3,
    lambda x: x.masked_fill(x > K, 257), lambda x: torch.where(x > 1, K, x), lambda x: x.float(),
    lambda x: F.leaky_relu(x, K), lambda x: F.hardtanh(x, -K, K), lambda x: x.contiguous(),
    lambda x: x[: x.shape[0] // 2].repeat(2), lambda x: x.flip(0), lambda x: F.hardshrink(x, K),
]  # fmt: skip
BINARY = [
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum,
    lambda x, y: torch.add(x, y, alpha=0.7), lambda x, y: torch.lerp(x, y, K),
    lambda x, y: torch.where(x < y, x, y), lambda x, y: torch.cat([x, y])[: x.shape[0]],
    lambda x, y: x.copysign(y), lambda x, y: x * y.abs().amax() + y,
]  # fmt: skip


def check(run: Callable[..., Results], function: Callable[..., Results], *given: Any) -> None:
    """`function` by a plan gives what it gives on the CPU, bit by bit."""
    for k, (got, want) in enumerate(zip(run(function, *given), function(*given), strict=True)):
        torch.testing.assert_close(
            got, want, rtol=0, atol=0, equal_nan=True, msg=lambda m, k=k: f"result {k}: {m}"
        )


def chain(seed: int, dtype: torch.dtype) -> Callable[..., Results]:
    """A random program of ops that PyTorch computes exactly and rounds."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Results:
        choose = random.Random(seed)
        known = [x, y]
        for _ in range(12):
            if choose.random() < 0.5:
                made = choose.choice(UNARY)(choose.choice(known[-3:]))
            else:
                made = choose.choice(BINARY)(choose.choice(known[-3:]), choose.choice(known))
            known.append(made.to(dtype))
        return known[-2:]

    return program


@pytest.mark.slow
@pytest.mark.sampled(1)
@DTYPES
def test_random_chains_are_rounded_op_by_op(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    x, y = numbers(dtype, 2, seed=3)
    programs = [chain(seed, dtype) for seed in range(16)]

    def all_of_them(x: torch.Tensor, y: torch.Tensor) -> Results:
        return [t for program in programs for t in program(x, y)]

    check(run, all_of_them, x, y)


@DTYPES
def test_a_number_is_the_same_whoever_keeps_it(dtype: torch.dtype, compiled: None) -> None:
    """A value that outlives a window is read from memory, another one from a register."""
    x = numbers(dtype)[0].to("tenon")
    found = []
    for keep in (True, False) * 2:
        y = x * K
        z = ((y + 1) * 1.7).floor() + (y * y).sqrt()
        if not keep:
            del y
        found.append(z.cpu())
    assert all(torch.equal(z, found[0]) for z in found)


def fills(x: torch.Tensor) -> Results:
    """Whole numbers and others as 16-bit ones; what is subtracted shows what they became."""
    there: dict[str, Any] = {"dtype": x.dtype, "device": x.device}
    whole = torch.arange(250, 2100, device=x.device)
    few = x[:8]
    return [
        torch.full((64,), 257, **there) - 256, torch.full_like(few, 2049) - 2048,
        x.new_full((8,), 4099) - 4096, torch.scalar_tensor(257, **there) - 256,
        torch.full((8,), K, **there).float(), torch.scalar_tensor(K, **there).double(),
        few.clone().fill_(257) - 256, few.clone().fill_(torch.tensor(K)) * 8, x.new_ones(3) * K,
        torch.arange(600, **there) - 256, torch.arange(0, 64, 0.375, **there).float(),
        torch.arange(1000, 3000, 3, **there) - 1024, torch.linspace(-3.3, 7.7, 999, **there) - 1,
        torch.linspace(0, 600, 601, **there).long(), torch.logspace(0, 2, 64, **there) - 1,
        whole.to(x.dtype) - 256, (whole.double() / 7).to(x.dtype) - 64, x[0] + whole,
        whole.to(torch.int16) * few[0], few * torch.tensor([257], device=x.device),
        few + torch.tensor(2049, device=x.device), few.masked_fill(few > 0, 2049) - 2048,
        torch.where(few > 0, 4099, few) - 4096, F.pad(few, (2, 2), value=257) - 256,
        few.clamp(-K, 2049) - 2048, few.index_fill(0, whole[:2] % 8, 257) - 256,
        few.scatter(0, whole[:2] % 8, 257) - 256, torch.zeros_like(few).copy_(whole[7:15]) - 256,
        few.new_tensor([257.0, 2049.0]) - 256, few == K, few.float() == K, few > torch.tensor(K),
        torch.eye(4, **there) * K, torch.tril(few.reshape(2, 4) * K).float(),
    ]  # fmt: skip


@DTYPES
def test_fills_and_progressions_are_of_rounded_numbers(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    (x,) = numbers(dtype)
    check(run, fills, x)


def with_numbers(x: torch.Tensor, y: torch.Tensor) -> Results:
    """Numbers beside 16-bit tensors: some kernels round them, others take them in float32."""
    one, wide, whole = x[3].clone(), torch.tensor(K).to(x.device), torch.tensor([257]).to(x.device)
    found = []
    for op in (torch.add, torch.sub, torch.mul, torch.div, torch.fmod, torch.remainder):
        for k in (K, 257, -1.3, wide, whole, one):
            found.append(op(x, k))
        found.append(op(wide, x))
    for mode in ("floor", "trunc"):
        found += [torch.div(x * 20, k, rounding_mode=mode) for k in (K, 257, y, wide)]
    found += [x**k for k in (2, 3, 4, -1, -2)]
    found += [
        K - x, K / x, torch.rsub(x, K, alpha=0.77), torch.addcmul(x, y, y), torch.lerp(x, y, K),
        aten.addcdiv(x, y, x, value=0.77),  # which Dynamo takes apart by its other name
        torch.maximum(x, wide), F.leaky_relu(x),
        F.elu(x, K), F.hardshrink(x, K), torch.xlogy(x, y.abs()), torch.xlogy(x, K),
        torch.heaviside(x, y), torch.nan_to_num(x / 0, posinf=257, neginf=K),
        torch.round(x, decimals=2), *torch._foreach_add([x, y], K), *torch._foreach_mul([x, y], K),
        *torch._foreach_pow([x, y], 3),
    ]  # fmt: skip
    return found


@pytest.mark.slow
@pytest.mark.sampled(1)
@DTYPES
def test_numbers_beside_tensors_are_rounded_where_the_cpu_does(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    x, y = numbers(dtype, 2, seed=5)
    for got, want in zip(run(with_numbers, x, y), with_numbers(x, y), strict=True):
        assert got.dtype is want.dtype
        differ = ~((got == want) | (got.isnan() & want.isnan()))
        assert differ.sum() <= 1  # where a function's last bit lies at the middle of two numbers


def within_one_op(x: torch.Tensor, y: torch.Tensor, p: torch.Tensor) -> Results:
    """Ops that are composed of others here: what each rounds is the CPU kernel's business."""
    matrix, other = x.reshape(16, -1), y.reshape(16, -1)
    one = torch.full_like(x[0], 0.77)
    return [
        aten._weight_norm_interface(matrix, y[:16].reshape(16, 1))[0],
        aten.sigmoid_backward(x, p), aten.tanh_backward(x, p), aten.silu_backward(x, y),
        aten.mish_backward(x, y),
        aten.softplus_backward(x, y, K, 0.7), aten.hardswish_backward(x, y),
        aten.glu_backward(matrix[:, :16], matrix, 1), aten.elu_backward(x, K, 1, 1, False, y),
        aten.native_dropout_backward(x, y > 0, 1.37), torch.logit(p), torch.logit(p, 0.2),
        aten.logit_backward(x, p), torch.special.entr(y), torch.special.xlog1py(x, p),
        aten.mse_loss_backward(one, x, y, 1), aten.mse_loss_backward(x, x, y, 0),
        aten.smooth_l1_loss_backward(one, x, y, 1, K),
        aten.binary_cross_entropy_backward(x, p, p.flip(0), None, 0),
        torch.addr(matrix, y[:16], y[:32], beta=K, alpha=0.7),
        torch.linalg.cross(x[:510].reshape(-1, 3), y[:510].reshape(-1, 3)),
        matrix.logsumexp(1), matrix.sum(1), matrix.mean(1), other.cumsum(1),
        (matrix * other).sum(1), matrix.mean(1) - other.mean(1),
    ]  # fmt: skip


@pytest.mark.slow
@DTYPES
def test_an_op_rounds_inside_where_the_cpu_does(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    x, y = numbers(dtype, 2, seed=7)
    p = (x.float() / 8 + 0.5).clamp(0.05, 0.95).to(dtype)
    for k, (got, want) in enumerate(
        zip(run(within_one_op, x, y, p), within_one_op(x, y, p), strict=True)
    ):
        assert got.dtype is want.dtype
        differ = ~((got == want) | (got.isnan() & want.isnan()))
        assert differ.float().mean() <= 0.02, (k, got[differ][:4], want[differ][:4])


@DTYPES
@pytest.mark.parametrize("op", ["_fused_adam_", "_fused_adamw_"])
def test_a_fused_optimizer_is_rounded_at_its_end(
    op: str, dtype: torch.dtype, compiled: None
) -> None:
    given = numbers(dtype, 5, seed=9)

    def step(device: str) -> Results:
        p, g, m, v, top = (t.to(device) for t in given)
        v, top = v.abs(), top.abs()
        getattr(torch, op)(
            [p], [g], [m], [v], [top], [torch.tensor(3.0, device=device)], lr=0.013, beta1=0.9,
            beta2=0.99, weight_decay=0.01, eps=1e-5, amsgrad=True, maximize=False,
        )  # fmt: skip
        return [p.cpu(), m.cpu(), v.cpu(), top.cpu()]

    for _ in range(2):
        found = step("tenon")
    for got, want in zip(found, step("cpu"), strict=True):
        assert (got != want).float().mean() <= 0.02


@DTYPES
def test_conversions_round_every_pattern_as_the_cpu(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    bits = torch.randint(-(2**31), 2**31, (1 << 18,), generator=torch.Generator().manual_seed(2))
    edges = torch.tensor([65504.0, 65519.9, 65520.0, 65536.0, 2**-14, 2**-24, 2**-25, 1e-45, 0.0])
    x = torch.cat([bits.int().view(torch.float32), edges, -edges, edges / 2, edges * 3])
    small = torch.cat([x, x.abs().sqrt(), x.abs().sqrt().sqrt() * 1e-5])

    def convert(x: torch.Tensor) -> Results:
        y = x.to(dtype)
        return [y, y.float(), y == y.float(), (y.float() * 0.5).to(dtype)]

    check(run, convert, small)


@DTYPES
def test_what_is_added_up_as_16_bit_numbers_is_such(
    dtype: torch.dtype, run: Callable[..., Results]
) -> None:
    """They are rounded before they are added, but for a mean."""
    fine = torch.finfo(dtype).eps / 4
    beyond = 70000.0 if dtype is torch.float16 else 3.4e38
    far = torch.tensor([beyond, -beyond, 1.0, 3.0])
    small = torch.tensor([1 + fine, -1, fine, 0.0])
    whole = torch.tensor([2**12 + 1, -(2**12), 2**11 + 1, 70000])

    def compute(*given: torch.Tensor) -> Results:
        found: Results = []
        for x in given:
            found += [getattr(x, f)(0, dtype=dtype) for f in ("sum", "cumsum", "prod", "cumprod")]
            found += [x.sum(dtype=dtype), x.nansum(0, dtype=dtype), x.sum((), dtype=dtype)]
        found += [x.mean(0, dtype=dtype) for x in given]
        return found

    check(run, compute, far, small, small.double() + 1e-9, whole)


def test_a_bound_of_another_dtype(compiled: None) -> None:
    x, low = torch.randn(64, 64), torch.tensor(0.37, dtype=torch.bfloat16)

    def compute(x: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
        low = low.sigmoid()
        return torch.ne(torch.clamp(x > 5, low, x + 10), low)

    for _ in range(3):
        found = compute(x.to("tenon"), low.to("tenon"))
        _C.commit_all()
        assert torch.equal(found.cpu(), compute(x, low))


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("other", [torch.bool, torch.int32, torch.bfloat16, torch.float16])
def test_an_op_of_two_dtypes(
    dtype: torch.dtype, other: torch.dtype, run: Callable[..., Results]
) -> None:
    """Whole numbers become what the other operand has; of two fractions a wider one is made."""
    x = numbers(dtype)[0]
    y = (torch.rand(N, generator=torch.Generator().manual_seed(1)) * 3).to(other)

    def both(x: torch.Tensor, y: torch.Tensor) -> Results:
        found: Results = []
        for a, b in ((x, y), (y, x)):
            found += [
                F.smooth_l1_loss(a, b, reduction="none", beta=0.7), torch.special.xlog1py(a, b),
                F.mse_loss(a, b, reduction="none"),
            ]  # fmt: skip
        return found

    for k, (got, want) in enumerate(zip(run(both, x, y), both(x, y), strict=True)):
        assert got.dtype is want.dtype
        loose = {"rtol": 2e-2, "atol": 2e-2} if got.itemsize == 2 else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(got, want, **loose, equal_nan=True, msg=str(k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norms_of_what_lies_apart(training: bool, dtype: torch.dtype) -> None:
    """The CPU's kernel for that rounds each step, where no weight is of 32 bits."""
    x = torch.randn(4, 6, 5, 8).to(dtype)
    vectors = [torch.randn(6).to(dtype) for _ in range(3)] + [torch.rand(6).to(dtype) + 0.5]

    def compute(x: torch.Tensor, *vectors: torch.Tensor) -> Results:
        w, c, m, v = vectors
        given = [(x[..., ::2], w, c), (x.mT, w, None), (x[..., 1:], None, c), (x[:, :, 1], w, c)]
        some = [F.batch_norm(y, m.clone(), v.clone(), *pair, training) for y, *pair in given]
        wide = [t.float() for t in vectors]
        return [*some, F.batch_norm(x.mT, wide[2], wide[3], *wide[:2], training)]

    # A mean that is rounded otherwise moves all that is computed of it.
    same_by_plans(compute, x, *vectors, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 12, 1027])
def test_batch_norms_compute_with_the_statistics_that_they_save(
    count: int, dtype: torch.dtype
) -> None:
    """The CPU's kernel rounds the mean and the deviation first, and sums of squares in bfloat16.
    Weights or moving statistics of 32 bits let it round nothing."""
    generator = torch.Generator().manual_seed(3)
    x = (torch.randn(3, 4, count, generator=generator) * 0.3 + 2).to(dtype)
    vectors = torch.rand(4, 4, generator=generator).add(0.5).to(dtype)

    def compute(x: torch.Tensor, vectors: torch.Tensor) -> Results:
        w, c, m, v = vectors
        found = []
        for y in (x, x[..., None].contiguous(memory_format=torch.channels_last)):
            found += torch.native_batch_norm(y, w, c, None, None, True, 0.1, 1e-3)
            found += torch.native_batch_norm(y, w, None, m.clone(), v.clone(), True, 0.1, 1e-3)
            wide = [m.float(), v.float()]
            found += torch.native_batch_norm(y, None, None, *wide, True, 0.1, 1e-3)
        return found

    digits = (
        {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float16 else {"rtol": 4e-3, "atol": 1e-3}
    )
    same_by_plans(compute, x, vectors, **digits)


def test_batch_norms_round_how_many_numbers_there_are() -> None:
    """In graphs for any size too: bfloat16 has neither 257 nor 301."""

    def normed(x: torch.Tensor) -> Results:
        return list(torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5))

    torch._dynamo.reset()
    compiled = torch.compile(normed, backend="tenon", dynamic=True)
    for count in (257, 301):
        generator = torch.Generator().manual_seed(count)
        x = torch.randn(1, 64, count, generator=generator).add(0.3).bfloat16()
        for mine, theirs in zip(compiled(x.to("tenon")), normed(x), strict=True):
            assert mine.cpu().equal(theirs)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_batch_norms_of_what_lies_apart(training: bool, dtype: torch.dtype) -> None:
    """The CPU's kernel rounds each step. Of two numbers to a channel nothing is left but that."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(2, 5, 6, generator=generator).to(dtype)
    vectors = torch.rand(4, 5, generator=generator).add(0.5).to(dtype)

    def compute(x: torch.Tensor, vectors: torch.Tensor) -> Results:
        w, c, m, v = (t.clone() for t in vectors)
        two = F.batch_norm(x[..., 0], m.clone().detach(), v.clone().detach(), w, c, training)
        return [two, F.batch_norm(x[..., ::2], m.detach(), v.detach(), None, None, training)]

    same_gradients(compute, x, vectors, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
def test_steps_of_16_bit_numbers_beside_others(dtype: torch.dtype) -> None:
    """Nothing is rounded to 16 bits there: imaginary parts were lost."""
    y = torch.tensor([-3.25, 0.5], dtype=torch.float16)
    g = torch.tensor([1 + 1j, 2 - 3j])
    g = g if dtype.is_complex else g.real.clone()
    same_by_plans(aten.sigmoid_backward, g, y, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("other", [torch.float32, torch.float64])
def test_steps_of_16_bit_numbers_and_one_number_of_another_dtype(
    other: torch.dtype, dtype: torch.dtype
) -> None:
    """The CPU's kernels round that to 16 bits first: it was taken as it is, and no step rounded."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, generator=generator).mul(1.5).to(dtype)

    def compute(x: torch.Tensor, t: torch.Tensor) -> Results:
        return [
            aten.huber_loss(x, t, 0, 0.7), aten.smooth_l1_loss(x, t, 0, 0.7),
            aten.mse_loss(x, t, 0), aten.mse_loss_backward(t, x, x * 2, 0),
            torch.special.xlog1py(x, t), aten.sigmoid_backward(t, x),
            aten.logit_backward(t, x, 0.1),
        ]  # fmt: skip

    same_by_plans(compute, x, torch.tensor(0.7231, dtype=other))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_of_what_was_computed_lie_as_in_eager_code(dtype: torch.dtype) -> None:
    """Of numbers that lie apart the CPU's kernel rounds each step."""

    def compute(x: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
        whole, vectors, norm = x * 1.5, v * 1.1, torch.ops.aten.native_batch_norm
        return [
            norm(y, w, w, m, w, False, 0.1, 1e-3)[0]
            for y, w, m in (
                (whole.transpose(1, 2), v[:4], v[:4] + 1),
                (whole[:, ::2], v[:3], v[:3] + 1),
                (whole[:, :3].contiguous(), v[:3], vectors[::2]),
            )
        ]

    x, v = torch.randn(5, 6, 4).to(dtype), torch.rand(6).to(dtype) + 0.5
    with executing("compiled"):
        for _ in range(3):
            assert_same(compute(x.to("tenon"), v.to("tenon")), compute(x, v))
