"""Steps of training get plans: none of their windows stays on reference execution."""

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from against_cpu import same_on_both
from torch import nn

from torch_tenon import _C, target
from torch_tenon.builder.counts import plan_counts


@pytest.fixture(autouse=True)
def all_by_plans(compiled: None) -> Iterator[None]:
    before = plan_counts()
    yield
    _C.commit_all()
    after = plan_counts()
    assert after["failed"] == before["failed"]
    # A plan of another test's may serve its sizes as well.
    assert target().backend is None or after["hits"] > before["hits"]
    assert after["reference"] == before["reference"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_that_are_scaled(dtype: torch.dtype) -> None:
    """Two steps have gradients that are not finite: they are left out and the scale shrinks."""
    start = [torch.randn(16, 8), torch.randn(3, 16)]
    inputs = [torch.randn(5, 8) * (1e30 if k in (4, 9) else 1) for k in range(12)]

    def train(device: str) -> tuple[list[float], list[torch.Tensor]]:
        weights = [nn.Parameter((w / 4).to(device, copy=True)) for w in start]
        optimizer = torch.optim.SGD(weights, lr=0.05)
        scaler = torch.amp.GradScaler(device, init_scale=2.0**14, growth_interval=3)
        scales = []
        for x in inputs:
            optimizer.zero_grad()
            with torch.autocast(device, dtype=dtype):
                hidden = F.linear(x.to(device), weights[0]).relu()
                loss = F.linear(hidden, weights[1]).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales, [w.detach().cpu() for w in weights]

    (want, theirs), (got, ours) = train("cpu"), train("tenon")
    assert got == want
    assert any(b < a for a, b in itertools.pairwise(got))
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-3)


def test_batch_norm_of_the_batch_alone() -> None:
    weight = torch.rand(3)
    for _ in range(2):  # the first call of an op runs at once
        x, grad = torch.randn(2, 4, 3, 5, 5).unbind()
        results = []
        for device in ("cpu", "tenon"):
            leaf = x.to(device, copy=True).requires_grad_()
            y = F.batch_norm(leaf * 2, None, None, weight.to(device), training=True)
            y.backward(grad.to(device))
            assert leaf.grad is not None
            results.append((y.detach().cpu(), leaf.grad.cpu()))
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_equal_numbers_are_their_mean() -> None:
    """Times the inverse of a small epsilon's root, a last bit of the mean would show."""
    for _ in range(2):
        x = (torch.rand(40, 1) * torch.ones(40, 3)).to("tenon")
        assert int(F.layer_norm(x * 1, (3,)).count_nonzero()) == 0
        assert int(torch.var(x * 1, 1).count_nonzero()) == 0


def _swapped(x: torch.Tensor) -> list[torch.Tensor]:
    rows = [x[0].clone(), x[1].clone()]
    torch._foreach_add_(rows, rows[::-1])
    return rows


def _swapped_out(x: torch.Tensor) -> list[torch.Tensor]:
    a, b = x[0].clone(), x[1].clone()
    torch.ops.aten._foreach_add.List_out([a, b], [b, a], out=[b, a])
    return [a, b]


@pytest.mark.parametrize(
    "write",
    [
        lambda x: torch._foreach_mul_(x.unbind(), 2.0),
        lambda x: torch._foreach_lerp_(x.unbind(), (x * 2).unbind(), 0.5),
        lambda x: torch._foreach_addcdiv_([x, x], [x, x], [x, x], [0.5, 0.25]),
        lambda x: torch._foreach_mul_(list(x[:2]), x[2, 2]),
        _swapped,
        _swapped_out,
        lambda x: torch._fused_sgd_(
            x.unbind(),
            (x * 2).unbind(),
            [],
            weight_decay=0.1,
            momentum=0.0,
            lr=0.5,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=True,
        ),
    ],
)
def test_lists_of_tensors_that_share_memory(write: Callable[[torch.Tensor], object]) -> None:
    """As views of one flat parameter do; each is written after those before it."""
    x = torch.randn(4, 6)

    def written(device: torch.device) -> tuple[object, torch.Tensor]:
        copy = x.to(device, copy=True)
        return write(copy), copy

    for _ in range(3):
        same_on_both(written)


def test_a_diagonal_beside_rows_that_are_read_as_columns() -> None:
    """The diagonal's loop and the one within a row are the same variable."""
    target = torch.arange(16) * 7 % 16

    def compute(device: torch.device) -> list[torch.Tensor]:
        x = torch.linspace(-1, 2, 16, device=device)
        square = torch.diag_embed(x)
        turned = square.transpose(0, 1).detach().clone().requires_grad_()
        del square
        y = torch.div(torch.expm1(turned), x, rounding_mode="trunc")
        loss = F.cross_entropy(y, target.to(device))
        again = torch.div(torch.expm1(turned), x, rounding_mode="trunc")
        return [turned, y, loss, again, torch.eq(again, 0.413)]

    for _ in range(3):
        same_on_both(compute, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_long_chain_of_changes() -> None:
    start = torch.rand(7)

    def compute(device: torch.device) -> torch.Tensor:
        x = start.to(device, copy=True)
        for _ in range(300):
            x.mul_(1.001)
        return x

    for _ in range(3):
        same_on_both(compute, rtol=1e-5, atol=0)
