"""What PyTorch's kernels refuse, or take for something else, by plans and in graphs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.against_cpu import assert_same, executing
from tests.ops.lowerings.by_plan import (
    compiled,
    on_tenon,
    same_by_plans,
    same_error_by_plans,
    same_gradients,
)

pytestmark = needs.plans
aten = torch.ops.aten
inf, nan = math.inf, math.nan


def _refused_in_graphs(compute: Callable[..., Any], *inputs: Any) -> None:
    with pytest.raises(RuntimeError):
        compute(*inputs)
    with pytest.raises(RuntimeError):
        compiled(compute)(*on_tenon(inputs))


def _as_on_the_cpu(compute: Callable[..., Any], *inputs: Any) -> None:
    """What the CPU computes is the same by plans, and what it refuses is refused in graphs."""
    try:
        compute(*inputs)
    except RuntimeError:
        _refused_in_graphs(compute, *inputs)
    else:
        same_by_plans(compute, *inputs)


@pytest.mark.parametrize("alpha", [1e300, 300, True, complex(1, 0), 0.5])
def test_factors_of_sums(alpha: Any) -> None:
    for dtype in (torch.float32, torch.int8):
        for op in (torch.add, torch.sub):
            x = torch.ones(3, dtype=dtype)
            try:
                op(x, x, alpha=alpha)
            except RuntimeError:
                _refused_in_graphs(lambda x, op=op: op(x, x, alpha=alpha), x)


@pytest.mark.parametrize("step", [0, -1])
def test_steps_of_slices(step: int, caplog: pytest.LogCaptureFixture) -> None:
    x = torch.ones(4, 3)
    _refused_in_graphs(lambda x: torch.slice_scatter(x, x, 0, 1, step=step), x)
    assert "failed" not in caplog.text


@pytest.mark.parametrize("p", [-1, 0])
def test_degrees_of_the_gamma_function(p: int) -> None:
    for x in (torch.rand(5) + 1, torch.arange(4), torch.rand(5).bfloat16()):
        _refused_in_graphs(lambda x: torch.mvlgamma(x, p), x)


NUMBERS: list[Callable[[Tensor, Any], Any]] = [
    lambda x, k: x.index_add(0, torch.tensor([1, 1], device=x.device), x[:2], alpha=k),
    lambda x, k: x.scatter(0, torch.tensor([1, 1], device=x.device), k, reduce="add"),
    lambda x, k: torch.addcmul(x, x, x, value=k),
    lambda x, k: torch._foreach_addcmul([x, x], [x, x], [x, x], [1, k]),
    lambda x, k: F.threshold(x, 1, k),
    lambda x, k: F.threshold(x, k, 1),
    lambda x, k: x**k,
    lambda x, k: torch.where(x > 1, x, k),
    lambda x, k: torch.addr(x[:, None], x, x[:1], alpha=k),
    lambda x, k: torch.linspace(0, k, 3, device=x.device, dtype=x.dtype),
    lambda x, k: x[:, None].clone().fill_diagonal_(k),
]
FRACTIONS: list[Callable[[Tensor, Any], Any]] = [
    lambda x, k: torch.lerp(x, x, k),
    F.leaky_relu,
    F.elu,
    F.celu,
    F.softplus,
    lambda x, k: F.softplus(x, 1, k),
    F.hardshrink,
    torch.logit,
    lambda x, k: aten.leaky_relu_backward(x, x, k, False),
    lambda x, k: aten.elu_backward(x, 1, k, 1, False, x),
    lambda x, k: aten.hardtanh_backward(x, x, -k, k),
    lambda x, k: aten.threshold_backward(x, x, k),
    lambda x, k: aten.softplus_backward(x, x, k, 1),
    lambda x, k: aten.hardshrink_backward(x, x, k),
    lambda x, k: aten.softshrink_backward(x, x, k),
    lambda x, k: aten.logit_backward(x, x, k),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("k", range(2 * len(NUMBERS) + len(FRACTIONS)))
def test_numbers_beyond_the_range_of_a_dtype(k: int) -> None:
    """Those that kernels convert to it, and not those that stand for a tensor."""
    whole = k < len(NUMBERS)
    x, number = torch.arange(3).to(torch.int8 if whole else torch.float32), 300 if whole else 1e300
    compute = (NUMBERS * 2 + FRACTIONS)[k]
    _as_on_the_cpu(lambda x: compute(x, number), x)


FILLS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, value: x.masked_fill(x > 0, value),
    lambda x, value: x.clone().masked_fill_(x > 0, value),
    lambda x, value: x.index_fill(0, torch.tensor([1], device=x.device), value),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        (torch.int8, torch.tensor(300)),
        (torch.uint8, torch.tensor(-0.5)),
        (torch.int32, torch.tensor(nan)),
        (torch.int32, torch.tensor(-(2**31) - 1)),
        (torch.float16, torch.tensor(-1e5)),
        (torch.float16, torch.tensor(70000)),
        (torch.bfloat16, torch.tensor(-1.7e308, dtype=torch.float64)),
        (torch.float32, torch.tensor(1e39, dtype=torch.float64)),
    ],
)
def test_tensors_that_fill_beyond_the_range_of_a_dtype(
    fill: Callable[..., Tensor], dtype: torch.dtype, wrong: Tensor
) -> None:
    """They once wrapped, or became infinite."""
    x = torch.tensor([1, 0, 3]).to(dtype)
    same_error_by_plans(fill, (x, wrong.new_ones(())), (x, wrong))
    right = [2, -inf, nan] if wrong.is_floating_point() and dtype.is_floating_point else [2, 0]
    for number in right:
        same_by_plans(fill, x, wrong.new_full((), number))


def test_a_source_without_dimensions() -> None:
    x, at, source = torch.randn(4), torch.tensor([0]), torch.tensor(2.0)
    _refused_in_graphs(lambda x, i, s: aten.index_add(x, 0, i, s), x, at, source)
    for reduce in ("prod", "mean", "amax", "amin"):
        _refused_in_graphs(
            lambda x, i, s, r=reduce: aten.index_reduce(x, 0, i, s, r), x, at, source
        )
    same_by_plans(lambda x, i, s: aten.index_add(x, 0, i, s), torch.tensor(1.0), at, source)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_truth_values_of_one_dimension_are_not_reduced(reduce: str) -> None:
    """Of several, slices are combined by ops that take them."""
    at = torch.tensor([1, 0, 1])
    function = lambda x, i, s: x.index_reduce(0, i, s, reduce)  # noqa: E731
    for x in (torch.tensor([True, False]), torch.tensor(True)):
        source = x.new_ones(3) if x.dim() else x
        _refused_in_graphs(function, x, at if x.dim() else at[1:2], source)
    if reduce != "mean":
        x = torch.rand(2, 3) > 0.5
        same_by_plans(function, x, at, torch.rand(3, 3) > 0.5)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: x.clone().uniform_(1, 0),
        lambda x: x.clone().uniform_(-3e38, 3e38),
        lambda x: x.clone().normal_(0, -1),
        lambda x: x.clone().cauchy_(0, 0),
        lambda x: x.clone().log_normal_(0, 0),
        lambda x: x.clone().exponential_(-1),
        lambda x: x.clone().geometric_(0),
        lambda x: x.clone().bernoulli_(1.5),
        lambda x: aten.native_dropout(x, 1.5, True)[0],
        lambda x: torch.randint(1 << 40, (3,), dtype=torch.int16, device=x.device),
        lambda x: torch.randint(3, 3, (3,), device=x.device),
    ],
)
def test_parameters_of_draws(draw: Callable[[Tensor], Tensor]) -> None:
    _refused_in_graphs(draw, torch.ones(3))


@pytest.mark.parametrize(
    "draw",
    [
        torch.bernoulli,
        lambda x: torch.normal(x, -x.abs() - 1),
        lambda x: torch.normal(0.0, x * nan),
        lambda x: torch.multinomial(-x.abs(), 1),
        lambda x: torch.multinomial(x * math.inf, 2, replacement=True),
        lambda x: torch.multinomial(x.clamp(0, 0), 1),
        lambda x: torch.multinomial(x.abs(), 0),
        lambda x: x[:0].uniform_(2, 1),
        lambda x: x[:0].bernoulli_(1.5),
    ],
)
@pytest.mark.parametrize("numbers", [[0.5, 2.0], [0.5, -1.0], [nan, 0.5]])
def test_parameters_that_are_tensors(draw: Callable[..., Tensor], numbers: list[float]) -> None:
    _refused_in_graphs(draw, torch.tensor(numbers, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_chances_are_fractions(dtype: torch.dtype) -> None:
    x = torch.ones(2, dtype=dtype)
    _refused_in_graphs(torch.bernoulli, x)
    draws: list[Callable[[Tensor], Tensor]] = [
        torch.bernoulli,
        lambda p: torch.rand(2, device=p.device).bernoulli_(p),
    ]
    for draw in draws:
        with pytest.raises(NotImplementedError):
            draw(x)
        with pytest.raises(NotImplementedError):
            draw(x.to("tenon"))


def test_exponential_numbers_are_fractions() -> None:
    for device in ("cpu", "tenon"):
        with pytest.raises(RuntimeError, match="continuous"):
            torch.ones(2, dtype=torch.int64, device=device).exponential_()


def test_chances_of_nothing_may_be_any() -> None:
    """The CPU's kernel does not look at what nothing is drawn by."""
    x, p = torch.zeros(0, device="tenon"), torch.tensor(1.25, device="tenon")
    assert compiled(aten.bernoulli.Tensor)(x, p).shape == (0,)


@pytest.mark.slow
def test_numbers_that_may_be_drawn_are() -> None:
    """What checks them lets them through, at the ends of their range too."""
    p = torch.tensor([0.0, 1.0, 0.0, 1.0], device="tenon")
    assert torch.equal(compiled(torch.bernoulli)(p), p)
    assert torch.equal(compiled(lambda x: torch.normal(x, torch.zeros_like(x)))(p), p)
    places = compiled(lambda x: torch.multinomial(x, 2, replacement=False))(p)
    assert sorted(places.tolist()) == [1, 3]


@pytest.mark.parametrize("dynamic", [False, True])
def test_assertions_of_a_graph(dynamic: bool) -> None:
    """An op without results is called for its errors."""

    def compute(x: Tensor) -> Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x + 1

    run = compiled(compute, dynamic)
    assert torch.equal(run(torch.ones(2, device="tenon")).cpu(), torch.full((2,), 2.0))
    with pytest.raises(RuntimeError, match="not positive"):
        _ = run(torch.zeros(2, device="tenon")).cpu()


NOTHING = [
    lambda w, i: F.embedding(i, w),
    lambda w, i: F.embedding(i, w, padding_idx=1),
    lambda w, i: w.index_select(0, i),
    lambda w, i: w.t().index_select(1, i),
    lambda w, i: w.view(3, 0, 1).index_select(0, i.int()),
    lambda w, i: w.index_reduce(0, i, w[:1], "amax"),
]


@pytest.mark.parametrize("k", range(len(NOTHING)))
@pytest.mark.parametrize("bad", [3, -1, 70])
def test_indices_of_no_elements(k: int, bad: int) -> None:
    """Kernels of these check their indices even where there is nothing to copy."""
    rows = torch.zeros(3, 0)
    same_error_by_plans(NOTHING[k], [rows, torch.tensor([1])], [rows, torch.tensor([bad])])


P = [[0.5, 0.25, 0.0], [1.0, 0.75, 0.5]]
ROWS = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
# What kernels look at before they compute: numbers that they take, and some that they refuse.
LOOKED_AT: list[tuple[Callable[..., Tensor], Any, Any]] = [
    (lambda x: F.binary_cross_entropy(x, x), P, [[0.5, 1.5], [0.5, 0.5]]),
    (lambda x: F.binary_cross_entropy(x, x, reduction="none"), P, [[nan], [0.5]]),
    (lambda x: F.binary_cross_entropy(x * 0, x, reduction="sum"), P, [[0.5, -0.5], [0.0, 0.0]]),
    (lambda i: F.multilabel_margin_loss(i * 0.5, i), [[1, -1, 0]], [[1, -1, 3]]),
    (lambda i: F.multilabel_margin_loss(i * 0.5, i), [[1, -1, 0]], [[1, -1, -2]]),
    (lambda i: F.multi_margin_loss(i.view(2, 1) * torch.ones(3).to(i.device), i), [0, 2], [0, 3]),
    (lambda i: F.max_unpool2d(i[None] * 0.5, i[None], [2, 2]), [[0, 5], [3, 1]], [[0, 5], [3, 99]]),
    (lambda i: F.max_unpool2d(i[None] * 0.5, i[None], [2, 2]), [[0, 5], [3, 1]], [[0, 5], [3, -1]]),
    (lambda i: F.embedding_bag(i * 0, torch.ones(2, 2).to(i.device), i), [0, 1, 2], [1, 1, 2]),
    (lambda i: F.embedding_bag(i * 0, torch.ones(2, 2).to(i.device), i), [0, 1, 2], [0, 1, 4]),
    (lambda i: F.embedding_bag(i * 0, torch.ones(2, 2).to(i.device), i), [0, 1, 2], [0, 2, 1]),
    (lambda i: F.embedding_bag(i, torch.ones(2, 2).to(i.device), i * 0), [0, 1, 1], [0, 1, 2]),
    (lambda i: torch.searchsorted(i * 0.5, i * 0.5, sorter=i), [0, 1, 2], [0, 1, 3]),
    (lambda i: torch.searchsorted(i * 0.5, i * 0.5, sorter=i), [0, 1, 2], [0, -1, 2]),
    (
        lambda i: torch.zeros(3).to(i.device).masked_scatter(i > 0, i[:2] * 0.5),
        [1, 0, 1],
        [1, 1, 1],
    ),
]


@pytest.mark.parametrize("k", range(len(LOOKED_AT)))
def test_numbers_that_kernels_look_at(k: int) -> None:
    compute, good, bad = LOOKED_AT[k]
    same_error_by_plans(compute, [torch.tensor(good)], [torch.tensor(bad)])


X, Y, AT = torch.arange(9.0).view(3, 3), torch.ones(3, 3, dtype=torch.float64), torch.tensor([0, 2])
# What kernels refuse for dtypes and sizes that PyTorch's tracing takes.
MISMATCHES: list[tuple[Callable[..., Any], list[Any]]] = [
    (torch.mm, [X, Y]),
    (torch.mm, [X, Y.half()]),
    (lambda x, y: torch.bmm(x[None], y[None]), [X, Y]),
    (torch.mv, [X, Y[0]]),
    (F.linear, [X, Y]),
    (lambda c, x: torch.addmm(c, x, x), [X.half(), X]),
    (lambda c, x: torch.baddbmm(c[None], x[None], x[None]), [X.half(), X]),
    (lambda x, i, y: x.index_put((i,), y[:2]), [X, AT, Y]),
    (lambda x, i, y: x.index_put((i,), y[:2], accumulate=True), [X, AT, Y]),
    (lambda x, i, y: x.index_add(0, i, y[:2]), [X, AT, Y]),
    (lambda x, i, y: x.index_copy(0, i, y[:2]), [X, AT, Y]),
    (lambda x, i, y: x.index_reduce(0, i, y[:2], "amax"), [X, AT, Y]),
    (lambda x, i, y: x.put(i, y[0, :2]), [X, AT, Y]),
    (lambda x, w: F.layer_norm(x, (3,), w[0], w[0]), [X, Y]),
    (lambda x, w: F.layer_norm(x, (3,), w[0], w[0]), [X, Y.half()]),
    (lambda x, w: F.group_norm(x, 3, w[0], w[0]), [X, Y]),
    (torch.cdist, [X, Y.half()]),
    (lambda x, y: F.grid_sample(x[None, None], y[None, None, :, :2]), [X, Y]),
    (F.binary_cross_entropy, [X / 9, Y]),
    (
        lambda w, i, p: F.embedding_bag(i, w, i[:1], mode="sum", per_sample_weights=p),
        [X, AT, Y[0, :2]],
    ),
    (lambda x, i: x.index_select(0, i), [X, AT.short()]),
    (lambda x, i: x.index_select(0, i), [X, AT[None]]),
    (lambda x, i: x.index_reduce(0, i, x[:2], "amax"), [X, AT[None]]),
    (lambda x, i: x.index_fill(0, i, 1.0), [X, AT.int()]),
    (lambda x, i: x.index_copy(0, i, x[:2]), [X, AT.int()]),
    (lambda x, i: x.put(i, x[0, :2]), [X, AT.int()]),
    (lambda x, i: x.put(i, x[0]), [X, AT]),
    (lambda x, i: x.index_put((i,), x), [X, AT]),
    (lambda x, y: x.index_put((y[0] > 0,), y[0, 0]), [X[:2], X]),
    (lambda x, y: x.index_put((y[0] > 0,), y[0, 0]), [torch.cat([X, X]), X]),
    (lambda x, y: x.index_put((y[:, :1] > 0,), y[0, 0]), [X, X]),
    (lambda x, y: x.index_put((y[None] > 0,), y[0, 0]), [X, X]),
    (lambda x, y: x.clone().masked_fill_(y[0, :2] > 0, 1), [X, X]),
    (
        lambda g, i: aten.embedding_dense_backward(g, i, 4, -1, False),
        [X, torch.tensor([0, 2, 1, 0])],
    ),
    (lambda x, i: x[i], [X[:0], AT]),
    (lambda x, i: x[:, i], [X[:, :0], AT]),
    (lambda x, i: x[i[:, None], i], [X[:, :0], AT]),
    (lambda w, i: F.embedding(i, w), [X[:0], AT]),
    (lambda w, i: F.embedding_bag(i, w, i[:1]), [X[:0], AT]),
    (lambda x, i: x.index_select(1, i), [X[:, :0], AT]),
    (lambda x, i: x.gather(1, i[:, None]), [X[:2, :0], AT]),
    (lambda x, i: x.take(i), [X[:0], AT]),
    (lambda x: torch.searchsorted(x, x, side="middle"), [X]),
    (lambda x: torch.searchsorted(x, x), [X > 4]),
    (lambda x: aten.searchsorted.Scalar(x[0], complex(0.5, 1)), [X]),
    (lambda x, at: torch.searchsorted(x, x, sorter=at), [X[0, :2], AT.int()]),
    (lambda x, at: torch.searchsorted(x, x, sorter=at), [X[0, :2], AT.bool()]),
    (lambda x: torch.bucketize(x, x), [X]),
    (lambda x: torch.bucketize(1.5, x), [X]),
    (F.relu, [X > 4]),
    (torch.argmax, [X > 4]),
    (lambda x: 1 - x, [X > 4]),
    (lambda x, i: x.index_reduce(0, i, x[:2], "amax", include_self=False), [X > 4, AT]),
    (lambda x, i: x.index_reduce(0, i, x[:2], "mean"), [X > 4, AT]),
]


@pytest.mark.parametrize("k", range(len(MISMATCHES)))
def test_dtypes_and_sizes_that_do_not_fit(k: int) -> None:
    compute, given = MISMATCHES[k]
    with pytest.raises(Exception):  # noqa: B017
        compute(*given)
    with pytest.raises(Exception):  # noqa: B017
        compiled(compute)(*on_tenon(given))


IMAGE_OPS: dict[str, Callable[[Tensor], Any]] = {
    "nearest": lambda x: F.interpolate(x, scale_factor=2.0),
    "nearest exact": lambda x: F.interpolate(x, scale_factor=1.5, mode="nearest-exact"),
    "nearest 1d": lambda x: F.interpolate(x[0], scale_factor=1.5),
    "nearest 3d": lambda x: F.interpolate(x[None], scale_factor=1.5),
    "unfold": lambda x: F.unfold(x, 2),
    "fold": lambda x: F.fold(x.reshape(1, 8, 6), (3, 4), 2),
    "glu": F.glu,
    "average": lambda x: F.avg_pool2d(x, 2),
    "average 3d": lambda x: F.avg_pool3d(x[None], (1, 2, 2)),
    "adaptive": lambda x: F.adaptive_max_pool2d(x, 2),
    "greatest": lambda x: F.max_pool2d(x, 2),
    "fractional": lambda x: F.fractional_max_pool2d(
        x, 2, output_size=2, _random_samples=x.new_zeros(1, 2, 2)
    ),
    "unpooled": lambda x: F.max_unpool2d(
        x, torch.arange(24, device=x.device).view(1, 1, 4, 6).repeat(1, 2, 1, 1), 1, 1
    ),
    "reflected": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "sampled": lambda x: F.grid_sample(x, x[:, 0, :, :2, None].expand(1, 4, 2, 2)),
}
WHOLE = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", IMAGE_OPS)
@pytest.mark.parametrize("dtype", [*WHOLE, torch.complex64])
@pytest.mark.filterwarnings("ignore:Default grid_sample")
def test_images_of_whole_numbers(name: str, dtype: torch.dtype) -> None:
    """Those that PyTorch's kernel has are computed, and no others."""
    x, compute = torch.arange(48).view(1, 2, 4, 6).to(dtype), IMAGE_OPS[name]
    _as_on_the_cpu(compute, x)


FILLS: list[Callable[[Tensor, Any], Tensor]] = [
    torch.full_like,
    lambda x, k: torch.full((3,), k, dtype=x.dtype, device=x.device),
    lambda x, k: F.pad(x, (1, 1), value=k),
    lambda x, k: x.masked_fill(x.bool(), k),
    lambda x, k: x.scatter(0, torch.tensor([1, 2], device=x.device), k),
    lambda x, k: x.index_fill(0, torch.tensor([1, 2], device=x.device), k),
]


BYTES, WIDER = [torch.uint8, torch.int8], [torch.uint16, torch.uint64]
FILLED = [(d, k) for k in range(len(FILLS)) for d in (BYTES + WIDER if k < 3 else BYTES)]


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(("dtype", "k"), FILLED)
def test_numbers_that_a_dtype_has_not(dtype: torch.dtype, k: int) -> None:
    """A whole number below 0 wraps where there is none, a fraction is refused."""
    x = torch.arange(5).to(dtype)
    for number in (-0.5, -0.0, 0.7, -1, -1.0, -1.5, -200, -255.5, 255.9, 256, 300.7, -128.5):

        def compute(x: Tensor, number: Any = number) -> Tensor:
            return FILLS[k](x, number)

        _as_on_the_cpu(compute, x)


def test_a_refused_number_spoils_its_own_results_alone() -> None:
    def compute(x: Tensor) -> list[Tensor]:
        return [x + 1, F.binary_cross_entropy(x, x), x * 2]

    with executing("compiled"):
        for _ in range(2):
            compute(torch.rand(3, device="tenon"))
        before, loss, after = compute(torch.full((3,), 2.0, device="tenon"))
        assert before.tolist() == [3, 3, 3] and after.tolist() == [4, 4, 4]
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            loss.item()


def test_a_negative_beta_of_a_loss() -> None:
    x = torch.arange(3.0)
    for beta in (-1.0, nan):
        _refused_in_graphs(lambda x, beta=beta: F.smooth_l1_loss(x, x + 1, beta=beta), x)


def test_dropout_that_is_not_told_trains() -> None:
    run = compiled(lambda x: aten.native_dropout(x, 0.5, None)[1])
    assert 300 < int(run(torch.ones(1000, device="tenon")).sum()) < 700


def test_bits_of_fractions_are_refused() -> None:
    """By the error of the CPU's kernel, and with a plan for the rest of the window."""
    run = compiled(lambda x: (x + 1) & x)
    with pytest.raises((RuntimeError, NotImplementedError)):
        run(torch.ones(3, device="tenon"))


@pytest.mark.slow
def test_dtypes_that_have_none_in_common(caplog: pytest.LogCaptureFixture) -> None:
    """That is no fault of a lowering's."""
    x, y = torch.tensor([3], dtype=torch.int16), torch.tensor([5], dtype=torch.uint64)
    with caplog.at_level(logging.WARNING, "torch_tenon.program"):
        for op in (torch.add, torch.maximum, torch.clamp_min, torch.eq):
            _refused_in_graphs(op, x, y)
        for other in (x, x > 3, x + 1j):
            _refused_in_graphs(lambda x, y: torch.where(x == x, x, y), other, y)
    assert "failed" not in caplog.text


def test_an_index_into_nothing_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The lowering of a gradient without elements cannot write, and its call writes nothing."""

    def compute(g: Tensor) -> Tensor:
        return aten.replication_pad1d_backward(g, g.new_zeros(7, 2, 0), [1, 1])

    with caplog.at_level(logging.WARNING, "torch_tenon.program"):
        same_by_plans(compute, torch.ones(7, 2, 2))
    assert "failed" not in caplog.text


def test_the_spread_of_one_number_to_a_channel_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def compute(x: Tensor, w: Tensor) -> Any:
        return aten._native_batch_norm_legit_functional(x, w, w, w, w, True, 0.5, 1e-3)

    with caplog.at_level(logging.WARNING, "torch_tenon.program"), executing("compiled"):
        for dtype in (torch.float32, torch.bfloat16):
            given = torch.randn(1, 5).to(dtype), torch.rand(5).to(dtype)
            for _ in range(3):  # PyTorch's own trace divides by 0
                assert_same(compute(*on_tenon(given)), compute(*given))
    assert "failed" not in caplog.text


@pytest.mark.parametrize("p", [-1.0, -inf, nan])
def test_powers_that_distances_between_all_rows_refuse(
    p: float, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.rand(4, 5)
    with caplog.at_level(logging.WARNING, "torch_tenon.program"):
        same_by_plans(lambda x: aten._pdist_forward(x, p), x, rtol=1e-6)
    assert "failed" not in caplog.text


OF_NUMBERS: list[Callable[[Tensor], Tensor]] = [
    *(torch.floor, torch.ceil, torch.trunc, torch.round, torch.abs, torch.frac),
    *(lambda x: torch.gcd(x, x), lambda x: torch.lcm(x, x), lambda x: torch.pow(x, x)),
    *(lambda x: torch.pow(x, True), lambda x: torch.pow(x, False), lambda x: torch.pow(True, x)),
    *(lambda x: torch.hypot(x, x), lambda x: torch.nextafter(x, x), torch.sign, torch.square),
    lambda x: torch.trace(x.view(1, 3)),
    *(F.mish, F.softplus, F.hardswish, F.hardsigmoid, F.hardshrink, F.softshrink, F.logsigmoid),
    *(lambda x: torch.logaddexp(x, x), lambda x: torch.logaddexp2(x, x)),
    *(lambda x: torch.lerp(x, x, 0.5), lambda x: torch.addcmul(x, x, x)),
    *(lambda x: F.threshold(x, 1, 0), lambda x: F.smooth_l1_loss(x, x)),
    lambda x: F.huber_loss(x, x),
    lambda x: torch.linspace(0, 3, 4, dtype=x.dtype, device=x.device),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("k", range(len(OF_NUMBERS)))
def test_ops_that_are_for_fractions_or_numbers(k: int) -> None:
    for x in (torch.tensor([True, False, True]), torch.tensor([2, 1, 3])):
        _as_on_the_cpu(OF_NUMBERS[k], x)


def _at(x: Tensor) -> Tensor:
    return torch.tensor([0, 2], device=x.device)


OF_UNSIGNED: list[Callable[[Tensor], Any]] = [
    *(lambda x: x + x, lambda x: x + 1, lambda x: x - x, lambda x: 1 - x, lambda x: -x, torch.abs),
    *(lambda x: x // 2, lambda x: x % 2, lambda x: torch.fmod(x, x), lambda x: x**2, torch.square),
    *(lambda x: torch.maximum(x, x), lambda x: x.clamp(1, 2), lambda x: x.amax(0), torch.argmax),
    *(lambda x: x > 1, lambda x: x << 1, lambda x: x >> 1, torch.bitwise_not, torch.logical_not),
    *(torch.tril, torch.trace, torch.diff, torch.count_nonzero, lambda x: torch.isin(x, x)),
    *(lambda x: x.gather(0, _at(x)[:, None]), lambda x: x.take(_at(x)), lambda x: x.cummax(0)),
    *(lambda x: x.scatter(0, _at(x)[:, None], 1), lambda x: x.index_add(0, _at(x), x[:2])),
    *(lambda x: x.masked_fill(x == 1, 1), lambda x: torch.where(x == 1, x, x), lambda x: x @ x),
    *(
        lambda x: torch.gcd(x, x),
        lambda x: F.threshold(x, 1, 0),
        lambda x: F.max_pool2d(x[None], 2),
    ),
    *(lambda x: torch._foreach_add([x], [x]), lambda x: torch.searchsorted(x, x)),
    lambda x: torch.arange(3, dtype=x.dtype, device=x.device),
    lambda x: torch.eye(3, dtype=x.dtype, device=x.device),
    # What the CPU computes
    *(lambda x: x * x, lambda x: x * 3, lambda x: x == 1, lambda x: x & 1, lambda x: x ^ x),
    *(lambda x: torch.cat([x, x]), lambda x: x.flip(0), lambda x: x[_at(x)], lambda x: x.float()),
    *(lambda x: x.long() - 2, lambda x: (x.float() * 1.5).to(x.dtype), lambda x: x.t().clone()),
    *(lambda x: x / 2, lambda x: x.sum(), lambda x: x.cumsum(0), torch.sqrt, lambda x: x.bool()),
    *(lambda x: F.pad(x, (1, 1), value=1), lambda x: x.index_select(0, _at(x)), torch.ones_like),
    *(lambda x: x.roll(1, 0), lambda x: x.repeat(2, 1), lambda x: x.new_full((2,), 3), torch.any),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
@pytest.mark.parametrize("k", range(len(OF_UNSIGNED)))
def test_ops_on_whole_numbers_without_sign(k: int, dtype: torch.dtype) -> None:
    _as_on_the_cpu(OF_UNSIGNED[k], torch.tensor([[0, 1, 2], [3, 1, 0], [1, 2, 7]]).to(dtype))


@pytest.mark.parametrize("loss", [F.soft_margin_loss, F.smooth_l1_loss])
def test_gradients_of_a_mean_of_nothing_are_no_fault(
    loss: Callable[..., Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """Decompositions divide by how many elements there are."""
    with caplog.at_level(logging.WARNING, "torch_tenon.program"):
        same_gradients(lambda x: loss(x, torch.ones_like(x)), torch.empty(0, 3))
    assert "failed" not in caplog.text
