"""Programs whose sizes may be 1, which PyTorch's trace treats apart: each has a form of its own."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim

import torch_tenon
from torch_tenon.runtime.library import ProgramError

BATCH = Dim("batch", min=1, max=9)


def exported(folder: Path, model: Any, *args: Any, **keywords: Any) -> Any:
    torch_tenon.export(model, *args, path=folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


class Counting(nn.Module):
    """Two sizes, one that follows from another, arguments by name, and state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.convolution = nn.Conv2d(1, 2, 3, padding=1)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor, *, y: Tensor, factor: float = 2.0) -> dict[str, Any]:
        h = self.linear(x).softmax(-1)
        self.total.add_(h.sum((0, 1)))
        mean = self.convolution(x[:, None]).mean((1, 2, 3))
        return {"product": h @ y.mT * factor, "total": self.total + 1, "mean": mean, "kind": 3}


@pytest.mark.slow
@pytest.mark.parametrize("given", ["module", "program"])
def test_two_sizes(given: str, tmp_path: Path) -> None:
    rows = Dim("rows", min=1, max=7)
    shapes = {"x": {0: BATCH, 1: rows}, "y": {0: BATCH, 1: 2 * rows}}
    x, y = torch.randn(4, 5, 8), torch.randn(4, 10, 8)
    model = Counting().eval()
    traced: Any = copy.deepcopy(model)
    if given == "program":
        traced = torch.export.export(traced, (x,), {"y": y}, dynamic_shapes=shapes)
        program = exported(tmp_path, traced)
    else:
        program = exported(tmp_path, traced, (x,), kwargs={"y": y}, dynamic_shapes=shapes)
    assert [m.name for m in program.head.methods] == ["forward"] * 4
    assert list(program.methods) == ["forward"]
    assert program.forward.inputs[1].sizes == ((1, 9), (2, 14), 8)
    for n, m in [*itertools.product((1, 2, 9), (1, 2, 7)), (1, 1), (4, 5)]:
        x, y = torch.randn(n, m, 8), torch.randn(n, 2 * m, 8)
        want = model(x, y=y)
        got = program(x, y=y)
        for a, b in zip(got[:3], list(want.values())[:3], strict=True):
            torch.testing.assert_close(a, b)
        assert got[3] == 3
    for n, m in ((0, 3), (10, 3), (3, 8), (1, 8), (1, 0)):
        with pytest.raises(
            ProgramError, match=r"is expected to be at least 2.*; or 'x' \[1, 1, 8\]"
        ):
            program(torch.randn(n, m, 8), y=torch.randn(n, 2 * m, 8))


LAYERS: dict[str, Any] = {
    "norm": lambda x: F.group_norm(x[:, :, None].expand(-1, -1, 3), 4),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(-1, 1, 4, 2)] * 3),
    "broadcast": lambda x: x - x.mean(0) + x.sum(1, keepdim=True),
    "product": lambda x: x @ x.mT,
    "scaled": lambda x: F.interpolate(x[:, None], size=(x.shape[0] + 1,), mode="linear"),
    "corners": lambda x: F.interpolate(
        x.mT[None], size=(x.shape[0],), mode="linear", align_corners=True
    ),
    "ranks": lambda x: torch.cat([x.topk(3, 1)[0], x.argmax(0, keepdim=True).expand(3, -1).mT[:1]]),
}


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LAYERS)
def test_what_looks_at_sizes(name: str, tmp_path: Path) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return LAYERS[name](x)

    program = exported(tmp_path, Layer(), (torch.randn(5, 8)[:, :8],), dynamic_shapes=({0: BATCH},))
    for n in (1, 2, 9, 1):
        x = torch.randn(n, 8)
        torch.testing.assert_close(program(x), LAYERS[name](x))


class Squeezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze() + 1


class Even(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.shape[0] > 1)
        return x + 1


@pytest.mark.parametrize("model", [Squeezed(), Even()])
def test_models_that_are_others_for_one(
    model: nn.Module, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have no such form, and say so; a call is an error and no other result."""
    program = exported(tmp_path, model, (torch.randn(5, 8),), dynamic_shapes=({0: BATCH},))
    assert "forward does not take the size" in caplog.text
    torch.testing.assert_close(program(torch.ones(2, 8)), torch.full((2, 8), 2.0))
    with pytest.raises(ProgramError, match="'x' has size 1 at dimension 0"):
        program(torch.ones(1, 8))


def test_a_least_size_of_two_is_one_form(tmp_path: Path) -> None:
    shapes = ({0: Dim("batch", min=2)},)
    program = exported(tmp_path, nn.ReLU(), (torch.randn(5, 8),), dynamic_shapes=shapes)
    assert len(program.head.methods) == 1


class Heads(nn.Module):
    """Attention behind a convolution that leaves half of the steps. For one sequence PyTorch asks
    whether 64 * k is a multiple of 4 * k, and cannot tell."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(6, 16, 3, stride=2, padding=1)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(self.convolution(x).transpose(1, 2))
        h = h.view(h.shape[0], h.shape[1], 4, -1).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h, h).transpose(1, 2).flatten(2)


def test_conditions_that_pytorch_cannot_prove(tmp_path: Path, caplog: Any) -> None:
    """The form for one sequence was left out, with a warning."""
    shapes = ({0: BATCH, 2: Dim("steps", min=4, max=60)},)
    model = Heads().eval()
    program = exported(tmp_path, model, (torch.randn(3, 6, 20),), dynamic_shapes=shapes)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]
    for rows, steps in ((1, 4), (1, 9), (1, 60), (9, 33)):
        x = torch.randn(rows, 6, steps)
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-5)
