"""`torch.use_deterministic_algorithms(True)`: one seed, one result, whatever runs the windows."""

from collections.abc import Iterator

import pytest
import torch
from fresh_process import output
from torch import nn
from turns import settle, turns


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


class Block(nn.Module):
    """What rounds: products, sums along rows and columns, exponentials, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(24, 48), nn.Linear(48, 24), nn.LayerNorm(24)
        self.mix = nn.Conv1d(9, 9, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return self.mix(x) + torch.softmax(x, -1) * x.mean(1, keepdim=True)


def train(steps: int, patient: bool) -> list[bytes]:
    """The parameters and losses of a training loop, bit by bit; a patient one waits for plans."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), nn.Dropout(0.2)).to("tenon")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        x = torch.randn(4, 9, 24, device="tenon")
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten(0, 1).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
        torch.tenon.synchronize()
        if patient:
            settle()
    results = [*model.parameters(), torch.stack(losses)]
    return [t.detach().cpu().numpy().tobytes() for t in results]


def test_a_training_loop_while_plans_take_over() -> None:
    first = train(6, patient=False)
    for _ in turns(3):
        assert train(6, patient=True) == first
    assert train(6, patient=False) == first


@pytest.mark.slow
def test_a_training_loop_in_fresh_processes() -> None:
    """In a hurry, and with time for every plan."""
    code = """
        import hashlib, sys, torch
        from test_deterministic import train
        torch.use_deterministic_algorithms(True)
        print(hashlib.sha256(b"".join(train(5, patient=sys.argv[1] == "patient"))).hexdigest())
    """
    printed = {output(code, how, TENON_EXECUTE="auto") for how in ("hurried", "patient")}
    assert len(printed) == 1


REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "mean_of_rows": lambda x: x.mean(1),
    "sum_of_columns": lambda x: x.sum(0),
    "norm": lambda x: x.norm(),
    "softmax": lambda x: torch.softmax(x, 1),
    "variance": lambda x: x.var(),
    "logsumexp": lambda x: x.logsumexp(0),
    "cumsum": lambda x: x.cumsum(1),
    "scatter_add": lambda x: torch.zeros(7, device=x.device).index_add_(
        0, torch.arange(x.numel(), device=x.device) % 7, x.flatten()
    ),
    "exp": lambda x: (x.exp() * x.sin()).tanh(),
    "matmul": lambda x: (x[:200, :300] @ x[:300, :100]).relu(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_one_value_whatever_runs(name: str) -> None:
    x = torch.rand(2048, 2048 if name == "sum" else 331, device="tenon")
    seen = {
        (REDUCTIONS[name](x * 1) + 0.1).cpu().numpy().tobytes()
        for _ in turns(12 if name == "sum" else 5)
    }
    assert len(seen) == 1


def test_the_sum_of_random_numbers() -> None:
    sums = set()
    for _ in turns(12):
        torch.manual_seed(0)
        sums.add(torch.rand(2048, 2048, device="tenon").sum().item())
    assert len(sums) == 1


def test_two_programs_in_turns() -> None:
    """They share calls, and what the one was fused with says nothing about the other."""
    x = torch.rand(300, 200, device="tenon")

    def plain() -> torch.Tensor:
        return (x * 1.5).exp().sum(1)

    def beside() -> torch.Tensor:
        y = x * 1.5
        e = y.exp()
        total = e.sum(1)
        torch.relu(y).sum(0).add_(e.mean(0))
        return total

    seen = set()
    for _ in turns(4):
        for compute in (plain, beside):
            seen.add((compute.__name__, compute().cpu().numpy().tobytes()))
    assert len(seen) == 2
