"""Random ops in windows: the numbers of a call that runs at once, by plans that are used again."""

from collections.abc import Callable

import needs
import pytest
import torch
from against_cpu import executing
from torch import nn
from torch.nn import functional as F
from turns import settle

from torch_tenon import target
from torch_tenon.builder.counts import plan_counts
from torch_tenon.reports.recording import calls_at_once


def in_mode(name: str, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """What `work` gives in an execute mode, from a fixed seed."""
    torch.manual_seed(5)
    with executing(name):
        return [t.cpu() for t in work()]


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(7, 33, dtype=dtype, device="tenon")


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    **{f"rand {d}": lambda d=d: empty(d).uniform_() for d in FLOATS},
    **{f"uniform {d}": lambda d=d: empty(d).uniform_(-2, 3.3) for d in FLOATS},
    **{f"uniform turned {d}": lambda d=d: empty(d).t().uniform_(0.1, 0.7) for d in FLOATS},
    **{f"normal {d}": lambda d=d: empty(d).normal_(1, 2) for d in FLOATS},
    **{f"exponential {d}": lambda d=d: empty(d).exponential_(2.5) for d in FLOATS},
    **{f"cauchy {d}": lambda d=d: empty(d).cauchy_(1, 2) for d in FLOATS},
    **{f"log_normal {d}": lambda d=d: empty(d).log_normal_(0.5, 0.7) for d in FLOATS},
    **{f"geometric {d}": lambda d=d: empty(d).geometric_(0.3) for d in (*FLOATS, *INTEGERS)},
    **{f"bernoulli {d}": lambda d=d: empty(d).bernoulli_(0.4) for d in ALL},
    **{f"random {d}": lambda d=d: empty(d).random_() for d in (*FLOATS, *INTEGERS)},
    **{f"randint {d}": lambda d=d: empty(d).random_(0, 2) for d in ALL},
    "bernoulli of chances": lambda: torch.bernoulli(torch.full((50, 9), 0.4, device="tenon")),
    **{
        f"normal of tensors {d}": lambda d=d: torch.normal(empty(d).fill_(0.3), empty(d).fill_(3))
        for d in FLOATS
    },
    "normal into a tensor": lambda: torch.normal(
        empty(torch.float16).fill_(0.3), 3.0, out=empty(torch.float16)
    ),
    "normal of means": lambda: torch.normal(empty().fill_(2), 3.0),
    "normal of deviations": lambda: torch.normal(2.0, empty().fill_(3)),
    "randint": lambda: torch.randint(-5, 1000, (99,), device="tenon"),
    "randint of many": lambda: torch.randint(-5, 1 << 30, (99,), device="tenon"),
    "randint wide": lambda: torch.randint(0, 1 << 62, (99,), device="tenon"),
    "random all": lambda: empty(torch.int64).random_(-(1 << 63), None),
    "random nearly all": lambda: empty(torch.int64).random_(-(1 << 63), (1 << 63) - 1),
    "one": lambda: torch.randn((), device="tenon"),
    "long rows": lambda: torch.randn(3, 5, 2111, device="tenon"),
    "short rows": lambda: torch.randn(211, 5, device="tenon"),
    "a part": lambda: torch.zeros(40, 90, device="tenon")[3:37:2, 5:81].normal_(),
    "dropout": lambda: F.dropout(torch.ones(100, 7, device="tenon"), 0.3),
}
# What else is computed in the loops that draw.
USES: dict[str, Callable[[], torch.Tensor]] = {
    "turned": lambda: torch.rand(70, 90, device="tenon").t().contiguous(),
    "across": lambda: torch.rand(70, 90, device="tenon") * torch.rand(90, 70, device="tenon").t(),
    "greatest of rows": lambda: (torch.randn(30, 3000, device="tenon") * 2).amax(1),
    "greatest of columns": lambda: (torch.randn(300, 70, device="tenon") * 2).amax(0),
    "greatest of all": lambda: torch.rand(20_011, device="tenon").amax(),
    "parts": lambda: torch.cat([torch.rand(101, device="tenon"), torch.randn(99, device="tenon")]),
    "chosen": lambda: torch.arange(50, device="tenon")[torch.randint(50, (999,), device="tenon")],
    "a long iteration": lambda: (torch.randn(5001, device="tenon").abs() + 1).sqrt().floor(),
}


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [*DRAWS, *USES])
def test_a_plan_draws_what_a_call_that_runs_at_once_draws(name: str) -> None:
    def work() -> list[torch.Tensor]:
        found = []
        for _ in range(3):
            found.append((DRAWS | USES)[name]())
            torch.tenon.synchronize()
        return found

    expected = in_mode("reference", work)
    assert not torch.equal(expected[0], expected[1])
    settle()  # plans of tests before may be in work
    before = plan_counts()
    got = in_mode("compiled", work)
    after = plan_counts()
    assert after["failed"] == before["failed"]
    assert after["hits"] > before["hits"] or target().backend is None
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_threads_and_windows_do_not_change_what_is_drawn() -> None:
    def work(apart: bool) -> list[torch.Tensor]:
        found = []
        for kind in ("normal_", "uniform_", "exponential_", "bernoulli_"):
            for size in (1_200_007, 1003):  # for several threads, and for one
                x = getattr(torch.empty(size, device="tenon"), kind)()
                if apart:
                    torch.tenon.synchronize()
                found.append(x * 2)
        return found

    threads = torch.get_num_threads()
    got = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for mode in ("reference", "compiled"):
                for apart in (False, True):
                    got.append(in_mode(mode, lambda apart=apart: work(apart)))
    finally:
        torch.set_num_threads(threads)
    for other in got[1:]:
        assert all(torch.equal(a, b) for a, b in zip(got[0], other, strict=True))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 24), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noisy = x + 0.1 * torch.randn_like(x)
        return self.last(F.dropout(F.relu(self.first(noisy)), 0.4))


def steps(model: Model, x: torch.Tensor, count: int) -> list[float]:
    """The losses of some steps of training."""
    found = []
    for _ in range(count):
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        found.append(loss.item())
    return found


@pytest.mark.slow
@needs.plans
def test_training_with_dropout_runs_by_plans(compiled: None) -> None:
    model, x = Model().to("tenon"), torch.randn(8, 12, device="tenon")
    for _ in range(8):  # until it is settled where windows end
        before, calls = plan_counts(), dict.fromkeys(calls_at_once())
        losses = steps(model, x, 4)
        after = plan_counts()
        if after["structures"] == before["structures"]:
            break
    assert len(set(losses)) == 4
    assert after["structures"] == before["structures"], "no window is new"
    assert after["reference"] == before["reference"]
    # One each as a rule. Where windows end depends on which numbers earlier tests have changed.
    windows = after["hits"] - before["hits"]
    assert 0 < windows <= 8 and windows % 4 == 0, "each step has the same windows"
    assert [c for c in calls_at_once() if c not in calls and "draw" in c[0]] == []


@pytest.mark.slow
def test_seeds_and_states_repeat_recorded_numbers(compiled: None) -> None:
    x = torch.randn(8, 12, device="tenon")

    def losses() -> tuple[list[torch.Tensor], list[float]]:
        """What was drawn, and the losses of training with it."""
        torch.manual_seed(7)
        model, numbers = Model().to("tenon"), []
        noise = model.first.register_forward_pre_hook(lambda _, given: numbers.append(given[0]))
        kept = model.last.register_forward_pre_hook(lambda _, given: numbers.append(given[0] == 0))
        found = steps(model, x, 3)
        noise.remove()
        kept.remove()
        state = torch.tenon.get_rng_state()
        y = torch.ones(50, device="tenon")
        drawn = [F.dropout(y, 0.5).cpu(), F.dropout(y, 0.5).cpu()]
        torch.tenon.set_rng_state(state)
        again = [F.dropout(y, 0.5).cpu(), F.dropout(y, 0.5).cpu()]
        assert not torch.equal(*drawn)
        assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))
        return [n.cpu() for n in numbers] + drawn, found

    drawn, first = losses()
    for _ in range(2):
        numbers, found = losses()
        assert len(numbers) == len(drawn) == 8
        assert all(torch.equal(a, b) for a, b in zip(numbers, drawn, strict=True))
        # The first call of a kind runs by the CPU's kernel, and its products add in another order.
        assert found == pytest.approx(first, rel=1e-5)
    with executing("reference"):
        numbers, at_once = losses()
    assert all(torch.equal(a, b) for a, b in zip(numbers, drawn, strict=True))
    assert first == pytest.approx(at_once, rel=1e-5)


def test_a_seed_set_before_the_commit_does_not_change_what_was_drawn(compiled: None) -> None:
    def work(meanwhile: Callable[[], object]) -> torch.Tensor:
        torch.manual_seed(3)
        x = torch.empty(40, device="tenon").uniform_()
        meanwhile()
        return x.cpu()

    expected = work(lambda: None)
    for _ in range(3):
        assert torch.equal(work(lambda: torch.manual_seed(4)), expected)


@pytest.mark.slow
@pytest.mark.sampled(6)
@needs.host_memory  # as compiled graphs do
@pytest.mark.parametrize("name", [*DRAWS, *USES])
def test_graphs_draw_the_numbers_of_eager_code(name: str) -> None:
    draw = (DRAWS | USES)[name]

    def work() -> list[torch.Tensor]:
        return [draw(), torch.rand(64, device="tenon"), draw()]

    expected = in_mode("reference", work)
    torch._dynamo.reset()
    torch.manual_seed(5)
    got = torch.compile(work, backend="tenon")()
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b.cpu())
