"""What the host waits for on a target that computes while the host goes on.

The functions run in processes that have such a target, a late one: it begins when the host waits.
"""

from collections.abc import Iterator

import pytest
import torch
from fresh_process import TESTS, output
from torch import nn
from turns import settle

import torch_tenon

LATE_TARGET = f"{TESTS / 'targets' / 'late.py'}:LateTarget"


class Classifier(nn.Module):
    """A transformer's layer over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.out(self.layer(self.embedding(tokens)).mean(1))


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), torch.randn(5, 8)


def convnet() -> tuple[nn.Module, torch.Tensor]:
    convolution = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    layers = nn.Sequential(convolution, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))
    return layers, torch.randn(5, 1, 8, 8)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    return Classifier(), torch.randint(0, 11, (5, 6))


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer}


def waits() -> dict[str, int]:
    """How often the host has waited, by what for."""
    return {name: n for name, n in torch_tenon.counters().items() if name.startswith("wait::")}


def waits_since(before: dict[str, int]) -> dict[str, int]:
    now = waits()
    return {name: n - before.get(name, 0) for name, n in now.items() if n > before.get(name, 0)}


#: Reading a tensor waits for who writes it, then for its bytes.
A_READ = {"wait::the host reads": 1, "wait::copy": 1}


def steps_of(name: str, optimizer: str, device: str) -> Iterator[torch.Tensor]:
    """The loss of each step."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    labels = torch.tensor([0, 1, 2, 0, 1]).to(device)
    model, x = model.to(device), x.to(device)
    chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01)
    while True:
        chosen.zero_grad()
        loss = nn.functional.cross_entropy(model(x), labels)
        loss.backward()
        chosen.step()
        yield loss.detach()


def train(name: str, optimizer: str) -> None:
    """Steps wait for nothing, and where the loss is read for the loss."""
    steps, steps_on_cpu = (steps_of(name, optimizer, device) for device in ("tenon", "cpu"))
    for number in range(14):
        before = waits()
        loss, on_cpu = next(steps), next(steps_on_cpu)
        steady = number >= 8  # there are plans for steps with and without a read
        assert not steady or waits_since(before) == {}
        if number % 3:
            torch.testing.assert_close(loss.item(), on_cpu.item(), rtol=1e-3, atol=1e-5)
            assert not steady or waits_since(before) == A_READ


long = pytest.mark.long


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        ("mlp", "AdamW"),
        pytest.param("mlp", "SGD", marks=long),
        ("convnet", "SGD"),
        pytest.param("convnet", "AdamW", marks=long),
        pytest.param("transformer", "SGD", marks=long),
        ("transformer", "AdamW"),
    ],
)
def test_a_step_waits_where_the_host_reads(model: str, optimizer: str) -> None:
    run_here(f"train({model!r}, {optimizer!r})")


def index_out_of_range() -> None:
    table, other = torch.randn(4, 3), torch.randn(5)
    there, other_there = table.to("tenon"), other.to("tenon")
    good = torch.tensor([3, 0]).to("tenon")
    bad = torch.tensor([1, 9]).to("tenon")
    for number in range(6):
        settle()
        before = waits()
        rows = there.index_select(0, bad if number > 2 else good) * 2
        event = torch.Event("tenon")
        event.record()
        unrelated = other_there * 3 + number
        there.add_(1)
        table += 1
        total = rows.sum()
        if number > 2:  # there are plans
            assert waits_since(before) == {} and not event.query()
            event.synchronize()
            assert waits_since(before) == {"wait::an event": 1} and event.query()
        torch.testing.assert_close(unrelated.cpu(), other * 3 + number)
        torch.testing.assert_close(there.cpu(), table)
        if number <= 2:
            torch.testing.assert_close(rows.cpu(), (table - 1)[[3, 0]] * 2)
            continue
        for lost in (rows, total, rows):
            with pytest.raises(IndexError, match="index out of range in self"):
                lost.cpu()
        torch.testing.assert_close(
            (unrelated + there[0, 0]).cpu(), other * 3 + number + table[0, 0]
        )


@pytest.mark.slow
def test_an_index_out_of_range_arrives_with_the_event() -> None:
    run_here("index_out_of_range()")


@pytest.mark.slow
def test_a_graph_keeps_what_it_reads() -> None:
    run_here("test_graphs.test_a_graph_keeps_what_it_reads(False)")
    run_here("test_graphs.test_a_graph_keeps_what_it_reads(True)")


def run_here(call: str) -> None:
    code = f"""
        import sys
        sys.path.insert(0, "targets")
        import test_graphs
        from test_asynchronous import *
        {call}
        print(torch.tenon.target_name())
    """
    assert output(code, TENON_TARGET=LATE_TARGET, TENON_EXECUTE="compiled") == "late"
