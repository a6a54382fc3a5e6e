"""Recurrent layers in exported programs: a kernel goes from step to step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import torch_tenon
from torch_tenon.exporting.errors import ExportError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Recurrent(nn.Module):
    """A layer whose first states are given."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        states = (h, h * 0.5) if isinstance(self.layer, nn.LSTM) else h
        return tuple(tree_leaves(self.layer(x, states)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    ("layers", "both", "first", "biases"),
    [(2, False, True, True), (1, True, False, False), (2, True, True, True)],
)
def test_layers(
    tmp_path: Path, kind: type[nn.RNNBase], layers: int, both: bool, first: bool, biases: bool
) -> None:
    layer = kind(10, 21, layers, bias=biases, batch_first=first, bidirectional=both)
    model = Recurrent(layer).eval()
    x, h = torch.randn(4, 7, 10) * 3, torch.randn(layers * (1 + both), 4 if first else 7, 21)
    torch_tenon.export(model, (x, h), tmp_path / "m.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "m.tenon")
    torch.testing.assert_close(program(x, h), model(x, h), rtol=1e-5, atol=2e-6)
    assert len(program.head.methods[0].facts["steps"]) < 8 * layers * (1 + both)


def test_special_values(tmp_path: Path) -> None:
    model = Recurrent(nn.RNN(3, 3, nonlinearity="relu")).eval()
    x, h = torch.randn(5, 2, 3), torch.zeros(1, 2, 3)
    torch_tenon.export(model, (x, h), tmp_path / "m.tenon", cpu="native")
    x[2, 1, 0], x[3, 0, 1] = float("nan"), float("inf")
    got = torch_tenon.load(tmp_path / "m.tenon")(x, h)
    torch.testing.assert_close(got, model(x, h), equal_nan=True)
    model = Recurrent(nn.LSTM(3, 3)).eval()
    torch_tenon.export(model, (x, h), tmp_path / "n.tenon", cpu="native")
    x[1] *= 1000  # saturated
    got = torch_tenon.load(tmp_path / "n.tenon")(x, h)
    torch.testing.assert_close(got, model(x, h), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_go_step_by_step(tmp_path: Path, dtype: torch.dtype) -> None:
    model = Recurrent(nn.GRU(4, 5)).to(dtype).eval()
    x, h = torch.randn(3, 2, 4, dtype=dtype), torch.randn(1, 2, 5, dtype=dtype)
    torch_tenon.export(model, (x, h), tmp_path / "m.tenon", cpu="native")
    got = torch_tenon.load(tmp_path / "m.tenon")(x, h)
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, model(x, h), rtol=tolerance, atol=tolerance)


class Cells(nn.Module):
    """A step of each kind, with state that is given and returned."""

    def __init__(self, biases: bool) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(8, 16, biases), nn.LSTMCell(16, 4, biases)
        self.tanh, self.relu = nn.RNNCell(4, 4, biases), nn.RNNCell(4, 4, biases, "relu")

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        found = self.gru(x, h)
        out, cell = self.lstm(found, (c, c * 0.5))
        return found, out, cell, self.relu(self.tanh(out))


@pytest.mark.parametrize("biases", [True, False])
def test_cells(tmp_path: Path, biases: bool) -> None:
    """Those of GRU and LSTM were PyTorch's alone."""
    model = Cells(biases).eval()
    given = torch.randn(3, 8), torch.randn(3, 16), torch.randn(3, 4)
    torch_tenon.export(model, given, tmp_path / "m.tenon", cpu="native")
    torch.testing.assert_close(torch_tenon.load(tmp_path / "m.tenon")(*given), model(*given))


class AnyLength(nn.Module):
    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> list[Tensor]:
        return tree_leaves(self.layer(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.filterwarnings("error:The tensor attribute")
def test_lengths_that_runs_choose(tmp_path: Path, kind: type[nn.RNNBase], first: bool) -> None:
    """PyTorch's trace fixed the length, and refused the export."""
    model = AnyLength(kind(6, 9, 2, batch_first=first, bidirectional=first)).eval()
    steps, batch = torch.export.Dim("steps", max=40), torch.export.Dim("batch", min=2, max=5)
    shapes = {"x": {int(first): steps, int(not first): batch}}
    x = torch.randn(3, 4, 6)
    torch_tenon.export(model, (x,), tmp_path / "m.tenon", cpu="native", dynamic_shapes=shapes)
    program = torch_tenon.load(tmp_path / "m.tenon")
    for length, rows in ((4, 3), (1, 2), (40, 5), (17, 4)):
        x = torch.randn(*((rows, length) if first else (length, rows)), 6)
        torch.testing.assert_close(list(program(x)), model(x), rtol=1e-5, atol=2e-6)


class Packed(nn.Module):
    """A layer over sequences of several lengths, packed before it and padded after it."""

    def __init__(self, layer: nn.RNNBase, lengths: list[int], is_sorted: bool, total: int) -> None:
        super().__init__()
        self.layer, self.lengths, self.is_sorted, self.total = layer, lengths, is_sorted, total

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first = self.layer.batch_first
        packed = nn.utils.rnn.pack_padded_sequence(
            x, self.numbers(), batch_first=first, enforce_sorted=self.is_sorted
        )
        out, states = self.layer(packed._replace(data=packed.data * 2))
        out, lengths = nn.utils.rnn.pad_packed_sequence(
            out, batch_first=first, padding_value=-1.5, total_length=self.total or None
        )
        return out, lengths, packed.data, *tree_leaves(states)

    def numbers(self) -> Tensor:
        return torch.tensor(self.lengths)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(
    ("lengths", "is_sorted", "total"),
    [([7, 1, 4, 4, 2, 6], False, 0), ([5, 5, 3, 1], True, 9), ([1, 1], False, 2), ([3], True, 3)],
)
def test_packed_sequences(
    tmp_path: Path,
    kind: type[nn.RNNBase],
    both: bool,
    lengths: list[int],
    is_sorted: bool,
    total: int,
) -> None:
    layer = kind(10, 21, 2, batch_first=both, bidirectional=both)
    model = Packed(layer, lengths, is_sorted, total).eval()
    x = torch.randn((len(lengths), 8, 10) if both else (8, len(lengths), 10))
    torch_tenon.export(model, (x,), tmp_path / "m.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "m.tenon")
    x = torch.randn_like(x)
    torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("made", ["list", "attribute", "sum", "size"])
def test_lengths_that_a_model_makes_of_numbers(tmp_path: Path, made: str) -> None:
    class Made(Packed):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            self.steps = x.shape[0]
            return super().forward(x)

        def numbers(self) -> Tensor:
            if made == "list":
                return self.lengths
            if made == "attribute":
                return kept
            return kept + 1 - 1 if made == "sum" else torch.tensor([self.steps, 2])

    kept = torch.tensor([5, 2])
    model = Made(nn.GRU(3, 4), [5, 2], True, 0).eval()
    x = torch.randn(5, 2, 3)
    torch_tenon.export(model, (x,), tmp_path / "m.tenon", cpu="native")
    torch.testing.assert_close(torch_tenon.load(tmp_path / "m.tenon")(x), model(x))


@pytest.mark.parametrize("changed", ["size", "written", "random", "state"])
def test_lengths_that_a_trace_does_not_know(tmp_path: Path, changed: str) -> None:
    class Changed(Packed):
        def __init__(self) -> None:
            super().__init__(nn.GRU(3, 4), [], False, 0)
            self.register_buffer("kept", torch.tensor([2, 3]))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            self.given = x[0, :, 0].long()
            return super().forward(x)

        def numbers(self) -> Tensor:
            if changed == "state":
                return self.kept
            found = torch.tensor([4, 2])
            if changed == "written":
                found[1] = 3
            if changed == "random":
                found = torch.randint_like(found, 1, 4)
            return self.given if changed == "size" else found

    with pytest.raises(ExportError, match="lengths of a packed sequence"):
        torch_tenon.export(Changed(), (torch.ones(5, 2, 3),), tmp_path / "m.tenon", cpu="native")


def test_lengths_that_are_wrong(tmp_path: Path) -> None:
    model = Packed(nn.GRU(3, 4), [2, 6], False, 0)
    with pytest.raises(ExportError, match="of the sizes"):
        torch_tenon.export(model, (torch.ones(5, 2, 3),), tmp_path / "m.tenon", cpu="native")
