"""Numbers that change between calls: run-time values of plans, and the CPU's results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import needs
import pytest
import torch
from torch import Tensor

from tests.against_cpu import assert_same, executing
from torch_tenon import _C

pytestmark = needs.plans
inf, nan = math.inf, math.nan

# Ops whose numbers become run-time values once they change.
CHANGING: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "fill_": lambda x, k: x.clone().fill_(k),
    "full": lambda x, k: torch.full((5,), k, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "full.out": lambda x, k: torch.full((2,), k, out=x[:2].clone()),
    "scalar_tensor": lambda x, k: torch.scalar_tensor(k, dtype=x.dtype, device=x.device),
    "rsub": lambda x, k: torch.rsub(x * 3, k, alpha=2) * 3,
    "rsub alpha": lambda x, k: torch.rsub(x, 2, alpha=k),
    "eq": lambda x, k: x == k,
    "ne_": lambda x, k: x.clone().ne_(k),
    "lt": lambda x, k: x * 3 < k,
    "ge.out": lambda x, k: torch.ge(x, k, out=torch.zeros_like(x)),
    "clamp": lambda x, k: (x * 3).clamp(-1, k) * 3,
    "clamp to one": lambda x, k: x.clamp(k, k),
    "clamp_": lambda x, k: x.clone().clamp_(k, 3),
    "clamp_min": torch.clamp_min,
    "clamp_max.out": lambda x, k: torch.clamp_max(x, k, out=torch.zeros_like(x)),
    "_foreach_clamp_min": lambda x, k: torch.stack(torch._foreach_clamp_min([x, x * 3], k)),
    "_foreach_minimum": lambda x, k: torch.stack(torch._foreach_minimum([x, x * 3], [k, 2.5])),
    "leaky_relu": lambda x, k: torch.nn.functional.leaky_relu(x - 1, k) * 3,
    "where": lambda x, k: torch.where(x > 0, x, k),
    "where of numbers": lambda x, k: torch.where(x > 0, k, 0.5),
    "masked_fill": lambda x, k: (x * 3).masked_fill(x > 0, k) * 3,
    "masked_fill_": lambda x, k: x.clone().masked_fill_(x > 0, k),
    "slice": lambda x, k: torch.cat([x[:9], x[9:].clone().fill_(k), x]),
    "gradient of clamp": lambda x, k: _gradient(lambda t: t.clamp(-1, k), x),
    "gradient of leaky_relu": lambda x, k: _gradient(
        lambda t: torch.nn.functional.leaky_relu(t, k), x
    ),
    "gradient of leaky_relu_": lambda x, k: _gradient(
        lambda t: torch.nn.functional.leaky_relu_(t * 1, k), x
    ),
    "gradient of where": lambda x, k: _gradient(lambda t: torch.where(t > k, t, k), x),
    "gradient of masked_fill": lambda x, k: _gradient(lambda t: t.masked_fill(x > 0, k), x),
    "gradient of rsub": lambda x, k: _gradient(lambda t: torch.rsub(t, 2, alpha=k), x),
}
# The most that dtypes have, and what has no place in one.
CHANGES = (
    *(2.25, 0.75, 0.1, 127.5, -0.5, -0.0, 0.0, 1e-8, 1e-45, inf, -inf, nan, 65519.0, 65520.0),
    *(3.4e38, 255.0, 300.7, -129.5, 2.0**31, -(2.0**63), 1e39),
    *(3, -1, 2**53 + 1, True, 2 + 0j, 1j),
)
CHANGES_OF = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32),
    *(torch.int8, torch.uint8, torch.bool, torch.uint16, torch.complex64),
)


def _gradient(compute: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    found = compute(leaf)
    weights = torch.arange(found.numel(), device=x.device).remainder(7).add(1).to(found.dtype)
    return torch.autograd.grad((found * weights).sum(), leaf)[0]


def _of_all_kinds(dtype: torch.dtype) -> Tensor:
    """As many numbers as vectors hold: the CPU's kernels round in another way what is left over."""
    made = torch.tensor([0, 1, 2, 3, 44, 100, -1, -127]).to(dtype).repeat(16)
    if dtype.is_floating_point:
        made[::8], made[3::8], made[6::8] = -0.0, 2.7, 0.1
    return made


def _attempt(compute: Callable[..., Tensor], *given: Any) -> Tensor | type[Exception]:
    try:
        return compute(*given).cpu()
    except Exception as error:  # which of them, the CPU says
        return type(error)


def _same_with_signs(found: Tensor | type[Exception], want: Tensor | type[Exception]) -> None:
    if isinstance(want, type) or isinstance(found, type):
        assert found is want, (found, want)
        return
    assert_same(found, want)
    if want.dtype.is_floating_point:
        number = ~want.isnan()
        assert torch.equal(found.signbit()[number], want.signbit()[number])


@pytest.mark.slow
@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", CHANGES_OF, ids=str)
@pytest.mark.parametrize("op", CHANGING)
def test_numbers_that_change(
    op: str, dtype: torch.dtype, some: Callable[[Iterable[Any], int], list[Any]]
) -> None:
    """Each is what it is where the code has it, and is refused where that is."""
    x = _of_all_kinds(dtype)
    with executing("compiled"):
        for k in (2.5, 1.5, *some(CHANGES, 10), 2.5):
            want = _attempt(CHANGING[op], x, k)
            _same_with_signs(_attempt(CHANGING[op], x.to("tenon"), k), want)


HOST_NUMBERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "where": lambda x, k: torch.where(x > 0, x, k),
    "where of numbers": lambda x, k: torch.where(x > 0, k, 1.5),
    "eq": lambda x, k: x == k,
    "lt": lambda x, k: x < k,
    "maximum": torch.maximum,
    "minimum_": lambda x, k: torch.minimum(x, k, out=torch.empty_like(x)),
    "clamp": lambda x, k: torch.clamp(x, min=k),
    "clamp_max": torch.clamp_max,
    "mul": lambda x, k: x * k,
    "rsub": lambda x, k: k - x,
    "masked_fill": lambda x, k: x.masked_fill(x > 0, k),
}


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", CHANGES_OF, ids=str)
@pytest.mark.parametrize("op", HOST_NUMBERS)
def test_host_tensors_that_change(op: str, dtype: torch.dtype) -> None:
    """Tensors without dimensions, whose dtypes decide only beside lesser kinds of numbers."""
    x = _of_all_kinds(dtype)
    with executing("compiled"):
        for of in CHANGES_OF:
            for k in (2, 3, 0.3, 100):
                host = torch.tensor(k).to(of)
                want = _attempt(HOST_NUMBERS[op], x, host)
                _same_with_signs(_attempt(HOST_NUMBERS[op], x.to("tenon"), host), want)


def test_numbers_that_change_are_one_structure() -> None:
    """Loops that compute with another number each time have one plan, gradients among them."""

    def leaky(x: Tensor, k: float) -> Tensor:
        return _gradient(lambda t: torch.nn.functional.leaky_relu(t, k), x)

    def clipped(x: Tensor, k: float) -> Tensor:
        return torch._foreach_clamp_max([x], k)[0]

    def raised(x: Tensor, k: float) -> Tensor:
        return torch.maximum(x, torch.tensor(k))

    x = torch.randn(64).to("tenon")
    for compute in (leaky, torch.clamp_min, clipped, raised):
        for k in range(4):
            compute(x, 0.25 + k / 8).cpu()
        before = _C.structure_counts()[0]
        for k in range(8):
            compute(x, 0.875 + k / 8).cpu()
        assert _C.structure_counts()[0] == before


@pytest.mark.parametrize(
    "use",
    [
        lambda x, k: (x == k).sum(),
        lambda x, k: (x > k) & (k >= x),
        lambda x, k: x.clone().fill_(k),
        lambda x, k: torch.where(x > 1, x, k),
        lambda x, k: x.masked_fill(x > 1, k).clamp(max=k + 1),
        lambda x, k: k - x,
        lambda x, k: torch._foreach_add([x, x], k)[1],
        lambda x, k: torch.sub(x, x, alpha=k),
    ],
)
@pytest.mark.parametrize("kind", [int, float])
def test_whole_numbers_and_fractions_are_of_one_structure(use: Any, kind: type) -> None:
    numbers = [kind(k) for k in range(3, 43)]
    host = torch.arange(12.0)
    x = host.to("tenon")
    for k in numbers[:3]:  # its number is known, it is seen to change, it is left open
        use(x, k).cpu()
    before = _C.structure_counts()[3]
    for k in numbers[3:]:
        assert torch.equal(use(x, k).cpu(), use(host, k))
    assert _C.structure_counts()[3] - before <= 2


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_quotients_of_whole_numbers_without_sign(dtype: torch.dtype) -> None:
    """They are calls, which are given numbers of the dtype that a quotient is computed in."""
    x, numbers = torch.tensor([3, 2, 7]).to(dtype), (3, -1, 70000, -(2**40), 2.5, -300)
    for given in (x, x[1]):
        for _ in range(2):
            with executing("compiled"):
                found = [given.to("tenon") / k for k in numbers]
                assert_same(found, [given / k for k in numbers])


def test_complex_numbers_to_the_power_of_a_truth_value(caplog: Any) -> None:
    x = torch.tensor([1 + 2j, -0.5j])
    with executing("compiled"):
        for _ in range(2):
            assert_same(torch.pow(x.to("tenon"), True), torch.pow(x, True))
    assert not [r for r in caplog.records if r.name.startswith("torch_tenon")]
