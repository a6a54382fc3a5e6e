"""Programs of tensors without elements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from against_cpu import assert_same
from torch import Tensor, nn
from torch.export import Dim
from torch.utils._pytree import tree_leaves

import torch_tenon
from torch_tenon.runtime.arrays import Arrays, Tensors
from torch_tenon.runtime.library import ProgramError

EMPTY: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "elements": lambda x, y, k: (x.relu() + 1, k == k.view(-1, 1), k[:, None] + torch.arange(4)),
    "sums": lambda x, y, k: (x.sum(0), x.sum(1), x.sum(), x.prod(0), k.sum()),
    "means": lambda x, y, k: (x.mean(0), x.mean(), x.mean(1), F.mse_loss(x, x)),
    "truth": lambda x, y, k: ((x > 0).any(), (x > 0).all(0), x.logsumexp(0)),
    "products": lambda x, y, k: (x @ y.mT, y @ x.mT, x.mT @ x, torch.einsum("ij,ik->jk", x, x)),
    "pieces": lambda x, y, k: (torch.cat([x, y]), torch.stack([x, x]), F.pad(x, (1, 1, 2, 0))),
    "indices": lambda x, y, k: (y[k], y.index_select(0, k), F.one_hot(k, 4), F.embedding(k, y)),
    "writes": lambda x, y, k: (
        y.index_add(0, k, x),
        y.index_put((k,), x),
        y.scatter(0, k[:, None], x),
    ),
    "orders": lambda x, y, k: (*x.sort(0), *x.sort(1), x.softmax(0), x.argmax(1), x.cumsum(0)),
    "images": lambda x, y, k: (
        F.interpolate(x.view(0, 3, 1, 1), size=(4, 5), mode="bilinear"),
        F.interpolate(x.view(0, 3, 1, 1), scale_factor=2.0),
        F.max_pool2d(F.pad(x.view(0, 3, 1, 1), (1, 1, 1, 1)), 2),
        F.conv2d(x.view(0, 3, 1, 1), y.view(4, 3, 1, 1)),
    ),
}


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor, k: Tensor) -> Any:
        return self.function(x, y, k)


@pytest.mark.parametrize("name", EMPTY)
def test_fixed_sizes_of_nothing(tmp_path: Path, name: str) -> None:
    given = torch.randn(0, 3), torch.randn(4, 3), torch.zeros(0, dtype=torch.int64)
    path = tmp_path / "model.tenon"
    torch_tenon.export(Calls(EMPTY[name]).eval(), given, path, cpu="native")
    program = torch_tenon.load(path)
    for _ in range(2):
        given = torch.randn(0, 3), torch.randn(4, 3), given[2]
        assert_same(list(program(*given)), list(EMPTY[name](*given)), rtol=1e-5, atol=1e-5)


# What a size of 0 is asked of, beside what `EMPTY` has.
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 40)), (4, 40)),
    "images": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten()),
        (4, 3, 12, 12),
    ),
    "lstm": (nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True), (4, 5, 8)),
    "attention": (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), (4, 5, 16)),
    "bags": (nn.EmbeddingBag(9, 3), (4, 5)),
}


def drawn(*sizes: int) -> Tensor:
    """Numbers, and the indices that bags take."""
    return torch.randn(sizes) if len(sizes) > 2 or sizes[1] == 40 else torch.randint(9, sizes)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_a_size_that_may_be_nothing(tmp_path: Path, name: str) -> None:
    model, (count, *rest) = LAYERS[name]
    model.eval()
    path = tmp_path / "model.tenon"
    shapes = ({0: Dim("n", max=64)},)
    torch_tenon.export(model, (drawn(count, *rest),), path, dynamic_shapes=shapes, cpu="native")
    program = torch_tenon.load(path)
    for n in (0, 1, 2, 7, 0):
        x = drawn(n, *rest)
        with torch.no_grad():
            assert_same(tree_leaves(program(x)), tree_leaves(model(x)), rtol=1e-4, atol=1e-5)


class Sums(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x.sum(0), x.mean(1), x.softmax(1)


def test_one_of_two_sizes_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.tenon"
    shapes = ({0: Dim("n", max=9), 1: Dim("m", max=9)},)
    torch_tenon.export(Sums(), (torch.randn(3, 4),), path, dynamic_shapes=shapes, cpu="native")
    program = torch_tenon.load(path)
    assert program.forward.inputs[0].sizes == ((0, 9), (0, 9))
    for sizes in ((0, 2), (0, 9), (2, 0), (9, 0), (1, 1), (3, 4)):
        x = torch.randn(sizes)
        assert_same(list(program(x)), list(Sums()(x)), rtol=1e-5, atol=1e-5)
    for sizes in ((0, 0), (0, 1), (1, 0)):
        with pytest.raises(ProgramError, match=r"input 'x' has size [01] at dimension 0"):
            program(torch.randn(sizes))


class Greatest(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.amax(0)


@pytest.mark.parametrize("given", ["module", "program"])
def test_a_model_that_takes_nothing_of_nothing(tmp_path: Path, given: str, caplog: Any) -> None:
    """PyTorch's program of it raises; ours says which input and which bounds."""
    shapes = ({0: Dim("n", min=0, max=9)},)
    args = (torch.randn(3, 4),)
    path = tmp_path / "model.tenon"
    if given == "module":
        torch_tenon.export(Greatest().eval(), args, path, dynamic_shapes=shapes, cpu="native")
    else:
        traced = torch.export.export(Greatest(), args, dynamic_shapes=shapes)
        torch_tenon.export(traced, path=path, cpu="native")
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    program = torch_tenon.load(path)
    for n in (1, 2, 9):
        x = torch.randn(n, 4)
        assert_same(program(x), x.amax(0))
    with pytest.raises(
        ProgramError, match=r"'x' has size 0 at dimension 0.*at least 2 and at most"
    ):
        program(torch.randn(0, 4))


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(0)


def test_nothing_as_a_method_of_its_own(tmp_path: Path) -> None:
    """A trace of the sizes from 2 on is not for 0; another method may be."""
    any_size = ({0: Dim("n", min=2, max=64)},)
    programs = {
        "forward": torch.export.export(Sum(), (torch.randn(4, 3),), dynamic_shapes=any_size),
        "empty": torch.export.export(Sum(), (torch.randn(0, 3),)),
    }
    torch_tenon.export(programs, path=tmp_path / "model.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "model.tenon")
    with pytest.raises(ProgramError, match="'x' has size 0 at dimens"):
        program.forward(torch.randn(0, 3))
    assert program.empty(torch.randn(0, 3)).isnan().all()


@pytest.mark.parametrize("kind", [Arrays, Tensors])
def test_a_result_of_no_bytes_has_an_address(kind: type[Arrays]) -> None:
    # Where it is null the library makes memory, which nobody frees.
    _, address, nbytes = kind().made(6, [0, 4])
    assert address != 0 and nbytes == 0
