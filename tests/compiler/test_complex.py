"""Complex numbers in loops, and memory that is seen as elements of two dtypes."""

from __future__ import annotations

from collections.abc import Callable

import needs
import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.against_cpu import assert_same
from tests.ops.lowerings.by_plan import same_by_plans
from tests.plans import last_plan
from torch_tenon import _C
from torch_tenon.reports.recording import calls_at_once

Function = Callable[..., torch.Tensor | list[torch.Tensor]]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def numbers() -> torch.Tensor:
    return torch.randn(12, 40, dtype=torch.complex64)


def parts() -> torch.Tensor:
    return torch.randn(12, 40)


ARITHMETIC: dict[str, tuple[Function, list[Callable[[], torch.Tensor]]]] = {
    "sums": (lambda a, b: a + b * 2 - (1 - 3j), [numbers, numbers]),
    "products": (lambda a, b: a * b * 2j, [numbers, numbers]),
    "quotients": (lambda a, b: a / b + (2 + 1j) / a, [numbers, numbers]),
    "with real numbers": (lambda a, x: (a * x + x) / 3, [numbers, parts]),
    "of real numbers": (lambda x: x * 1j + 2, [parts]),
    "of float64": (lambda x: x.double() * (1 + 1e-9j), [parts]),
    "of both precisions": (lambda a, b: a.to(torch.complex128) * b, [numbers, numbers]),
    "of whole numbers": (lambda x: (x * 9).long() * 1j, [parts]),
    "powers": (lambda a: a**2 + a**3, [numbers]),
    "absolute values": (lambda a: (a * a).abs().sum(), [numbers]),
    "angles": (lambda a: (a * 2).angle(), [numbers]),
    "signs": (lambda a: torch.sgn(a * 2), [numbers]),
    "exp": (lambda x: torch.exp(x * 1j), [parts]),
    "log": (lambda a: torch.log(a * 2), [numbers]),
    "polar": (lambda x: torch.polar(x.abs(), x) * 2, [parts]),
    "of their parts": (lambda x: torch.complex(x, x + 1) * 2, [parts]),
    "parts": (lambda a: [(a * a).real + 1, (a * a).imag * 2], [numbers]),
    "conjugates": (lambda a, b: a * b.conj() + a.conj().sum(0), [numbers, numbers]),
    "negative parts": (lambda a: a.conj().imag.clone() * 2 + a.imag, [numbers]),
    "a product's conjugate": (lambda a: a.conj().t().contiguous() * 2, [numbers]),
    "comparisons": (lambda a, b: [a == a * 1, (a * 2) != b], [numbers, numbers]),
    "choices": (lambda a, b: torch.where(a.real > 0, a * 2, b), [numbers, numbers]),
    "what is no number": (lambda a: (a / 0).isnan() | a.isinf(), [numbers]),
    "row sums": (lambda a, b: (a * b).sum(1), [numbers, numbers]),
    "means": (lambda a: (a * 2).mean(0), [numbers]),
    "running sums": (lambda a: (a * 2).cumsum(1), [numbers]),
    "joined": (lambda a, b: torch.cat([a * 2, b], 1) * b.repeat(1, 2), [numbers, numbers]),
    "looked up": (lambda a: (a * 2)[torch.arange(5, device=a.device)] + 1, [numbers]),
    "masked": (lambda a: (a * 2).masked_fill(a.real > 0, 1 - 1j) + 1, [numbers]),
    "put at places": (
        lambda a, b: (a * 2).index_put((torch.arange(5, device=a.device),), b[2:7]) + 1,
        [numbers, numbers],
    ),
    "added at places": (
        lambda a, b: (a * 2).index_put(
            (torch.arange(6, device=a.device) // 2,), b[2:8], accumulate=True
        ),
        [numbers, numbers],
    ),
    "a diagonal": (lambda a, b: (a * 2).diagonal_scatter(b[3, :12] * 2) + 1, [numbers, numbers]),
    "truth": (
        lambda a, b: [(a == b).any(), (a * 0).any(1), a.all() & ~(a * 0).bool()],
        [numbers, numbers],
    ),
    "padded": (lambda a: torch.nn.functional.pad(a * 2, (1, 2)) + 1, [numbers]),
    "triangles": (lambda a: (a * 2).tril() + 1, [numbers]),
    "filled": (lambda a: torch.full_like(a, 2 - 1j) * a, [numbers]),
}


def written_by_parts(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    a = a * 1
    a.real.add_(1)
    a.imag.mul_(x)
    return a * 2


def written_where_they_lie(a: torch.Tensor) -> list[torch.Tensor]:
    a = a + 1
    seen = torch.view_as_real(a)
    seen[..., 0] = 3
    seen.mul_(2)
    return [a + 1, seen + 1]


def given_ones_written(a: torch.Tensor) -> list[torch.Tensor]:
    a = a.clone()
    a.real.add_(1)
    a.mul_(2j)
    return [torch.view_as_real(a)[..., 1] + a.real, a]


def turned(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex((x * 1.5).reshape(12, 20, 2))
    return torch.view_as_real(pairs * by[:, :20]).flatten(1).to(torch.bfloat16)


SEEN: dict[str, tuple[Function, list[Callable[[], torch.Tensor]]]] = {
    "the parts of numbers": (lambda a: torch.view_as_real(a * 2).flatten(1) + 1, [numbers]),
    "numbers of pairs": (
        lambda x: torch.view_as_complex((x * 2).reshape(12, 20, 2)) * 1j,
        [parts],
    ),
    "embeddings that turn": (turned, [parts, numbers]),
    "written by parts": (written_by_parts, [numbers, parts]),
    "written where they lie": (written_where_they_lie, [numbers]),
    "given ones written": (given_ones_written, [numbers]),
    "bits": (lambda x: ((x * 2).view(torch.int32) + 1).view(torch.float32) * 3, [parts]),
    "bits of bfloat16": (
        lambda x: ((x * 2).bfloat16().view(torch.int16) | 1).view(torch.bfloat16).float(),
        [parts],
    ),
    "bytes": (lambda x: (x * 2).view(torch.uint8).sum(1), [parts]),
    "wider elements": (lambda x: (x * 2).view(torch.int64) % 7, [parts]),
}
ALL = ARITHMETIC | SEEN


@pytest.mark.slow
@pytest.mark.sampled(12)
@needs.plans
@pytest.mark.parametrize("name", ALL)
def test_in_windows(name: str, compiled: None) -> None:
    compute, makers = ALL[name]
    for _ in range(3):  # the first call of an op runs at once
        given = [make() for make in makers]
        found = compute(*(t.to("tenon") for t in given))
        _C.commit_all()
        assert_same(tree_leaves(found), tree_leaves(compute(*given)), **CLOSE)
    assert last_plan().fallbacks == {}


@pytest.mark.sampled(12)
@needs.plans
@pytest.mark.parametrize("name", ALL)
def test_in_graphs(name: str) -> None:
    compute, makers = ALL[name]
    torch._dynamo.reset()
    run = torch.compile(compute, backend="tenon", fullgraph=True)
    for _ in range(2):
        given = [make() for make in makers]
        found = run(*(t.to("tenon") for t in given))
        assert_same(tree_leaves(found), tree_leaves(compute(*given)), **CLOSE)


@needs.plans
def test_a_complex_factor_of_what_is_linear(compiled: None) -> None:
    def compute(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        places = torch.arange(6, device=a.device) // 2
        return (a * 2).index_add(0, places, b[:6], alpha=2 - 1j)

    for _ in range(3):
        a, b = numbers(), numbers()
        found = compute(a.to("tenon"), b.to("tenon"))
        _C.commit_all()
        assert_same(found, compute(a, b), **CLOSE)


@needs.plans
def test_gradients(compiled: None) -> None:
    def gradients(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        a, b = a.requires_grad_(), b.requires_grad_()
        (((a * b.conj()) / (a + 3)).abs() ** 2 + a.real).sum().backward()
        assert a.grad is not None and b.grad is not None
        return [a.grad, b.grad]

    for _ in range(3):
        a, b = numbers(), numbers()
        found = gradients(a.to("tenon"), b.to("tenon"))
        assert_same(found, gradients(a, b), rtol=1e-4, atol=1e-4)


def test_complex_factors_and_conjugates_are_recorded() -> None:
    def waiting() -> int:
        return sum(n for _, why, n in calls_at_once() if "no plain tensor" in why)

    a = numbers()
    there, before = a.to("tenon"), waiting()
    for _ in range(2):
        found = (there * 2j).conj() + there.mul(1 + 1j)
        found.mul_(there.conj())
    assert waiting() == before
    assert_same(found, ((a * 2j).conj() + a.mul(1 + 1j)).mul_(a.conj()), **CLOSE)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex128])
def test_sums_of_another_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5 + 0.75j, 1 - 2j], [0, 3j], [-0.5, 2]])

    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.sum(0, dtype=dtype), x.sum(dtype=dtype), x.prod(1, dtype=dtype)]

    same_by_plans(compute, x)


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_means_and_running_sums_of_another_dtype(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5 + 0.75j, 1 - 2j], [0, 3j], [-0.5, 2]])
    same_by_plans(lambda x: [x.mean(0, dtype=dtype), x.cumsum(1, dtype=dtype)], x)


def special() -> torch.Tensor:
    """Numbers whose parts are zeros of either sign, NaN and infinity."""
    some = (1.0, -0.0, 0.5, -2.0, float("nan"), float("inf"), 0.0)
    return torch.tensor([complex(a, b) for a in some for b in some])


SUBTRACTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a whole number": lambda x: x - 1,
    "a fraction": lambda x: x - 1.5,
    "a complex number": lambda x: x - (1 + 0j),
    "from a number": lambda x: 1 - x,
    "times a number": lambda x: torch.sub(x, x.flip(0) * 1, alpha=2),
    "turned": lambda x: torch.rsub(x, x.flip(0) * 1, alpha=1.5),
}


@pytest.mark.parametrize("name", SUBTRACTIONS)
def test_a_subtraction_adds_a_negative_product(name: str, compiled: None) -> None:
    """Zeros of imaginary parts have its sign, which says on which side of a cut a root lies."""
    x = special()
    want = torch.view_as_real(SUBTRACTIONS[name](x))
    for _ in range(2):
        got = torch.view_as_real(SUBTRACTIONS[name](x.to("tenon"))).cpu()
    numbers = ~want.isnan()
    assert_same(got, want)
    assert torch.equal(got.signbit()[numbers], want.signbit()[numbers])


def test_the_gradient_of_acosh_at_its_cut(compiled: None) -> None:
    def compute(device: str) -> torch.Tensor:
        x = torch.tensor([complex(0.5, -0.0), complex(0.5, 0.0), -3 - 0j], device=device)
        x = x.requires_grad_()
        x.acosh().backward(torch.ones_like(x))
        assert x.grad is not None
        return x.grad

    for _ in range(2):
        assert_same(compute("tenon"), compute("cpu"), **CLOSE)


@pytest.mark.parametrize("alpha", [0, 1, True, 2.5, 1j])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize(("shape", "dim"), [((7,), 0), ((7, 2), 0), ((2, 7), -1), ((2, 7, 3), 1)])
def test_added_slices_are_complex_products(
    alpha: complex, index: torch.dtype, shape: tuple[int, ...], dim: int, compiled: None
) -> None:
    """NaN of a part goes into the other, but where the CPU's kernel scatters."""
    some = special()[::7].reshape([7 if k == dim % len(shape) else 1 for k in range(len(shape))])

    def compute(device: str) -> torch.Tensor:
        x, source = torch.ones(shape, dtype=some.dtype), some.expand(shape).clone()
        at = (torch.arange(7) % 5).to(index)
        x, at, source = (t.to(device) for t in (x, at, source))
        return torch.view_as_real(x.index_add(dim, at, source, alpha=alpha))

    for _ in range(2):
        assert_same(compute("tenon"), compute("cpu"))


@pytest.mark.parametrize("base", [0.0, 2.5])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_powers_of_a_base(base: float, dtype: torch.dtype) -> None:
    """The CPU's kernel has NaN for 0 to the power of 0."""

    def compute(device: str) -> torch.Tensor:
        steps = torch.logspace(0, 1, 5, base, dtype=dtype, device=device)
        return torch.view_as_real(steps)

    assert_same(torch.compile(compute, backend="tenon")("tenon"), compute("cpu"))
