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
from torch_tenon.recording import calls_at_once


def in_mode(name: str, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
    """What `work` gives in an execute mode, from a fixed seed."""
    torch.manual_seed(5)
    with executing(name):
        return [t.cpu() for t in work()]


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(7, 33, dtype=dtype, device="tenon")


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DRAWS: dict[str, Callable[[], torch.Tensor]] = {
    **{f"rand {d}": lambda d=d: empty(d).uniform_() for d in FLOATS},
    **{f"uniform {d}": lambda d=d: empty(d).uniform_(-2, 3.3) for d in FLOATS},
    **{f"uniform turned {d}": lambda d=d: empty(d).t().uniform_(0.1, 0.7) for d in FLOATS},
    **{f"normal {d}": lambda d=d: empty(d).normal_(1, 2) for d in FLOATS},
    "exponential": lambda: empty().exponential_(2),
    "cauchy": lambda: empty().cauchy_(1, 2),
    "log_normal": lambda: empty().log_normal_(),
    "geometric": lambda: empty(torch.int64).geometric_(0.3),
    "bernoulli": lambda: empty().bernoulli_(0.4),
    "bernoulli bool": lambda: empty(torch.bool).bernoulli_(0.4),
    "randint": lambda: torch.randint(-5, 1000, (99,), device="tenon"),
    "randint wide": lambda: torch.randint(0, 1 << 62, (99,), device="tenon"),
    "random all": lambda: empty(torch.int64).random_(-(1 << 63), None),
    "random": lambda: empty().random_(),
    "random uint8": lambda: empty(torch.uint8).random_(),
    "dropout": lambda: F.dropout(torch.ones(100, 7, device="tenon"), 0.3),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_plan_draws_what_a_call_that_runs_at_once_draws(name: str) -> None:
    def work() -> list[torch.Tensor]:
        found = []
        for _ in range(3):
            found.append(DRAWS[name]())
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


@needs.plans
def test_training_with_dropout_runs_by_plans_from_the_third_step_on(compiled: None) -> None:
    model, x = Model().to("tenon"), torch.randn(8, 12, device="tenon")
    steps(model, x, 3)  # where windows end is settled by now
    before, calls = plan_counts(), dict.fromkeys(calls_at_once())
    losses = steps(model, x, 4)
    after = plan_counts()
    assert len(set(losses)) == 4
    assert after["structures"] == before["structures"], "no window is new"
    assert after["reference"] == before["reference"]
    assert after["hits"] - before["hits"] == 4, "a step is one window"
    assert [c for c in calls_at_once() if c not in calls and "draw" in c[0]] == []


def test_seeds_and_states_repeat_recorded_numbers(compiled: None) -> None:
    x = torch.randn(8, 12, device="tenon")

    def losses() -> list[float]:
        torch.manual_seed(7)
        model = Model().to("tenon")
        found = steps(model, x, 3)
        state = torch.tenon.get_rng_state()
        y = torch.ones(50, device="tenon")
        drawn = [F.dropout(y, 0.5).cpu(), F.dropout(y, 0.5).cpu()]
        torch.tenon.set_rng_state(state)
        again = [F.dropout(y, 0.5).cpu(), F.dropout(y, 0.5).cpu()]
        assert not torch.equal(*drawn)
        assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))
        return found

    first = losses()
    assert losses() == first
    with executing("reference"):
        at_once = losses()
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


@needs.host_memory  # as compiled graphs do
def test_graphs_draw_the_masks_of_eager_code() -> None:
    x = torch.ones(300, device="tenon")
    torch.manual_seed(9)
    expected = [F.dropout(x, 0.3).cpu(), torch.rand(64, device="tenon").cpu()]
    torch.manual_seed(9)
    got = torch.compile(
        lambda x: [F.dropout(x, 0.3), torch.rand(64, device="tenon")], backend="tenon"
    )(x)
    for a, b in zip(expected, got, strict=True):
        assert torch.equal(a, b.cpu())
