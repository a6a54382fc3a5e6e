"""Calls that run when they are made, since recording them would not pay."""

import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from against_cpu import assert_same, executing, same_error_on_both
from fresh_process import output
from needs import host_memory, plans
from torch import Tensor
from waiting import TIMEOUT

from torch_tenon.builder.counts import plan_counts
from torch_tenon.reports.recording import calls_at_once

pytestmark = host_memory

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda x, y: x + y,
    "scaled": lambda x, y: torch.add(x, y, alpha=0.5),
    "number": lambda x, y: x * 0.7,
    "tanh": lambda x, y: x.tanh(),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "in place": lambda x, y: x.clone().mul_(0.5).add_(y),
    "a row": lambda x, y: x + y[:1],
    "turned": lambda x, y: x.t().contiguous().t() - y,
    "a part": lambda x, y: write_part(x.clone(), y),
    "where": lambda x, y: torch.where(x > y, x, y),
    "product": lambda x, y: (x @ y.t()).softmax(-1) @ x,
    "sum": lambda x, y: x - x.sum(1, keepdim=True) / 8,
    "sort": lambda x, y: x.sort(1)[0],
    "cat": lambda x, y: torch.cat([x[:, :3], y[:, 3:]], 1),
    "index": lambda x, y: x[torch.tensor([2, 0, 3, 1], device=x.device)],
    "half": lambda x, y: (x.bfloat16() * 2).float() / 2,
    "out": lambda x, y: torch.mul(x, 0.9, out=torch.empty_like(x)),
    "split": lambda x, y: torch.cat(x.split(3, 1)[::-1], 1),
    "norm": lambda x, y: torch.nn.functional.layer_norm(x, (8,)),
    "conj": lambda x, y: (
        torch.view_as_real(torch.complex(x, y) * torch.complex(y, x).conj()).sum(-1) / 4
    ),
}


def write_part(x: Tensor, y: Tensor) -> Tensor:
    x[1:, 2:5] = y[1:, 2:5]
    x[:, ::2].neg_()
    return x


def run_directly() -> int:
    """How many calls ran when they were made since recording them would not pay."""
    return sum(n for _, why, n in calls_at_once() if why == "recording it would not pay")


def program(names: list[str], x: Tensor, y: Tensor) -> Tensor:
    for name in names:
        x = STEPS[name](x, y)
    return x


@pytest.mark.parametrize("turn", range(20))
def test_they_give_what_the_cpu_gives(turn: int) -> None:
    draw = random.Random(turn)
    names = [draw.choice(list(STEPS)) for _ in range(12)]
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    before = run_directly()
    with executing("direct"):
        found = program(names, x.to("tenon"), y.to("tenon"))
    assert_same(found, program(names, x, y), rtol=1e-4, atol=1e-5)
    assert run_directly() > before


def test_they_meet_what_was_recorded() -> None:
    x = torch.randn(4, 8)
    for _ in range(3):
        recorded = x.to("tenon") * 2 + 1
        with executing("direct"):
            direct = recorded.tanh() - recorded
            recorded.add_(direct)
        again = (recorded * direct).sum(0)
    a = x * 2 + 1
    b = a.tanh() - a
    assert_same(again, ((a + b) * b).sum(0), rtol=1e-5, atol=1e-5)


def test_gradients_flow_through_them() -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    grads = []
    for device in ("cpu", "tenon"):
        a, b = (t.detach().clone().to(device).requires_grad_() for t in (x, y))
        with executing("direct"):
            program(["product", "tanh", "a row", "norm", "sum"], a, b).square().sum().backward()
        grads.append([a.grad, b.grad])
    assert_same(grads[1], grads[0], rtol=1e-4, atol=1e-5)


def test_results_are_memory_of_their_own() -> None:
    with executing("direct"):
        x = torch.ones(4, device="tenon")
        y = x.relu()
        y.add_(1)
        z = x[1:3]
        z.mul_(5)
        parts = torch.ones(6, device="tenon").relu().split(2)
        parts[1].zero_()
    assert x.tolist() == [1, 5, 5, 1] and y.tolist() == [2, 2, 2, 2]
    assert torch.cat(parts).tolist() == [1, 1, 0, 0, 1, 1]


def test_a_kernel_may_give_what_it_writes_another_size() -> None:
    made = []
    for device in ("cpu", "tenon"):
        with executing("direct"):
            x = torch.ones(3, device=device)
            x.addbmm_(torch.ones(2, 3, 4, device=device), torch.ones(2, 4, 3, device=device))
        made.append(x)
    assert_same(made[1], made[0])
    assert made[1].shape == (3, 3)


def test_errors_are_the_cpu_s_and_come_at_the_call() -> None:
    with executing("direct"):
        same_error_on_both(lambda d: torch.ones(3, device=d) @ torch.ones(4, device=d))
        same_error_on_both(lambda d: torch.ones(3, device=d) + torch.ones(4, device=d))
        same_error_on_both(lambda d: torch.ones(2, 3, device=d).sum(5))
        x = torch.ones(3, device="tenon")
        index = torch.tensor([7], device="tenon")
        with pytest.raises(IndexError):
            x[index]


def test_settings_of_the_call_hold() -> None:
    with executing("direct"):
        x = torch.ones(3, device="tenon", requires_grad=True)
        with torch.no_grad():
            assert not (x * 2).requires_grad
        with torch.inference_mode():
            assert (x * 2).is_inference()
        with torch.autocast("tenon", dtype=torch.bfloat16):
            a = torch.randn(4, 4, device="tenon")
            assert (a @ a).dtype is torch.bfloat16
        assert (x * 2).requires_grad


def changing(turn: int, x: Tensor) -> Tensor:
    draw = random.Random(turn)
    for _ in range(60):
        x = draw.choice([torch.tanh, torch.relu, torch.neg, torch.sin, torch.cos])(x)
    return x


@plans
def test_windows_that_never_come_again_are_recorded_no_more() -> None:
    x = torch.randn(16)
    before = run_directly()
    for turn in range(120):
        assert_same(changing(turn, x.to("tenon")), changing(turn, x), rtol=1e-4, atol=1e-5)
    assert run_directly() - before > 2000


@plans
def test_parts_of_large_tensors_are_small() -> None:
    """What a call reads and makes counts, and not the storage that its arguments lie in."""
    table = torch.randn(2000, 16)
    on_device, before = table.to("tenon"), run_directly()
    for turn in range(120):
        row, rows = changing(turn, on_device[turn]), changing(turn, on_device[::500])
        assert_same(row + rows, changing(turn, table[turn]) + changing(turn, table[::500]))
    assert run_directly() - before > 4000


# Says how many calls ran at once from when the program had its plan until that ran.
UNTIL_IT_RUNS = """
    import time, torch
    from test_direct_calls import run_directly
    from torch_tenon import _C
    from torch_tenon.builder.counts import plan_counts

    x = torch.ones(64, device="tenon")
    came, deadline = None, time.monotonic() + 200
    while not plan_counts()["hits"] and time.monotonic() < deadline:
        for _ in range(10):
            x = ((x * 0.5).tanh() + 0.25).cos()
        if came is None and plan_counts()["ready"]:
            came = run_directly()
    print(run_directly() - (came if came is not None else run_directly()), plan_counts()["hits"])
"""


@pytest.mark.slow
@plans
@pytest.mark.parametrize("builder", ["thread", "process"])
def test_a_plan_that_comes_meanwhile_is_taken(builder: str, tmp_path: Path) -> None:
    """Many calls run at once while a plan is made, and few once it is there."""
    said = output(UNTIL_IT_RUNS, TENON_BUILDER=builder, TENON_CACHE_DIR=str(tmp_path))
    late, hits = map(int, said.split())
    assert hits > 0
    assert late < 1500


@pytest.mark.slow
@plans
def test_a_loop_after_them_gets_its_plan() -> None:
    x = torch.randn(16)
    for turn in range(120):
        changing(turn, x.to("tenon")).cpu()
    hits, deadline = plan_counts()["hits"], time.monotonic() + TIMEOUT
    while plan_counts()["hits"] < hits + 20 and time.monotonic() < deadline:
        assert_same(changing(-1, x.to("tenon")), changing(-1, x), rtol=1e-4, atol=1e-5)
    assert plan_counts()["hits"] >= hits + 20


# What sizes their results have depends on what their arguments hold.
OF_DATA: dict[str, Callable[[Tensor], object]] = {
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "masked_select": lambda x: x.masked_select(x > 0.5),
    "unique": lambda x: x.round().unique(return_inverse=True, return_counts=True),
    "unique rows": lambda x: x.sign().unique(dim=0),
    "consecutive": lambda x: x.flatten().sort()[0].round().unique_consecutive(),
    "bincount": lambda x: torch.bincount(x.abs().long().flatten()),
    "repeat": lambda x: x.repeat_interleave(x[:, 0].abs().long(), 0),
    "equal": lambda x: (torch.equal(x, x.clone()), torch.equal(x, x + 1)),
    "sparse": lambda x: (x.relu().to_sparse() * 2).to_dense(),
    "sparse rows": lambda x: x.relu().to_sparse_csr().to_dense(),
    "per channel": lambda x: torch.quantize_per_channel(
        x, x[:, 0].abs() + 1, x[:, 1].long() * 0, 0, torch.qint8
    ).dequantize(),
    "a write by mask": lambda x: x.clone().masked_scatter_(x > 0, x.flip(0)),
    "put by mask": lambda x: x.clone().index_put_((x > 0,), x[0, 0]),
    "list": lambda x: torch.cat([x[:, k % 8] for k in range(40)]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("name", OF_DATA)
def test_ops_that_always_run_at_once(name: str, direct: bool) -> None:
    """Behind calls that are pending, and kept while others run."""
    kept: list[tuple[object, object]] = []
    generator = torch.Generator().manual_seed(3)
    with executing("direct") if direct else contextlib.nullcontext():
        for _ in range(6):
            x = torch.randn(6, 8, generator=generator) * 3
            on_device = x.to("tenon") * 2 - 1
            kept.append((OF_DATA[name](on_device), OF_DATA[name](x * 2 - 1)))
    for got, expected in kept:
        assert_same(got, expected)


def test_ops_that_always_run_at_once_raise_earlier_errors() -> None:
    x = torch.randn(4, device="tenon")
    for index in (1, 3, 2, 9):
        late = x.index_select(0, torch.tensor([index], device="tenon"))
        with pytest.raises(IndexError) if index == 9 else contextlib.nullcontext():
            (late + 1).nonzero()
    assert x.nonzero().shape == (4, 1)
