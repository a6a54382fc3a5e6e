"""`torch.compile(backend="tenon")` gives eager's answers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from torch_tenon.frontends.dynamo import explain_graphs, register

register()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield


def same(function: Callable[..., Any], *args: Any, dynamic: bool | None = None) -> Any:
    """Runs both ways on copies of the arguments; compares results and arguments afterwards."""
    ours, theirs = copy.deepcopy(args), copy.deepcopy(args)
    want = function(*theirs)
    compiled = torch.compile(function, backend="tenon", dynamic=dynamic)
    got = compiled(*ours)
    pairs = zip(pytree.tree_leaves((got, ours)), pytree.tree_leaves((want, theirs)), strict=True)
    for a, b in pairs:
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
            assert a.stride() == b.stride()
    return compiled


FORWARD = {
    "chain": lambda x: torch.sigmoid(torch.tanh(x * 2 + 1).exp()) - x,
    "softmax rows": lambda x: torch.softmax(x, -1),
    "softmax columns": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "statistics": lambda x: (x.sum(), x.sum(0), x.mean(1), x.var(1), x.max(1), x.argmax(0)),
    "scans": lambda x: (x.cumsum(0), x.cumsum(1)),
    "running products beyond float32": lambda x: (
        (x.sign() * 10.0 ** torch.where(torch.arange(50) < 25, 3, -3)).cumprod(1)[:, -1:] * x
    ),
    "views": lambda x: (x.t() + 1, x[:, ::2] * 2, x.flip(0), torch.cat([x, x * 2], 1)),
    "layer norm": lambda x: F.layer_norm(x + 1, (x.shape[1],)),
    "bool and int": lambda x: ((x > 0) & (x < 1), (x * 10).to(torch.int64) // 3, x > x.mean()),
    "pad and roll": lambda x: (F.pad(x, (1, 2, 0, 3), value=2.0), x.roll(3, 1)),
    "scatter": lambda x: torch.zeros_like(x).index_add(0, torch.tensor([1, 0, 1]), x[:3]),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    same(FORWARD[name], torch.randn(37, 50))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_floats(dtype: torch.dtype) -> None:
    x = torch.randn(16, 40).to(dtype)
    compiled = torch.compile(lambda x: torch.softmax(x * 2, -1).sum(0), backend="tenon")
    want = torch.softmax(x.double() * 2, -1).sum(0)
    assert compiled(x).dtype is dtype
    tolerance = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(compiled(x).double(), want, rtol=tolerance, atol=tolerance)


def test_mutation_of_inputs() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * y
        x.add_(y)
        y[2:4].mul_(3)
        return z + x

    same(f, torch.randn(6, 5), torch.randn(6, 5))


def test_outputs_alias_inputs() -> None:
    same(lambda x: (x.t(), x[1], x + 1), torch.randn(4, 6))


def test_dynamic_sizes() -> None:
    f = lambda x, y: (torch.softmax(x @ y, -1).sum(0), (x + 1).reshape(-1))  # noqa: E731
    compiled = same(f, torch.randn(5, 7), torch.randn(7, 9), dynamic=True)
    for n in (6, 11, 300):
        x, y = torch.randn(n, 7), torch.randn(7, 9)
        for a, b in zip(compiled(x, y), f(x, y), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    """Attention, a convolution, batch norm, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(8, 16, 3, padding=1), nn.BatchNorm1d(16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.bn(self.conv(x))).transpose(1, 2)
        return self.head(self.attention(x).mean(1))


@pytest.mark.slow
def test_training() -> None:
    model = Net()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend="tenon")
    x, y = torch.randn(4, 8, 12), torch.randint(0, 5, (4,))
    for m, run in ((model, model), (other, compiled)):
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(run(x), y).backward()
            optimizer.step()
    for a, b in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    for a, b in zip(other.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_random_numbers() -> None:
    compiled = torch.compile(lambda x: (torch.rand_like(x), torch.randn_like(x)), backend="tenon")
    x = torch.empty(200_000)
    torch.manual_seed(3)
    u, z = compiled(x)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.01 and abs(z.mean()) < 0.02 and abs(z.std() - 1) < 0.02
    assert not torch.equal(compiled(x)[0], u)
    torch.manual_seed(3)
    assert torch.equal(compiled(x)[0], u)


def test_dropout_keeps_its_mask_for_the_backward() -> None:
    x = torch.randn(1000, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.4), backend="tenon")(x)
    y.sum().backward()
    assert 0.5 < (y != 0).float().mean() < 0.7
    torch.testing.assert_close(x.grad, (y != 0).float() / 0.6)


def test_index_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 5"):
        torch.compile(lambda x, i: x[i] + 1, backend="tenon")(
            torch.randn(5), torch.tensor([1, 9, 2])
        )
    with pytest.raises(IndexError, match="index out of range in self"):
        torch.compile(F.embedding, backend="tenon")(torch.tensor([7]), torch.randn(5, 3))


def test_a_graph_s_page_says_what_was_made_and_why() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    forward, backward = explain_graphs(lambda x: torch.softmax(x @ x + 1, -1), x)
    assert (forward.kind, backward.kind) == ("forward", "backward")
    assert 0 < forward.least_bytes <= forward.bytes_moved
    assert len(forward.steps) == forward.kernels + forward.calls
    assert "kernel matmul" in str(forward) and "kernel row" in str(forward)
    assert "times the least possible" in str(forward)
