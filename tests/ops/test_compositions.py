"""Optimizers and lists of tensors inside compiled graphs, against PyTorch's CPU."""

from __future__ import annotations

import copy
import itertools
import logging
from typing import Any

import pytest
import torch
from against_cpu import assert_same, executing, same_on_both
from torch.nn import functional as F

from tests.ops.lowerings.by_plan import same_by_plans
from torch_tenon import _C, custom_op
from torch_tenon.testing.fuzz.worker import PlanFailures

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


OPTIMIZERS: dict[str, Any] = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, amsgrad=True, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
}


@pytest.mark.parametrize("steps", [1, 2, 5, 6, 9])
def test_the_middle_of_a_progression_is_counted_from_its_end(steps: int) -> None:
    """It shows where one end is infinite."""
    inf = float("inf")

    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        ends = [(0.0, -inf), (inf, 1.0), (-2.0, inf), (0.5, 3.5)]
        of_numbers = [torch.linspace(a, b, steps, device=x.device) for a, b in ends]
        of_powers = [torch.logspace(a, b, steps, 2.0, device=x.device) for a, b in ends]
        complex_ = torch.linspace(0, 1 + 2j, steps, device=x.device, dtype=torch.complex64)
        return [x.sum() + y for y in (*of_numbers, *of_powers, complex_)]

    same_by_plans(compute, torch.zeros(2), rtol=1e-6)


@pytest.mark.parametrize("steps", [0, 1, 2, 5, True])
@pytest.mark.parametrize("ends", ["Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor"])
def test_progressions_between_tensors_have_plans(ends: str, steps: int) -> None:
    op = getattr(aten.linspace, f"{ends}_out")

    def compute(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, last = ends.split("_")
        given = x if first == "Tensor" else 0.5, y if last == "Tensor" else 3
        found = x.new_empty(int(steps), dtype=torch.float32)
        op(*given, steps, out=found)
        return found

    same_in_windows_with_plans(compute, torch.tensor(0.25), torch.tensor(2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("periodic", [True, False])
def test_a_window_of_16_bit_numbers_is_rounded_at_each_step(
    dtype: torch.dtype, periodic: bool
) -> None:
    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        how = {"dtype": dtype, "device": x.device}
        return [x * torch.hann_window(n, periodic, **how) for n in (0, 1, 2, 17, 64)]

    want = compute(torch.ones((), dtype=dtype))
    got = torch.compile(compute, backend="tenon")(torch.ones((), dtype=dtype, device="tenon"))
    assert_same(got, want, atol=0 if dtype.itemsize == 2 else torch.finfo(dtype).eps)


def test_a_window_of_whole_numbers_is_refused_in_a_graph() -> None:
    compute = torch.compile(lambda x: x + torch.hann_window(3, dtype=x.dtype, device=x.device))
    with pytest.raises(Exception, match="expects floating point dtypes"):
        compute(torch.ones(3, dtype=torch.int64, device="tenon"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("sizes", [(2, 2), (1, 4), (2, 1, 2)])
def test_progressions_keep_the_sizes_of_as_many_elements(dtype: Any, sizes: Any) -> None:
    def compute(x: torch.Tensor) -> list[torch.Tensor]:
        fresh = [torch.ones_like(x) for _ in range(4)]
        torch.linspace(0, 3, 4, out=fresh[0])
        torch.logspace(0, 3, 4, 2.0, out=fresh[1])
        torch.arange(1, 9, 2, out=fresh[2])
        torch.arange(4, out=fresh[3])
        return fresh

    x = torch.zeros(sizes, dtype=dtype)
    with executing("compiled"):
        for _ in range(3):
            assert_same(compute(x.to("tenon")), compute(x), 1e-2 if dtype.is_floating_point else 0)


def same_in_windows_with_plans(compute: Any, *given: torch.Tensor) -> None:
    failures, log = PlanFailures(), logging.getLogger("torch_tenon.program")
    log.addHandler(failures)
    want = compute(*given)
    with executing("compiled"):
        for _ in range(3):
            assert_same(compute(*(x.to("tenon") for x in given)), want, 1e-6)
    log.removeHandler(failures)
    assert not failures.found


def test_windows_with_numbers_of_8_bits_have_plans() -> None:
    """There are no loops over these: what takes them is a call, and no fault of a lowering."""

    def compute(x: torch.Tensor) -> Any:
        parts = [x.select_scatter(x[0], 0, 1), x.slice_scatter(x[1:3], 0, 0, 2)]
        parts += [x.as_strided_scatter(x[:2], (2,), (2,)), torch.where(x.float() > 0, x, x)]
        return [torch.isin(x, 1.0), x.float() * 2, *(part.float() for part in parts)]

    for dtype in (torch.float8_e5m2fnuz, torch.float8_e4m3fn):
        same_in_windows_with_plans(compute, torch.tensor([1.0, 2.0, -0.5, 0.0]).to(dtype))


def test_windows_with_gradients_of_nothing_have_plans() -> None:
    """PyTorch's decompositions divide by how many elements there are."""
    mask, shape = [True, True, True], (5, 3, 0)

    def of_batches(x: torch.Tensor, ones: torch.Tensor) -> Any:
        op = aten.native_batch_norm_backward
        return [*op(x, x, ones, ones, ones, ones, ones, True, 0.1, mask), ones * 2]

    def of_groups(x: torch.Tensor, ones: torch.Tensor) -> Any:
        means = ones[:1].expand(x.shape[0], 1).contiguous()
        op = aten.native_group_norm_backward
        return [*op(x, x, means, means, ones, shape[0], 3, shape[2], 1, mask), ones * 2]

    def of_exponentials(x: torch.Tensor, ones: torch.Tensor) -> Any:
        return [torch.logsumexp(x.to(d), -1).float() for d in (torch.half, x.dtype)]

    def of_windows(x: torch.Tensor, ones: torch.Tensor) -> Any:
        image, samples = ones.expand(1, 5, 3) + 0, ones[:2].view(1, 1, 2) / 4
        found = aten.fractional_max_pool2d(image, [0, 2], [3, 1], samples)
        return [found[0], ones * 2]

    computations = [of_batches, of_groups, of_exponentials]
    try:
        of_windows(torch.zeros(shape), torch.ones(3))
        computations.append(of_windows)
    except RuntimeError:
        pass  # newer releases of PyTorch refuse windows of nothing
    for compute in computations:
        same_in_windows_with_plans(compute, torch.zeros(shape), torch.ones(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps(name: str) -> None:
    start = [torch.randn(5, 3), torch.randn(7)]
    grads = [[torch.randn_like(p) for p in start] for _ in range(3)]
    results = []
    for device in ("cpu", "tenon"):
        parameters = [torch.nn.Parameter(p.to(device, copy=True)) for p in start]
        optimizer = OPTIMIZERS[name](parameters)
        step = optimizer.step
        if device == "tenon":
            step = torch.compile(step, backend="tenon")
        for row in grads:
            for p, g in zip(parameters, row, strict=True):
                p.grad = g.to(device)
            step()
        results.append([p.detach().cpu() for p in parameters])
    torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-6)


def test_a_call_that_gives_several_lists() -> None:
    options = {"lr": 0.5, "lr_decay": 0.1, "weight_decay": 0.0, "eps": 1e-3, "maximize": False}

    def step(x: torch.Tensor, g: torch.Tensor, sums: torch.Tensor, count: torch.Tensor) -> Any:
        lists = aten._fused_adagrad([x, x * 2], [g] * 2, [sums] * 2, [count] * 2, **options)
        return [t + 1 for t in lists[0]], lists[2]

    given = [torch.rand(3) + 0.5 for _ in range(3)] + [torch.tensor(2.0)]
    found = torch.compile(step, backend="tenon")(*(x.to("tenon") for x in given))
    assert_same(found, step(*given), 1e-6)


def test_lists_of_tensors() -> None:
    def several(x: list[torch.Tensor], y: list[torch.Tensor]) -> list[torch.Tensor]:
        x = torch._foreach_add(x, y, alpha=2)
        x = torch._foreach_addcdiv(x, y, y, 0.5)
        torch._foreach_mul_(x, [1.5, 2.0])
        torch._foreach_maximum_(x, 0.1)
        return [*torch._foreach_sqrt(x), *torch._foreach_norm(x), *torch._foreach_lerp(x, y, 0.3)]

    x, y = ([torch.rand(4, 3), torch.rand(5)] for _ in range(2))
    got = torch.compile(several, backend="tenon")(
        [t.to("tenon") for t in x], [t.to("tenon") for t in y]
    )
    torch.testing.assert_close([t.cpu() for t in got], several(x, y))


def test_random_permutation_and_choice() -> None:
    def draw(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.randperm(50, device=weights.device)
        return order, torch.multinomial(weights, 4)

    order, chosen = torch.compile(draw, backend="tenon")(
        torch.tensor([0.0, 1, 2, 3, 4], device="tenon")
    )
    assert sorted(order.tolist()) == list(range(50))
    assert sorted(chosen.tolist()) == [1, 2, 3, 4]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("sizes", [(5,), (7, 5), (3, 5, 4, 2)])
def test_gradients_of_a_likelihood(
    sizes: tuple[int, ...], reduction: str, weighted: bool, compiled: None
) -> None:
    x = torch.randn(sizes)
    target = torch.randint(5, (sizes[0], *sizes[2:]) if len(sizes) > 1 else ())
    weights = torch.rand(5) if weighted else None
    if target.numel() > 2:
        target.view(-1)[1] = -100

    def compute(device: torch.device) -> torch.Tensor:
        leaf = x.to(device).requires_grad_()
        loss = F.nll_loss(
            leaf.log_softmax(1 if len(sizes) > 1 else 0),
            target.to(device),
            None if weights is None else weights.to(device),
            reduction=reduction,
        )
        (gradient,) = torch.autograd.grad(loss.sum() * 3, leaf)
        return gradient

    for _ in range(2):  # the first call of an op runs at once
        same_on_both(compute, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32])
@pytest.mark.parametrize(("limit", "value"), [(-0.25, 3), (0.7, 2.5), (True, 7)])
def test_a_threshold_is_of_the_inputs_dtype(dtype: torch.dtype, limit: Any, value: Any) -> None:
    x = torch.randint(0, 4, (50,)).to(dtype)
    found: list[Any] = []
    with executing("compiled"):
        for device in ("cpu", "tenon", "tenon"):  # the first call of an op runs at once
            try:
                found.append(F.threshold(x.to(device), limit, value).cpu())
            except RuntimeError as error:
                found.append(type(error))
    for got in found[1:]:
        if isinstance(found[0], torch.Tensor):
            torch.testing.assert_close(got, found[0], rtol=0, atol=0)
        else:
            assert got is found[0]


@pytest.mark.parametrize("shrink", [F.softshrink, F.hardshrink])
def test_the_gradient_of_what_is_no_number_is_nothing(shrink: Any) -> None:
    x = torch.tensor([torch.nan, 1.0, 0.25, -torch.inf] * 8)  # whole vectors

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(shrink(x).sum(), x)
        return found

    with executing("compiled"):
        got = [gradient(x.to("tenon")).cpu() for _ in range(2)][-1]
    torch.testing.assert_close(got, gradient(x))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (1, 1)], ids=str)
def test_labels_end_at_the_first_that_is_negative(shape: tuple[int, ...]) -> None:
    labels = torch.tensor([[3, 0, -1, 1], [-1, 2, 2, 2], [0, 1, 2, 3]])[
        : shape[0] if shape[1:] else 1
    ]
    target = labels[:, : shape[-1]].clamp(max=shape[-1] - 1).reshape(shape)

    def compute(device: torch.device) -> list[torch.Tensor]:
        x = torch.linspace(-1, 2, target.numel(), device=device).reshape(shape).requires_grad_()
        found = []
        for reduction in ("none", "mean", "sum"):
            for _ in range(3):  # by a plan from the second time on
                loss = F.multilabel_margin_loss(x, target.to(device), reduction=reduction)
                (gradient,) = torch.autograd.grad(loss.sum(), x)
                found += [loss, gradient]
        return found

    with executing("compiled"):
        same_on_both(compute, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["_fused_adam_", "_fused_adamw_"])
def test_the_first_steps_of_a_fused_optimizer(op: str, dtype: torch.dtype, compiled: None) -> None:
    """They divide by 1 - beta^step, which has few digits of beta^step left where beta is near 1."""
    torch.manual_seed(3)
    given = [torch.randn(64, dtype=dtype) for _ in range(2)]

    def trained(device: str, beta: float) -> list[torch.Tensor]:
        p, g, m, v, top = (
            t.to(device, copy=True) for t in (torch.zeros_like(given[0]), given[0], *given[1:] * 3)
        )
        v, top, step = v.square(), torch.zeros_like(top), torch.tensor(0.0, device=device)
        for _ in range(3):
            step += 1
            getattr(torch, op)(
                [p], [g], [m], [v], [top], [step], lr=0.25, beta1=0.0 if beta == 0 else 0.9,
                beta2=beta, weight_decay=0.01, eps=1e-8, amsgrad=True, maximize=False,
            )  # fmt: skip
        return [p.cpu(), m.cpu(), v.cpu(), top.cpu()]

    # The CPU subtracts in float64, and so loses as many digits itself there.
    exact = 2**-52 / (1 - 0.9999) if dtype is torch.float64 else 4 * torch.finfo(dtype).eps
    for beta in (0.999, 0.9999, 0.0):
        for _ in range(2):
            found = trained("tenon", beta)
        torch.testing.assert_close(found, trained("cpu", beta), rtol=exact, atol=exact / 16)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_gradients_of_views_are_broadcast(shape: tuple[int, ...]) -> None:
    """As the CPU's copy into the view does, where they are smaller than that."""
    aten = torch.ops.aten

    def views(g: torch.Tensor) -> list[torch.Tensor]:
        found = [
            aten.slice_backward(g, [3, 4], 1, 1, 4, 2),
            aten.slice_backward(g, [3, 4], 0, 2, 1, 1),
        ]
        if g.dim() < 2:
            found += [
                aten.select_backward(g, [3, 4], 0, -1),
                aten.diagonal_backward(g, [3, 4], 1, 0, 1),
            ]
        return found

    g = torch.full(shape, 2.0)
    want = views(g)
    with executing("compiled"):
        for _ in range(3):
            got = views(g.to("tenon"))
            torch.testing.assert_close([x.cpu() for x in got], want)
    got = torch.compile(views, backend="tenon")(g.to("tenon"))
    torch.testing.assert_close([x.cpu() for x in got], want)


@pytest.mark.parametrize("offset", [-(2**62), 2**62, 2**31])
def test_a_gradient_of_a_diagonal_far_outside(offset: int) -> None:
    def at_diagonal(g: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.diagonal_backward(g, [3, 0, 4], offset, 0, 1)

    g = torch.zeros(1, 0)
    got = torch.compile(at_diagonal, backend="tenon")(g.to("tenon"))
    torch.testing.assert_close(got.cpu(), at_diagonal(g))


def test_truth_values_are_numbers_to_calls() -> None:
    """Of ops that no loops compute, in windows."""
    x, at = torch.zeros(3, dtype=torch.complex128), torch.tensor([1])

    def filled(x: torch.Tensor, at: torch.Tensor) -> list[torch.Tensor]:
        return [
            torch.index_fill(x, 0, at, True),
            torch.renorm(x.real.view(1, 3), True, 0, True),
            *torch._foreach_pow([x, x], [True, 2.0]),
        ]

    with executing("compiled"):
        for _ in range(3):
            got = filled(x.to("tenon"), at.to("tenon"))
            torch.testing.assert_close([y.cpu() for y in got], filled(x, at))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_fused_steps_of_16_bit_parameters(dtype: torch.dtype, options: dict[str, Any]) -> None:
    """They are those that are not fused: the CPU's fused ones store nothing."""
    start, grads = torch.randn(100).to(dtype), [torch.randn(100).to(dtype) for _ in range(3)]
    found = []
    for device, fused in (("cpu", False), ("tenon", True)):
        for mode in ("reference", "compiled"):
            parameter = torch.nn.Parameter(start.clone().to(device))
            optimizer = torch.optim.SGD([parameter], lr=0.1, fused=fused, **options)
            with executing(mode):
                for g in grads:
                    parameter.grad = g.to(device)
                    optimizer.step()
                found.append(parameter.detach().cpu())
    for mine in found[2:]:
        assert_same(mine, found[0], rtol=4 * torch.finfo(dtype).eps, atol=0.01)


def test_a_tensor_that_is_in_a_list_twice() -> None:
    """It is written twice, one after the other."""

    def compute(x: torch.Tensor) -> torch.Tensor:
        torch._foreach_sub_([x, x], [1, 0])
        torch._foreach_mul_([x, x], 3)
        return x

    same_by_plans(lambda x: compute(x.clone()), torch.arange(3.0))


def _part(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made[0] = 7
    made[:, 1].mul_(3)
    return made


def _whole(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    row = made[0]
    made.add_(1)
    return row + made


def _flat(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    made.view(-1)[::2].zero_()
    return made


def _alone(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).add_(1).mul_(x)


@pytest.mark.slow
@pytest.mark.parametrize("composed", [_part, _whole, _flat, _alone])
def test_a_decomposition_that_writes_what_it_made(composed: Any) -> None:
    """Views of it see that."""
    op = custom_op(
        f"tenon_test::writes{composed.__name__}(Tensor x) -> Tensor", decomposition=composed
    )(torch.empty_like)
    x = torch.randn(4, 6)
    with executing("compiled"):
        for _ in range(3):
            assert_same(op(x.to("tenon")) + 1, composed(x) + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_norms_of_slices_that_are_single_numbers(dtype: torch.dtype) -> None:
    """A vector's slices have no other dimensions to be summed up over."""
    vector, g, matrix = (torch.randn(s, dtype=dtype) for s in ((5,), (5,), (5, 3)))
    for dim, v in ((0, vector), (0, matrix), (1, matrix)):
        size = g if v is vector else torch.randn(5, 1) if dim == 0 else torch.randn(1, 3)
        size = size.to(dtype)
        same_by_plans(
            lambda v, g, dim=dim: torch.ops.aten._weight_norm_interface(v, g, dim),
            v,
            size,
            rtol=1e-2 if dtype is torch.bfloat16 else 1e-6,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_norms_of_slices_by_a_vector(dtype: torch.dtype) -> None:
    """PyTorch's kernel reads the numbers one after the other. By its rules for shapes those of
    rows would count for columns, where there are as many."""
    v = torch.randn(4, 4, dtype=dtype)
    for size in ((4,), (4, 1)):
        same_by_plans(
            lambda v, g: torch.ops.aten._weight_norm_interface(v, g, 0)[0],
            v,
            torch.randn(size, dtype=dtype),
            rtol=1e-2 if dtype is torch.float16 else 1e-6,
        )


@pytest.mark.parametrize("affine", [True, False])
def test_norms_that_add_nothing_to_a_variance(affine: bool) -> None:
    """In use, compiled: of a variance of 0 the infinities and NaN of the CPU's kernel."""
    model = torch.nn.BatchNorm2d(4, eps=0.0, affine=affine).eval()
    assert model.running_var is not None and model.running_mean is not None
    model.running_var.copy_(torch.tensor([0.0, 1, 2, 0]))
    model.running_mean.copy_(torch.tensor([0.0, 1, 2, 3]))
    there = copy.deepcopy(model).to("tenon")
    x = torch.randn(2, 4, 3, 3)
    x[0, 0] = 0
    with torch.no_grad():
        assert_same(torch.compile(there, backend="tenon")(x.to("tenon")), model(x), 1e-6, 1e-6)
    results = []
    for module, data in ((model, x), (torch.compile(there, backend="tenon"), x.to("tenon"))):
        given = data.detach().clone().requires_grad_()
        module(given)[:, 1:3].sum().backward()
        assert given.grad is not None
        results.append(given.grad[:, 1:3])
    assert_same(results[1], results[0], 1e-5, 1e-6)
    torch._dynamo.reset()


DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("name", ["_softmax_backward_data", "_log_softmax_backward_data"])
def test_gradients_of_softmax_by_dtypes_of_inputs(name: str) -> None:
    """The dtype is the gradient's, whatever that of the input is said to be."""
    op = getattr(aten, name).default
    for dtype, of_input in itertools.product(DTYPES, (*DTYPES, torch.int64)):
        g, y = (torch.linspace(0.1, 0.9, 6, dtype=dtype).view(2, 3) * k for k in (1, 0.5))

        def function(g: torch.Tensor, y: torch.Tensor, of_input: Any = of_input) -> Any:
            return op(g, y, 1, of_input)

        torch._dynamo.reset()
        compiled = torch.compile(function, backend="tenon")
        if (dtype, of_input) == (torch.float32, torch.float16):
            with pytest.raises(RuntimeError):
                compiled(g.to("tenon"), y.to("tenon"))
            continue
        got = compiled(g.to("tenon"), y.to("tenon"))
        assert_same(got, function(g, y), rtol=2e-2, atol=1e-2)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["auto", "compiled"])
def test_bilinear_layers_are_two_products(mode: str, dtype: torch.dtype) -> None:
    """PyTorch's own way for a device is a product for each feature: 250 calls a step for 40."""
    model = torch.nn.Bilinear(5, 7, 11, dtype=dtype)
    there = copy.deepcopy(model).to("tenon")
    with executing(mode):
        for count in (3, 3, 1, 6, 0, 3):
            x, y = torch.randn(count, 2, 5, dtype=dtype), torch.randn(count, 2, 7, dtype=dtype)
            results = []
            for m, d in ((model, "cpu"), (there, "tenon")):
                given = [t.to(d).requires_grad_() for t in (x, y)]
                got = m(*given)
                grads = torch.autograd.grad(got.square().sum(), [*given, *m.parameters()])
                results.append([got, *grads])
            for got, want in zip(*reversed(results), strict=True):
                assert_same(got, want, rtol=1e-4, atol=1e-5)
    x, y = (torch.randn(4, n, device="tenon", dtype=dtype) for n in (5, 7))
    with executing("reference"), torch.no_grad():
        there(x, y)
        before = _C.record_counts()[0]
        there(x, y)
        assert _C.record_counts()[0] - before <= 6  # the product and the bias, views aside


# Shapes of three tensors, their new dimensions, those summed over, the one that is unrolled.
TRILINEAR = [
    ([(2, 3), (2, 3), (2, 3)], [[], [], []], [1], 0),
    ([(2, 3), (3,), (2,)], [[], [0], [1]], [0, 1], 1),
    ([(2, 3), (2, 3), (2, 3)], [[], [], []], [], 1),
    ([(1, 2), (3, 2), (3, 2)], [[], [], []], [], 1),
    ([(0, 1), (0, 1), (0, 1)], [[0], [0], [2]], [0], 0),
    ([(0, 3), (0, 3), (0, 3)], [[], [], []], [0], 1),
    ([(2, 3), (2, 4), (3, 4)], [[2], [1], [0]], [-1, 0], 1),
    ([(2,), (2,), (2,)], [[1], [1], [1]], [], 0),
]


@pytest.mark.parametrize("case", range(len(TRILINEAR)))
def test_trilinear_of_several_dtypes(case: int) -> None:
    """The dtype is the first one's, and what does not fit has the sizes of the CPU's."""
    shapes, new, sums, unrolled = TRILINEAR[case]
    i, j, f, d, b = torch.int32, torch.int64, torch.float32, torch.float64, torch.bool
    for dtypes in ((f, f, f), (i, i, i), (i, j, j), (j, i, i), (f, d, f), (d, f, f), (b, b, b)):
        given = [torch.ones(s, dtype=dtype) for s, dtype in zip(shapes, dtypes, strict=True)]

        def function(*given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = aten._trilinear(*given, *new, sums, unrolled)
            return found

        torch._dynamo.reset()
        compiled = torch.compile(function, backend="tenon")
        try:
            want = function(*given)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(*(x.to("tenon") for x in given))
        else:
            assert_same(compiled(*(x.to("tenon") for x in given)), want)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", ["native_batch_norm", "_batch_norm_with_update_functional"])
def test_a_batch_norm_that_adds_nothing_to_variances(op: str, dtype: torch.dtype) -> None:
    """In graphs it was a call, whose results of 16-bit numbers had another dtype than the trace."""
    x = torch.randn(64, 3, 5, 5).to(dtype)
    x[:, 1] = 0.1  # equal numbers: the factor is 0
    given = [x, *(torch.rand(4, 3).add(0.5).to(dtype))]
    options = [True, 0.1, 0.0] if op == "native_batch_norm" else [0.1, 0.0]

    def normed(*given: torch.Tensor) -> list[torch.Tensor]:
        return list(getattr(aten, op)(*given, *options))

    got = torch.compile(normed, backend="tenon")(*(t.to("tenon") for t in given))
    for mine, theirs in zip(got, normed(*given), strict=True):
        if theirs.dtype is dtype:  # the other is what other kernels reserve
            assert_same(mine, theirs, rtol=4 * torch.finfo(dtype).eps, atol=4e-3)
