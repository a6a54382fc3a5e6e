"""Losses and their gradients by plans: extreme parameters, NaN, infinities and whole numbers."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same, executing
from ops.lowerings.by_plan import compiled, same_by_plans

pytestmark = needs.plans

aten = torch.ops.aten
LIMITS = (0.0, 0.5, 0.3, 1.0, math.inf, 1e-10)
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -0.5]


def losses_of(x: Any, target: Any, grads: Any) -> list[torch.Tensor]:
    found = []
    for limit in LIMITS:
        found.append(aten.smooth_l1_loss(x, target, 0, limit))
        if limit:
            found.append(aten.huber_loss(x, target, 0, limit))
    found += [aten.mse_loss(x, target, 0), aten.soft_margin_loss(x, target, 0)]
    found.append(aten.binary_cross_entropy_with_logits(x, target, None, None, 0))
    for reduction in (0, 1, 2):
        g = grads[0] if reduction else grads
        for limit in LIMITS:
            found.append(aten.smooth_l1_loss_backward(g, x, target, reduction, limit))
            if limit in (0.5, 1.0, math.inf):
                found.append(aten.huber_loss_backward(g, x, target, reduction, limit))
        found.append(aten.mse_loss_backward(g, x, target, reduction))
        found.append(aten.soft_margin_loss_backward(g, x, target, reduction))
        found.append(aten.binary_cross_entropy_backward(g, x.clamp(0, 1), target, None, reduction))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_losses_of_special_values(dtype: torch.dtype) -> None:
    pairs = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)) * 2, dtype=dtype)
    grads = torch.tensor([0.5, -2.0, math.nan, math.inf, 0.0] * 40, dtype=dtype)
    given = [pairs[:192, 0], pairs[:192, 1], grads[:192]]  # whole vectors
    with executing("compiled"):
        for _ in range(2):  # the first call of an op runs at once
            got = losses_of(*(t.to("tenon") for t in given))
            torch.tenon.synchronize()
    tolerance = 1e-5 if dtype.itemsize > 2 else 0.0
    for k, (mine, want) in enumerate(zip(got, losses_of(*given), strict=True)):
        try:
            assert_same(mine, want, tolerance, 1e-6 if tolerance else 0.0)
        except AssertionError as error:
            raise AssertionError(f"result {k}: {error}") from None


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(
    ("dtype", "other"),
    [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16), (torch.float32, torch.half)],
)
def test_losses_of_two_dtypes(dtype: torch.dtype, other: torch.dtype, reduction: int) -> None:
    """Each step is rounded to the dtype that the CPU computes it in, which is that of one of them.
    A number of the one may be infinite in the other."""
    pairs = torch.tensor(list(itertools.product([*SPECIAL, 3.14159, 7e4], repeat=2)))
    x, target = pairs[:, 0].to(dtype), pairs[:, 1].to(other)
    grad = x.new_tensor(1.5) if reduction else x * 0.7

    def compute(x: torch.Tensor, target: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        return [
            aten.soft_margin_loss(x, target, reduction),
            aten.soft_margin_loss_backward(grad, x, target, reduction),
            aten.binary_cross_entropy_with_logits(x, target, None, None, reduction),
            aten.binary_cross_entropy_with_logits(x, target, x, x, reduction),
        ]

    same_by_plans(compute, x, target, grad, rtol=1e-6 if reduction or dtype.itemsize > 2 else 0)


def test_losses_of_a_wider_target_are_refused_in_graphs() -> None:
    """The CPU computes them in place, where there is no room for them."""
    x, whole = torch.ones(3), torch.ones(3, dtype=torch.int64)
    for compute in (
        lambda x, y: aten.binary_cross_entropy_with_logits(x, y),
        lambda x, y: aten.binary_cross_entropy_with_logits(x[:1].expand(2, 3), x, y * 0.5j),
        lambda x, y: aten.soft_margin_loss(x, y.expand(2, 3)),
    ):
        for run, device in ((compute, "cpu"), (compiled(compute), "tenon")):
            with pytest.raises(RuntimeError):
                run(x.to(device), whole.to(device))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8])
def test_losses_of_whole_numbers(dtype: torch.dtype) -> None:
    given = [torch.tensor(v, dtype=dtype) for v in ([1, 2, 5], [3, 2, 1], [1, 2, 3])]

    def compute(x: Any, target: Any, grads: Any) -> list[torch.Tensor]:
        found = []
        for reduction, n in itertools.product((0, 1, 2), (1, 3)):
            g = grads[-1] if reduction else grads[:n]
            found.append(aten.mse_loss_backward(g, x[:n], target[:n], reduction))
            for beta in (0.0, 0.5, 2.0):
                found.append(aten.smooth_l1_loss_backward(g, x[:n], target[:n], reduction, beta))
        out = torch.zeros(3, device=x.device)
        aten.mse_loss_backward.grad_input(grads[-1], x, target, 1, grad_input=out)
        return [*found, out]

    with executing("compiled"):
        for _ in range(2):
            got = compute(*(t.to("tenon") for t in given))
            torch.tenon.synchronize()
    assert_same(got, compute(*given))


def _with_gradient(function: Any, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    found = function(x)
    found.backward(grad)
    assert x.grad is not None
    return [found, x.grad]


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_labels_that_end_in_graphs(reduction: str) -> None:
    """What comes after the first -1 is no label."""
    target = torch.tensor([[3, 0, -1, 1], [0, 1, 2, 3], [-1, 3, 2, 0], [2, -1, -1, 2]])
    x, grad = torch.randn(4, 4), torch.randn(4 if reduction == "none" else ())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target.to(x.device), reduction=reduction)

    want = _with_gradient(loss, x, grad)
    found = _with_gradient(compiled(loss), x.to("tenon"), grad.to("tenon"))
    assert_same(found, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shrink", [F.hardshrink, F.softshrink])
def test_shrunk_in_graphs(shrink: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([*SPECIAL, 0.3, 0.7] * 16, dtype=dtype)
    grad = torch.randn(192).to(dtype)
    for limit in (0.5, 0.3):
        function = functools.partial(shrink, lambd=limit)
        want = _with_gradient(function, x, grad)
        found = _with_gradient(compiled(function), x.to("tenon"), grad.to("tenon"))
        assert_same(found, want)


def test_strides_of_gradients_in_graphs() -> None:
    """In order, however the arguments lie, where the CPU's are."""

    def gradients(g: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            aten.huber_loss_backward(g, x, y, 0, 1.0),
            aten.mse_loss_backward(g, x, y, 0),
            aten.smooth_l1_loss_backward(g, x, y, 0, 1.0),
            aten.soft_margin_loss_backward(g, x, y, 0),
        ]

    x, y = torch.rand(2, 3, 4).mT.unbind(0)
    for g in (torch.tensor(1.0), torch.rand(3, 4).t()):
        want = gradients(g, x, y)
        got = compiled(gradients)(*(t.to("tenon") for t in (g, x, y)))
        assert_same(got, want, rtol=1e-6, atol=1e-6)
        assert [t.stride() for t in got] == [t.stride() for t in want]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses_of_16_bits_are_rounded_as_on_the_cpu(dtype: torch.dtype) -> None:
    def losses(x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
        found = [F.mse_loss(x, target, reduction="none")]
        how = {"reduction": "none"}
        return found + [F.smooth_l1_loss(x, target, beta=k, **how) for k in (0.3, 1.0, 2.7)]

    given = torch.randn(257).to(dtype), torch.randn(257).to(dtype)
    want = losses(*given)
    with executing("compiled"):
        for run in (losses, losses, compiled(losses)):
            assert_same(run(*(t.to("tenon") for t in given)), want)


@pytest.mark.parametrize("reduction", [1, 2])
@pytest.mark.parametrize("plane", [False, True])
def test_gradients_by_classes_that_are_none(plane: bool, reduction: int) -> None:
    """The op by itself looks at its targets as the loss does."""
    op = aten.nll_loss2d_backward if plane else aten.nll_loss_backward
    x = torch.randn(3, 5, 2, 2) if plane else torch.randn(3, 5)
    target = torch.tensor([1, -7, 4])
    target = target.view(3, 1, 1).repeat(1, 2, 2) if plane else target

    def gradient(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = x.new_full((), 2.5)
        found: torch.Tensor = op(
            x.new_ones(()), x, target, x[0].flatten()[:5], reduction, -7, total
        )
        return found

    graph = compiled(gradient)
    with executing("compiled"):
        for run in (gradient, gradient, graph):
            assert_same(run(x.to("tenon"), target.to("tenon")), gradient(x, target))
        for bad in (5, -1, 99):
            wrong = target.clone()
            wrong.view(-1)[-1] = bad
            for run in (gradient, graph):
                with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
                    _ = run(x.to("tenon"), wrong.to("tenon")).cpu()


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_margins_that_do_not_count(reduction: str, p: int) -> None:
    """A class beyond the margin adds nothing, whatever its weight, and neither does NaN."""
    rows = torch.tensor([[0.1, 0.2, 0.9, -3.0], [0.4, 0.1, -5.0, 2.0], [3.0, math.nan, -0.5, -2.0]])
    target, weight = torch.tensor([0, 1, 0]), torch.tensor([1.0, math.inf, 2.0, 0.0])

    def loss(x: Any, target: Any, weight: Any) -> Any:
        x = x.detach().requires_grad_()
        found = F.multi_margin_loss(x, target, p, weight=weight, reduction=reduction)
        (gradient,) = torch.autograd.grad(found.sum(), x)
        return found.detach(), gradient

    want, there = loss(rows, target, weight), [x.to("tenon") for x in (rows, target, weight)]
    with executing("compiled"):
        for _ in range(2):
            assert_same(loss(*there), want, 1e-6, 0)
    torch._dynamo.reset()
    assert_same(torch.compile(loss, backend="tenon")(*there), want, 1e-6, 0)
    torch._dynamo.reset()


@pytest.mark.parametrize("sizes", [(3, 0), (0,), (3, 0, 2, 2)])
@pytest.mark.parametrize("reduction", [0, 1, 2])
def test_no_classes(sizes: tuple[int, ...], reduction: int) -> None:
    """Where no class is meant, none is looked at."""
    op = aten.nll_loss2d_forward if len(sizes) == 4 else aten.nll_loss_forward
    x = torch.randn(sizes)
    target = torch.full((*sizes[:1], *sizes[2:]) if len(sizes) > 1 else (), -7)
    graph = compiled(op)
    with executing("compiled"):
        for weight in (None, torch.ones(0)):
            given = (x, target, weight)
            held = [None if t is None else t.to("tenon") for t in given]
            for run in (op, op, graph):
                assert_same(run(*held, reduction, -7), op(*given, reduction, -7))
            for run in (op, graph):
                with pytest.raises(IndexError):
                    _ = run(held[0], torch.zeros_like(held[1]), held[2], reduction, -7)[0].cpu()


def test_results_of_other_dimensions_and_dtypes_than_the_rules_say(caplog: Any) -> None:
    """The kernel's are those of its first operand, as in eager code: no fault of the compiler's."""
    one, row = torch.ones(()), torch.ones(1, dtype=torch.bfloat16)
    half = torch.ones((), dtype=torch.float16)

    def functions(x: Any, y: Any, z: Any) -> list[torch.Tensor]:
        return [
            aten.soft_margin_loss_backward(x, z, x, 0),
            aten.huber_loss_backward(y, y, y * 0, 0, -math.inf),
        ]

    same_by_plans(functions, one, row, half)
    given = (torch.tensor(False), torch.zeros((0, 1), dtype=torch.bool), torch.ones(1) > 0)
    with executing("compiled"):
        for _ in range(3):
            assert_same(aten.addmv(*(x.to("tenon") for x in given)), aten.addmv(*given))
    assert not [r for r in caplog.records if r.name.startswith("torch_tenon")]


def test_products_of_nothing_with_a_vector_of_truth_values() -> None:
    given = torch.ones(2, dtype=torch.bool), torch.ones(2, 0, dtype=torch.bool)

    def product(c: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return aten.addmv(c, x, x[0], beta=1, alpha=0)

    with executing("compiled"):
        for _ in range(3):
            assert_same(product(*(x.to("tenon") for x in given)), product(*given))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses_of_labels_add_up_what_is_above_0(reduction: str) -> None:
    """Of rows with NaN and infinities the CPU adds up what comes within the margin."""
    x = torch.tensor([*SPECIAL[:3], 0.5, 2.0]).expand(5, 5).tril(1).contiguous()
    target = torch.tensor([[3, 0, -1, 1, 1], [0, 1, 2, 3, 4], [-1, 0, 0, 0, 0]])[[0, 0, 1, 2, 0]]

    def losses(x: torch.Tensor) -> torch.Tensor:
        return F.multilabel_margin_loss(x, target.to(x.device), reduction=reduction)

    expected = losses(x)
    with executing("compiled"):
        for _ in range(3):
            assert_same(losses(x.to("tenon")), expected, rtol=1e-6, atol=1e-6)


def test_a_gradient_written_where_there_is_other_room() -> None:
    """PyTorch's kernel leaves the sizes of what it writes."""
    nothing, one = torch.empty(1, 1, 0, 0), torch.ones(())

    def gradient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        op = aten.binary_cross_entropy_backward.grad_input
        return op(x, x, x, None, 0, grad_input=y.clone())

    with executing("compiled"):
        for _ in range(3):
            found = gradient(nothing.to("tenon"), one.to("tenon"))
            assert found.cpu().shape == gradient(nothing, one).shape
