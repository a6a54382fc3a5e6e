"""Ops whose lowering sees other arguments in eager code than torch.compile gives it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from against_cpu import same_on_both

from torch_tenon import _C
from torch_tenon.reports.counting import counters

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_bags_weights(dtype: torch.dtype) -> None:
    """The CPU's fast kernels keep no bag of each row, so none reaches the backward."""
    table, weights = torch.randn(10, 5).to(dtype), torch.randn(7).to(dtype)
    at, starts = torch.randint(10, (7,)), torch.tensor([0, 3, 3])

    def gradients(device: torch.device) -> tuple[torch.Tensor, ...]:
        rows, factors = (t.to(device).requires_grad_() for t in (table, weights))
        got = F.embedding_bag(
            at.to(device), rows, starts.to(device), mode="sum", per_sample_weights=factors
        )
        return torch.autograd.grad((got * got).sum(), (rows, factors))

    tolerance = 0.05 if dtype is torch.bfloat16 else 1e-4
    for _ in range(2):  # the first call of its kind runs at once
        same_on_both(gradients, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_out_of_another_dtype_where_the_op_is_a_call(dtype: torch.dtype) -> None:
    x = torch.randn(4, 5, dtype=torch.complex64)

    def written(device: torch.device) -> list[torch.Tensor]:
        y, outs = x.to(device), [torch.zeros(4, 5, dtype=dtype, device=device) for _ in range(3)]
        torch.linspace(0, 5, 20, out=outs[0].view(20))
        torch.cumsum(y, 0, out=outs[1])
        torch.eq(y, y, out=outs[2])
        return outs

    for _ in range(2):
        same_on_both(written, rtol=1e-7, atol=1e-5 if dtype is torch.float64 else 1)


_FOR_LIBRARY = {
    "fft": (torch.fft.fft, torch.complex128, torch.complex64),
    "fft of fewer bits": (torch.fft.fft, torch.complex64, torch.complex128),
    "rfft": (torch.fft.rfft, torch.float64, torch.complex64),
    "irfft": (torch.fft.irfft, torch.complex64, torch.float64),
    "eig": (torch.linalg.eigvals, torch.float32, torch.complex128),
    "householder": (torch.linalg.householder_product, torch.float32, torch.float64),
}


@pytest.mark.parametrize("name", _FOR_LIBRARY)
def test_out_of_another_dtype_where_the_op_is_the_librarys(name: str) -> None:
    function, given, taken = _FOR_LIBRARY[name]
    x = (torch.eye(4) * 3 + torch.linspace(-1, 1, 16).view(4, 4)).to(given)
    more = [torch.linspace(0, 1, 4).to(given)] if name == "householder" else []
    found = []
    for device in ("cpu", "tenon", "tenon"):
        out = torch.empty(0, dtype=taken, device=device)
        try:
            function(x.to(device), *(t.to(device) for t in more), out=out)
            found.append((out + 1).cpu())
        except RuntimeError as error:
            found.append(type(error))
    for got in found[1:]:
        if isinstance(found[0], type):
            assert got is found[0]
        else:
            torch.testing.assert_close(got, found[0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16])
def test_out_of_a_wider_dtype_takes_what_is_left_of_a_power(dtype: torch.dtype) -> None:
    x, y = torch.randint(30, 90, (2, 5), dtype=dtype), torch.tensor(5, dtype=dtype)

    def written(device: torch.device) -> list[torch.Tensor]:
        outs = [torch.zeros(2, 5, dtype=torch.int64, device=device) for _ in range(2)]
        torch.pow(x.to(device), y.to(device), out=outs[0])
        torch.pow(x.to(device), 3, out=outs[1])
        return outs

    for _ in range(2):
        same_on_both(written)


def test_out_of_other_strides_is_written_as_by_the_reference() -> None:
    """PyTorch's kernels of these ops write such memory in its own order."""
    x = torch.randn(2, 3, 4, 4)

    def written(device: torch.device) -> list[torch.Tensor]:
        y = x.to(device)
        shapes = (1, 2, 1, 2, 2), (2, 2, 4, 4), (2, 3, 4, 4)
        pooled, narrowed, smooth = (torch.zeros(s, device=device).mT for s in shapes)
        torch._C._nn.avg_pool3d(y[None], (2, 2, 2), out=pooled)
        torch.narrow_copy(y, 1, 0, 2, out=narrowed)
        torch._C._nn.gelu(y, out=smooth)
        return [pooled, narrowed, smooth]

    for _ in range(2):
        same_on_both(written)


def test_the_gradient_of_softmax_sees_one_rounding() -> None:
    """y * (g - sum(g * y)) of nearly equal g: what the roundings of y differ by would stay."""
    x = torch.randn(6, 40, dtype=torch.bfloat16)
    g = torch.full((6, 40), 64.0, dtype=torch.bfloat16)

    def gradient(device: torch.device) -> torch.Tensor:
        y = x.to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(torch.softmax(y, 1), y, g.to(device))
        return gradient

    for _ in range(2):
        same_on_both(gradient, rtol=0.02, atol=1e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_interpolated_as_by_the_cpu(mode: str) -> None:
    x = torch.randint(256, (2, 3, 40, 50), dtype=torch.uint8)
    for _ in range(2):
        same_on_both(lambda device: F.interpolate(x.to(device), (31, 77), mode=mode))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_sum_is_rounded_once(dtype: torch.dtype) -> None:
    """As by PyTorch's vectors: what is left of nearly equal numbers shows it."""
    x = torch.randn(64, dtype=dtype)
    for _ in range(2):
        same_on_both(lambda device: torch.sub(x.to(device), x.to(device), alpha=0.999))
        same_on_both(lambda device: torch.add(x.to(device), x.to(device), alpha=-0.999))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_compared_is_what_memory_holds(dtype: torch.dtype) -> None:
    """Registers keep more digits than memory: no number would be the greatest of its row."""
    x, scales = torch.rand(64, 64).to(dtype), [1.1]

    def places(device: torch.device) -> list[torch.Tensor]:
        y = x.to(device) * scales[-1]
        greatest, small = y.amax(1, keepdim=True), y * 2.0**-14
        found = [y.argmax(1), y.min(1).indices, y.cummax(1).indices, y == greatest]
        found += [y >= greatest, y == 0.33, (y * 256).int(), (small * small).any(1)]
        return [*found, torch.searchsorted(y.sort().values, y), (y * 2.0**16).isinf()]

    def gradient(device: torch.device) -> torch.Tensor:
        y = x.to(device).requires_grad_()
        return torch.autograd.grad((y * scales[-1]).amax(1).sum(), y)[0]

    for scale in (1.1, 1.3, 1.7):  # a number that changes is an argument of the kernel
        scales.append(scale)
        same_on_both(places)
        same_on_both(gradient, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_and_the_deviations_are_of_the_same_numbers(dtype: torch.dtype) -> None:
    """Of equal numbers the deviations are nothing but what the mean's rounding leaves."""

    def normalised(device: torch.device) -> list[torch.Tensor]:
        x = torch.full((6, 40), 7.7, dtype=dtype, device=device) * 7.7
        return [F.layer_norm(x, (40,)), F.group_norm(x, 1), x.var(1)]

    for _ in range(2):
        same_on_both(normalised, atol=1e-2)


@pytest.mark.parametrize("reduce", [torch.std, lambda x, d: torch.min(x, d).indices])
def test_reductions_to_nothing_have_a_plan(
    reduce: Callable[[torch.Tensor, int], torch.Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        same_on_both(lambda device: reduce(torch.empty(5, 0, 7, device=device), 0))
        _C.commit_all()  # nothing of nothing is ever asked for
    assert not caplog.records


def test_arguments_in_another_order_in_place() -> None:
    x = torch.rand(40) + 0.5
    for _ in range(2):  # polygamma(n, self) and polygamma_(self, n)
        same_on_both(lambda device: x.to(device, copy=True).polygamma_(2), rtol=1e-5)
    assert "fallback::aten::polygamma_" not in counters()


def test_an_out_that_becomes_conjugate() -> None:
    """The CPU's kernel leaves the conjugate of the solution, and marks it as such."""
    factors, pivots = torch.linalg.lu_factor(torch.randn(3, 3, dtype=torch.complex128))
    b = torch.randn(4, 3, dtype=torch.complex128)

    def solved(device: torch.device) -> torch.Tensor:
        out = torch.empty(4, 3, dtype=torch.complex128, device=device)
        given = [t.to(device) for t in (factors, pivots, b)]
        return torch.linalg.lu_solve(*given, left=False, out=out).resolve_conj()

    for _ in range(3):
        same_on_both(solved, rtol=1e-12, atol=1e-12)


def test_a_pool_of_nothing_has_a_plan(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        same_on_both(lambda device: F.max_pool1d(torch.ones(0, 3, 4, device=device), 2))
        _C.commit_all()
    assert not caplog.records


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_a_weight_decides_the_dtype(dtype: torch.dtype) -> None:
    x, y = torch.randint(9, (2, 40)).to(dtype)

    def between(device: torch.device) -> torch.Tensor:
        return torch.lerp(x.to(device), y.to(device), torch.tensor(0.3, device=device))

    for _ in range(2):
        same_on_both(between, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_number_has_the_digits_of_its_dtype(dtype: torch.dtype) -> None:
    def wide(device: torch.device) -> torch.Tensor:
        filled = torch.empty(40, dtype=dtype, device=device).fill_(0.649)
        return torch.ones(40, dtype=torch.float64, device=device) + filled

    for _ in range(2):
        same_on_both(wide)


def test_whole_numbers_that_require_a_gradient() -> None:
    """A comparison in place with what requires one says that its result does."""

    def compared(device: torch.device) -> torch.Tensor:
        x = torch.arange(5, device=device)
        x.lt_(torch.tensor(3.0, device=device, requires_grad=True))
        return torch.bitwise_xor(x, x)

    for _ in range(3):
        same_on_both(compared)


def test_a_mean_with_an_infinity_is_the_infinity() -> None:
    x = torch.randn(5, 3)
    x[4, 1] = -torch.inf  # where it is last the CPU has it so as well
    for _ in range(3):
        same_on_both(lambda device: torch.var_mean(x.to(device), 0), rtol=1e-5, atol=1e-5)


def test_a_variance_that_overflows_is_infinite() -> None:
    x = torch.tensor([[1.7e12, 1e27, 3e20], [5e27, 2e30, 1.0], [2e21, 4e25, 2.0]])

    def spread(device: torch.device) -> list[torch.Tensor]:
        y = x.to(device)
        return [y.var(0), torch.nn.functional.batch_norm(y, None, None, training=True)]

    for _ in range(3):
        same_on_both(spread, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_deviation_is_finite_where_the_variance_is_not(dtype: torch.dtype) -> None:
    x = (torch.randn(5, 7) * 1e30).to(dtype)
    for _ in range(3):
        same_on_both(lambda device: x.to(device).std(0), rtol=0.01)
        same_on_both(lambda device: torch.std_mean(x.to(device), 1), rtol=0.01)


@pytest.mark.parametrize("whole", [torch.int8, torch.int32, torch.int64, torch.uint8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_whole_number_has_no_negative_zero(dtype: torch.dtype, whole: torch.dtype) -> None:
    x = torch.cat([torch.rand(40) - 0.5, torch.tensor([-0.0, -1.5, 1.5, 3.0])]).to(dtype)

    def signs(device: torch.device) -> list[torch.Tensor]:
        k = x.to(device).to(whole)
        return [k, torch.copysign(torch.ones_like(x, device=device), k)]

    for _ in range(3):
        same_on_both(signs)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    "total",
    [
        lambda x: x.sum(0),
        lambda x: x.mean(0),
        lambda x: x.cumsum(0),
        lambda x: x.logcumsumexp(0),
        lambda x: F.avg_pool1d(x[None], 2, 1),
        lambda x: torch.autograd.grad(F.avg_pool1d(x[None], 2, 1), x, -0 * x[None, :, 1:])[0],
    ],
)
def test_a_sum_has_no_negative_zero(
    rows: int, total: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def signs(device: torch.device) -> torch.Tensor:
        return total(torch.full((rows, 3), -0.0, device=device, requires_grad=True)).signbit()

    for _ in range(3):
        same_on_both(signs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "add",
    [
        lambda x, rows, y: x.scatter_add(0, rows, y),
        lambda x, rows, y: x.scatter_reduce(0, rows, y, "sum"),
        lambda x, rows, y: x.scatter_reduce(0, rows, y, "prod"),
        lambda x, rows, y: x.index_add(0, rows[:, 0], y),
    ],
)
def test_many_16_bit_numbers_added_to_one_are_rounded_once(
    dtype: torch.dtype, add: Callable[..., torch.Tensor]
) -> None:
    x, y, rows = torch.rand(4, 8) + 0.5, torch.rand(200, 8) + 0.5, torch.arange(200) % 4
    x, y, rows = x.to(dtype), y.to(dtype), rows[:, None].expand(200, 8)
    want = add(x, rows, y)
    for _ in range(3):
        got = add(*(t.to("tenon") for t in (x, rows, y)))
        assert torch.equal(got.cpu(), want)
