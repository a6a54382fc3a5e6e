"""Every optimizer of torch.optim, with its implementations, takes the CPU's steps."""

import math
from collections.abc import Callable
from typing import Any

import needs
import pytest
import torch
from against_cpu import assert_same, executing
from torch import Tensor

from tests.ops.lowerings.by_plan import compiled, on_tenon, same_by_plans
from torch_tenon.builder.counts import plan_counts
from torch_tenon.compiler import build

OPTIMIZERS = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {"lr_decay": 0.01},
    "Adam": {"amsgrad": True, "weight_decay": 0.1},
    "AdamW": {},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {"max_iter": 4},
    "Muon": {},
    "NAdam": {"momentum_decay": 0.01},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "Rprop": {},
    "SGD": {"momentum": 0.9, "nesterov": True},
}
WITHOUT_FOREACH = {"LBFGS", "Muon"}
FUSED = {"Adagrad", "Adam", "AdamW", "SGD"}

CASES = [
    (name, implementation)
    for name in OPTIMIZERS
    for implementation in ("default", "foreach", "for_loop", "fused")
    if not (name in WITHOUT_FOREACH and implementation in ("foreach", "for_loop"))
    and not (implementation == "fused" and name not in FUSED)
]
ARGUMENTS = {
    "default": {},
    "foreach": {"foreach": True},
    "for_loop": {"foreach": False},
    "fused": {"fused": True},
}


def train(device: str, name: str, options: dict) -> list:
    # LBFGS divides by differences of gradients: the last bit of a float32 becomes the fourth digit.
    dtype = torch.float64 if name == "LBFGS" else torch.float32
    torch.manual_seed(4)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8, bias=name != "Muon"),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 2, bias=name != "Muon"),
    ).to(device, dtype)
    groups = [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]
    if name == "LBFGS":
        groups = list(model.parameters())
    optimizer = getattr(torch.optim, name)(groups, lr=0.01, **OPTIMIZERS[name], **options)
    x = torch.linspace(-1, 1, 30, dtype=dtype).view(5, 6).to(device)
    y = torch.linspace(0, 1, 10, dtype=dtype).view(5, 2).to(device)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.mse_loss(model(x), y)
        value.backward()
        return value

    losses = [optimizer.step(loss).detach() for _ in range(4)]
    return [*losses, *(p.detach() for p in model.parameters()), optimizer.state_dict()["state"]]


def test_all_are_listed() -> None:
    known = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    assert known - {"Optimizer", "SparseAdam"} == set(OPTIMIZERS)


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "implementation"), CASES)
def test_four_steps(name: str, implementation: str) -> None:
    options = ARGUMENTS[implementation]
    assert_same(train("tenon", name, options), train("cpu", name, options), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "RMSprop"])
def test_learning_rate_as_a_tensor_and_schedules(name: str) -> None:
    def run(device: str) -> list:
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 6).to(device))
        optimizer = getattr(torch.optim, name)([weight], lr=torch.tensor(0.1))
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=6)
        seen = []
        for _ in range(5):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
            schedule.step()
            seen.append(weight.detach().clone())
        return seen

    assert_same(run("tenon"), run("cpu"), rtol=1e-5, atol=1e-6)


def test_capturable() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device="tenon"))
    optimizer = torch.optim.Adam([weight], lr=torch.tensor(0.1, device="tenon"), capturable=True)
    expected = torch.nn.Parameter(torch.ones(3))
    reference = torch.optim.Adam([expected], lr=0.1)
    for w, o in ((weight, optimizer), (expected, reference)):
        for _ in range(3):
            o.zero_grad()
            (w * 3).sum().backward()
            o.step()
    assert optimizer.state[weight]["step"].device.type == "tenon"
    assert_same(weight, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", sorted(FUSED))
def test_steps_that_are_not_made(name: str, dtype: torch.dtype, amsgrad: bool) -> None:
    """Where a gradient overflowed all stays as it was, also the gradient."""

    def run(device: str) -> list:
        # Of rows as long as a vector the CPU's own kernels are wrong in 16 bits.
        weight = torch.nn.Parameter(torch.tensor([0.5, -2.0, 3.0], dtype=dtype, device=device))
        options = {"amsgrad": amsgrad} if "Adam" in name else {"lr": 0.5}
        options |= {"momentum": 0.5} if name == "SGD" else {}
        optimizer = getattr(torch.optim, name)([weight], weight_decay=0.1, fused=True, **options)
        seen = []
        for found in (0.0, 1.0, 1.0, 0.0, 1.0, 0.0):
            weight.grad = weight.detach() * 8 + 1
            optimizer.grad_scale = torch.tensor(4.0, device=device)
            optimizer.found_inf = torch.tensor(found, device=device)
            optimizer.step()
            state = optimizer.state[weight].values()
            held = [t for t in state if isinstance(t, torch.Tensor)]
            seen.append([t.detach().clone() for t in (weight, weight.grad, *held)])
        return seen

    tolerance = 1e-5 if dtype is torch.float32 else 1e-2
    with executing("compiled"):
        assert_same(run("tenon"), run("cpu"), rtol=tolerance, atol=tolerance)


def test_sparse_gradients() -> None:
    def run(device: str) -> list:
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True)
        table.weight.data.copy_(torch.arange(40.0).view(10, 4))
        table.to(device)
        optimizers = [
            torch.optim.SparseAdam(table.parameters(), lr=0.1),
            torch.optim.SGD(table.parameters(), lr=0.1),
            torch.optim.Adagrad(table.parameters(), lr=0.1),
        ]
        for optimizer in optimizers:
            optimizer.zero_grad()
            table(torch.tensor([1, 3, 1], device=device)).sum().backward()
            assert table.weight.grad.is_sparse
            optimizer.step()
        return [table.weight.detach(), table.weight.grad.to_dense()]

    assert_same(run("tenon"), run("cpu"), rtol=1e-6)


def test_clipping_averaging_and_accumulation() -> None:
    def run(device: str) -> list:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4).to(device)
        averaged = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        norms = []
        for step in range(4):
            model(torch.full((2, 4), step - 1.0, device=device)).pow(2).sum().backward()
            if step % 2:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.2)
                optimizer.step()
                optimizer.zero_grad(set_to_none=step == 1)
                averaged.update_parameters(model)
        return [*norms, *model.parameters(), *averaged.parameters()]

    assert_same(run("tenon"), run("cpu"), rtol=1e-5, atol=1e-6)


STEPS = [(name, {}) for name in sorted(FUSED)]
STEPS += [("Adam", {"amsgrad": True}), ("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9})]


@needs.plans
@pytest.mark.parametrize("by_calls", [False, True], ids=["lowered", "by calls"])
@pytest.mark.parametrize(("name", "options"), STEPS)
def test_fused_steps_have_plans(
    name: str, options: dict, by_calls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a list of their state is empty, and where they are calls of PyTorch's kernels."""
    if by_calls:
        monkeypatch.setattr(build, "composition_of", lambda *args: None)
    starts = [torch.randn(3 + len(name) + 9 * by_calls), torch.randn(2, 3)]
    grads = [[torch.randn_like(x) for x in starts] for _ in range(4)]

    def run(device: str) -> list:
        weights = [torch.nn.Parameter(x.to(device, copy=True)) for x in starts]
        optimizer = getattr(torch.optim, name)(weights, lr=0.1, fused=True, **options)
        for given in grads:
            for w, g in zip(weights, given, strict=True):
                w.grad = g.to(device)
            optimizer.step()
            _ = [w.detach().cpu() for w in weights]
        held = [t for w in weights for t in optimizer.state[w].values()]
        return [*(w.detach() for w in weights), *(t for t in held if t is not None)]

    before = plan_counts()
    with executing("compiled"):
        assert_same(run("tenon"), run("cpu"), rtol=1e-5, atol=1e-6)
    assert plan_counts()["failed"] == before["failed"]


def _step(op: str, count: int, **options: Any) -> Callable[..., Tensor]:
    """A step of a fused optimizer on lists of the first or of both tensors of pairs."""

    def step(*given: Tensor) -> Tensor:
        lists = [list(given[k : k + 2]) for k in range(0, 2 * count, 2)]
        getattr(torch, op)(*lists, *given[2 * count :], **options)
        return given[0] + 0

    return step


SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.0, "nesterov": False}
SGD |= {"maximize": False, "is_first_step": False, "grad_scale": torch.tensor(4.0)}
ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
ADAM |= {"amsgrad": True, "maximize": False}
TWICE = {
    "_fused_sgd_": (3, SGD),
    "_fused_adam_": (6, ADAM),
    "_fused_adamw_": (6, ADAM),
    "_amp_foreach_non_finite_check_and_unscale_": (1, {}),
}


@pytest.mark.parametrize(
    ("op", "twice"), [(op, k) for op, (count, _) in TWICE.items() for k in range(count)]
)
def test_a_tensor_that_a_step_has_twice(op: str, twice: int) -> None:
    """It is changed twice, one after the other: a parameter, a gradient that is unscaled, or a part
    of the state; and so is one that shares some of its elements."""
    count, options = TWICE[op]
    given = [torch.rand(6) + 0.5 for _ in range(2 * count)]
    if count == 6:
        given[-2:] = [torch.tensor(3.0), torch.tensor(5.0)]
    if count == 1:
        given += [torch.zeros(1), torch.tensor([0.5])]

    def step(*all: Tensor) -> Tensor:
        lists = list(all)
        lists[2 * twice + 1] = lists[2 * twice]
        named = {k: v.to(all[0].device) if isinstance(v, Tensor) else v for k, v in options.items()}
        return _step(op, count, **named)(*lists)

    def overlapping(*all: Tensor) -> Tensor:
        memory = torch.cat([x.reshape(-1) for x in all[2 * twice : 2 * twice + 2]])
        lists = list(all)
        if memory.numel() > 2:
            lists[2 * twice : 2 * twice + 2] = memory[:6], memory[3:9]
        return _step(op, count, **options)(*lists) + memory.sum()

    same_by_plans(step, *given, rtol=1e-5, atol=1e-6)
    if "grad_scale" not in options:
        same_by_plans(overlapping, *given, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("beta", [0.0, -0.5, 1.0, 1.5, 0.9])
@pytest.mark.parametrize("step", [-1.0, 0.0, 1.0, 2.0])
def test_corrections_of_any_beta(beta: float, step: float) -> None:
    """They divide the learning rate, 0 among them, which has the sign of the CPU's."""
    given = [torch.randn(5) + 2, torch.randn(5), torch.randn(5), torch.rand(5), torch.rand(5)]

    def compute(*given: Tensor) -> Tensor:
        options = {**ADAM, "beta1": beta}
        torch._fused_adam_(*([x] for x in given), **options)
        return given[0] + 0

    same_by_plans(compute, *given, torch.tensor(step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("beta", [0.5, 0.9, 0.0, -0.7, 1.6])
def test_steps_with_infinities(op: str, beta: float) -> None:
    """The average moves from the end that is nearer, and a parameter that is infinite stays so
    where it decays."""
    inf, nan = math.inf, math.nan
    given = [torch.tensor([1.0, inf, -inf, nan, 2.0, 3.0, 1.0, inf]) for _ in range(5)]
    given[1] = torch.tensor([0.5, 1.0, 2.0, 1.0, inf, -inf, 1.0, -inf])
    given[2] = torch.tensor([inf, 1.0, 0.5, 1.0, 1.0, -inf, -inf, inf])
    given[3:] = torch.ones(8), torch.ones(8)

    def compute(*given: Tensor) -> list[Tensor]:
        getattr(torch, op)(*([x] for x in given), **{**ADAM, "beta1": beta})
        return [x + 0 for x in given]

    same_by_plans(compute, *given, torch.tensor(3.0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["_fused_adam", "_fused_adamw"])
def test_a_learning_rate_of_fewer_digits_than_the_parameters(op: str) -> None:
    given = [torch.rand(5, dtype=torch.float64) + 0.5 for _ in range(5)]

    def compute(*given: Tensor) -> Any:
        lists = [[x] for x in given[:-1]]
        return getattr(torch.ops.aten, op).tensor_lr(*lists, **{**ADAM, "lr": given[-1]})

    given += [torch.tensor(3.0), torch.tensor(0.1)]
    want = compute(*(x.clone() for x in given))
    with executing("compiled"):
        for _ in range(3):
            assert_same(compute(*on_tenon(given)), want, rtol=1e-12)


def _unscale(g: Tensor, found: Tensor, inverse: Tensor) -> Tensor:
    torch._amp_foreach_non_finite_check_and_unscale_([g], found, inverse)
    return g + 0


def _update(scale: Tensor, tracker: Tensor, found: Tensor) -> Tensor:
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 3)
    return scale + 0


def _adam_of(*given: Tensor) -> Tensor:
    torch._fused_adam_(*([x] for x in given[:6]), **ADAM, grad_scale=given[6])
    return given[0] + 0


@pytest.mark.parametrize(
    ("step", "place", "dtype"),
    [(_adam_of, k, torch.float64) for k in (0, 1, 2, 3, 4, 6)]
    + [(_adam_of, slice(0, 5), torch.int64), (_adam_of, slice(0, 5), torch.bool)]
    + [(_unscale, 0, torch.int64), (_unscale, 1, torch.float64), (_unscale, 2, torch.float64)]
    + [(_update, 0, torch.float64), (_update, 1, torch.int64), (_update, 2, torch.float64)],
)
def test_dtypes_that_steps_refuse(step: Callable[..., Tensor], place: Any, dtype: Any) -> None:
    """A gradient or state of another dtype than its parameter, and scales that are no float32."""
    given = [torch.rand(5) for _ in range(5)] + [torch.tensor(3.0), torch.tensor(2.0)]
    if step is _unscale:
        given = [torch.rand(5), torch.zeros(1), torch.tensor([0.5])]
    elif step is _update:
        given = [torch.tensor(4.0), torch.tensor(1, dtype=torch.int32), torch.tensor(0.0)]
    same_by_plans(step, *given, rtol=1e-6)
    wrong = given[place] if isinstance(place, slice) else [given[place]]
    places = range(*place.indices(len(given))) if isinstance(place, slice) else [place]
    for k, x in zip(places, wrong, strict=True):
        given[k] = x.to(dtype)
    with pytest.raises(RuntimeError):
        step(*given)
    with executing("compiled"):
        for run in (step, step, compiled(step)):
            with pytest.raises((RuntimeError, torch._dynamo.exc.BackendCompilerFailed)):
                _ = run(*on_tenon(given)).cpu()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_step_of_parameters_of_several_dtypes(momentum: float) -> None:
    """16-bit ones, whose step is the device's own, beside others."""
    dtypes = (torch.float64, torch.bfloat16, torch.float32, torch.float16)
    lists = [[torch.randn(3).to(d) for d in dtypes] for _ in range(3 if momentum else 2)]
    options = {**SGD, "momentum": momentum, "grad_scale": None}

    def stepped(lists: list) -> list:
        torch._fused_sgd_(*lists, *([] if momentum else [[]]), **options)
        return lists

    got = stepped([[x.to("tenon") for x in row] for row in lists])
    for k, dtype in enumerate(dtypes):
        # The CPU's kernel has it right for float32.
        wide = torch.promote_types(dtype, torch.float32)
        want = stepped([[row[k].to(wide, copy=True)] for row in lists])
        tolerance = 2 * torch.finfo(dtype).eps
        assert_same([row[k] for row in got], [x.to(dtype) for (x,) in want], tolerance, tolerance)
