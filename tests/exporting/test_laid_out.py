"""Weights that an exported program holds in another form than the model: in panels, which products
read in order, and as values of what is computed of weights alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils import parametrizations

import torch_tenon

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def exported(folder: Path, model: nn.Module, *args: Any, **keywords: Any) -> Any:
    path = folder / "model.tenon"
    torch_tenon.export(model.eval(), args, path, **{"cpu": "native"} | keywords)
    return torch_tenon.load(path)


def names(program: Any) -> list[str]:
    """What the weights of a program are called."""
    return [name for name, *_ in program.head.weights]


class Products(nn.Module):
    """Products with weights in every spelling; each weight is read in one way."""

    def __init__(self, depth: int, columns: int) -> None:
        super().__init__()
        self.linear, self.plain = nn.Linear(depth, columns), nn.Linear(depth, columns, bias=False)
        wide = torch.randn(6, depth, columns)
        self.weights = nn.ParameterList([nn.Parameter(w.clone()) for w in wide])
        self.turned = nn.ParameterList([nn.Parameter(w.t().clone()) for w in wide])

    def forward(self, x: Tensor) -> list[Tensor]:
        rows, (a, b, c, d, *_), (e, f, g, h, *_) = x.flatten(0, -2), self.weights, self.turned
        bias = self.linear.bias
        return [
            *(F.relu(self.linear(x)), self.plain(x) * 2, x @ a, rows @ b, x @ e.t()),
            *(torch.addmm(bias, rows, c), torch.addmm(x.new_ones(len(rows), 1), rows, f.mT)),
            *(
                torch.mm(rows, d).softmax(-1),
                F.linear(x, g.permute(0, 1), bias),
                x @ h.permute(1, 0),
            ),
        ]


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("cpu", ["native", "x86-64-v2", "x86-64-v3"])
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        *(((), 33, 64), ((1,), 1100, 96), ((2,), 7, 256), ((3,), 1025, 31), ((4,), 64, 1056)),
        *(((5, 1), 2049, 62), ((2, 3), 130, 2080), ((2, 4), 1, 32), ((13,), 40, 544)),
        *(((100,), 1024, 128), ((1, 1, 1), 384, 250), ((0, 3), 8, 64), ((700,), 1030, 64)),
    ],
)
def test_products(
    tmp_path: Path, cpu: str, rows: tuple[int, ...], depth: int, columns: int
) -> None:
    torch.manual_seed(0)
    model, x = Products(depth, columns), torch.randn(*(rows or (1,)), depth)
    program = exported(tmp_path, model, x, cpu=cpu)
    # All but `permute(0, 1)`, which is no transpose.
    assert sum(name.endswith(".panels") for name in names(program)) == 9
    for found, expected in zip(program(x), model(x), strict=True):
        # A sum of so many products: its rounding grows with the root of that.
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=4e-6 * math.sqrt(depth))
    x[..., -1] = float("inf")
    for found, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(
            found, expected, rtol=2e-5, atol=4e-6 * math.sqrt(depth), equal_nan=True
        )


def test_any_number_of_rows(tmp_path: Path) -> None:
    """One file serves the driver's ways for few rows and for many."""
    model = nn.Sequential(nn.Linear(70, 96), nn.GELU(), nn.Linear(96, 64))
    rows = {"input": {0: Dim("n", min=1, max=300)}}
    program = exported(tmp_path, model, torch.randn(3, 70), dynamic_shapes=rows)
    assert sum(name.endswith(".panels") for name in names(program)) == 2
    for n in (1, 2, 3, 4, 5, 8, 9, 15, 64, 300):
        x = torch.randn(n, 70)
        torch.testing.assert_close(program(x), model(x), rtol=2e-5, atol=2e-5)


class Tied(nn.Module):
    """A weight that is looked up in, and multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.other = nn.Embedding(96, 64), nn.Linear(64, 64)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.other(self.words(ids)), self.words.weight)


def test_what_is_read_in_another_way_stays(tmp_path: Path) -> None:
    model, ids = Tied(), torch.randint(0, 96, (5,))
    program = exported(tmp_path, model, ids)
    assert sorted(names(program)) == ["other.bias", "other.weight.panels", "words.weight"]
    torch.testing.assert_close(program(ids), model(ids))


def test_methods_agree_on_a_weight(tmp_path: Path) -> None:
    """One method looks up in a weight that another one multiplies by; both multiply by a second,
    and each in its own way by a third."""

    class Second(nn.Module):
        def __init__(self, model: Tied, third: Tensor) -> None:
            super().__init__()
            self.model, self.third = model, third

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(self.model.other(x), self.model.words.weight) @ self.third

    class First(nn.Module):
        def __init__(self, model: Tied, third: Tensor) -> None:
            super().__init__()
            self.model, self.third = model, third

        def forward(self, ids: Tensor) -> Tensor:
            return self.model.other(self.model.words(ids)) @ self.third[:64].t()

    model, third = Tied(), nn.Parameter(torch.randn(96, 64))
    ids, x = torch.randint(0, 96, (5,)), torch.randn(6, 64)
    first, second = First(model, third).eval(), Second(model, third).eval()
    programs = {"a": torch.export.export(first, (ids,)), "b": torch.export.export(second, (x,))}
    torch_tenon.export(programs, path=tmp_path / "m.tenon", cpu="native")
    program = torch_tenon.load(tmp_path / "m.tenon")
    assert sum(name.endswith(".panels") for name in names(program)) == 1
    torch.testing.assert_close(program.methods["a"](ids), first(ids), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(program.methods["b"](x), second(x), rtol=1e-4, atol=1e-4)


def test_what_methods_write_stays(tmp_path: Path) -> None:
    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("w", torch.ones(32, 32))

        def forward(self, x: Tensor) -> Tensor:
            y = F.linear(x, self.w) + (self.w * 2).sum()
            self.w.add_(1)
            return y

    x = torch.randn(3, 32)
    program, model = exported(tmp_path, Grows(), x), Grows()
    for _ in range(3):
        torch.testing.assert_close(program(x), model(x), rtol=1e-5, atol=1e-4)


class Computed(nn.Module):
    """Things that are computed of weights alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = parametrizations.weight_norm(nn.Linear(40, 64))
        self.image = parametrizations.weight_norm(nn.Conv2d(4, 32, 3))
        self.orthogonal = parametrizations.orthogonal(nn.Linear(32, 32))
        self.base, self.down = nn.Linear(64, 64), nn.Linear(64, 4, bias=False)
        self.up = nn.Linear(4, 64, bias=False)
        self.register_buffer("halves", torch.randn(64, 64).half())
        self.register_buffer("eight", torch.randint(-128, 127, (64, 64), dtype=torch.int8))
        self.register_buffer("factors", torch.rand(64, 1))

    def forward(self, x: Tensor, images: Tensor) -> list[Tensor]:
        merged = self.base.weight + 0.5 * self.up.weight @ self.down.weight
        return [
            self.scaled(x),
            self.image(images),
            self.orthogonal(x[:, :32]),
            F.linear(self.scaled(x), merged, self.base.bias),
            F.linear(x[:, :1], (self.halves.float() / 8).t()[:, :1]),
            F.linear(self.scaled(x), self.eight.float() * self.factors),
            merged,
            self.factors.max(0).values + x.sum(),
            self.base.bias.sort(descending=True)[1],
        ]


def test_what_is_computed_of_weights_is_computed_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Computed(), (torch.randn(5, 40), torch.randn(2, 4, 9, 9))
    before = copy.deepcopy(model.state_dict())
    program = exported(tmp_path, model, *args)
    held = names(program)
    assert not any("parametrizations" in n and "computed" not in n for n in held), held
    assert "eight" in held and not any(n.startswith("eight.") for n in held)
    for found, expected in zip(program(*args), model(*args), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-4)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


class Alike(nn.Module):
    """Values that have the same bytes and sizes, and differ in dtype or in strides."""

    def __init__(self) -> None:
        super().__init__()
        for dtype in ("float32", "int32", "bfloat16", "int16", "bool", "complex64"):
            self.register_buffer(f"z{dtype}", torch.zeros(8, 8, dtype=getattr(torch, dtype)))
        self.register_buffer("square", torch.ones(8, 8))

    def forward(self, x: Tensor) -> list[Tensor]:
        floats, whole = self.zfloat32 + 0, self.zint32 + 0
        turned = (self.square.t() * 3).as_strided((64,), (1,))
        return [
            *(x + floats, x + whole, x + (self.zbfloat16 * 2), x + (self.zint16 * 2)),
            *((self.zbool | self.zbool) + x, (self.zcomplex64 * 1j).conj() + x),
            *(whole / 2, floats.int(), turned + x.flatten(), (self.square * 3) + x),
            *((self.square.t() * 3) @ x, self.zbfloat16 * 2, (self.zcomplex64 + 1j).conj() * 1),
        ]


def test_values_of_the_same_bytes_are_apart(tmp_path: Path) -> None:
    model, x = Alike(), torch.randn(8, 8)
    model.square[:] = torch.arange(64.0).view(8, 8)
    program = exported(tmp_path, model, x)
    for found, expected in zip(program(x), model(x), strict=True):
        torch.testing.assert_close(found, expected, check_stride=False)


def test_rows_of_several_run_time_sizes_and_none(tmp_path: Path) -> None:
    layer = nn.Linear(24, 64)
    one = exported(tmp_path, layer, torch.randn(24))
    x = torch.randn(24)
    torch.testing.assert_close(one(x), layer(x))
    sizes = {"input": {0: Dim("a", min=2, max=40), 1: Dim("b", min=2, max=40)}}
    several = exported(tmp_path, layer, torch.randn(3, 5, 24), dynamic_shapes=sizes)
    for shape in ((2, 2), (7, 9), (40, 40)):
        x = torch.randn(*shape, 24)
        torch.testing.assert_close(several(x), layer(x), rtol=2e-5, atol=2e-5)


class Given(nn.Module):
    """A recurrent layer whose weights are inputs: they are laid out in each run."""

    def forward(self, x: Tensor, h: Tensor, *weights: Tensor) -> Tensor:
        out: Tensor = torch.lstm(x, [h, h], list(weights), True, 1, 0.0, False, False, False)[0]
        return out


def test_recurrent_weights_that_are_inputs(tmp_path: Path) -> None:
    args = (torch.randn(6, 3, 10), torch.randn(1, 3, 20))
    weights = [torch.randn(80, 10), torch.randn(80, 20), torch.randn(80), torch.randn(80)]
    program = exported(tmp_path, Given(), *args, *weights)
    torch.testing.assert_close(
        program(*args, *weights), Given()(*args, *weights), rtol=1e-5, atol=2e-6
    )


@pytest.mark.parametrize("how", ["left", "added"])
def test_products_of_a_weight_with_itself(tmp_path: Path, how: str) -> None:
    """A weight and its transpose, of which the product is too large to be a weight."""

    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(*((2, 256) if how == "left" else (64, 64))))

        def forward(self, x: Tensor) -> Tensor:
            if how == "left":
                return x @ (self.weight.t() @ self.weight)
            return torch.addmm(self.weight.t(), x, self.weight)

    model = Square()
    x = torch.randn(64, 256 if how == "left" else 64)
    torch.testing.assert_close(exported(tmp_path, model, x)(x), model(x), rtol=1e-4, atol=1e-3)
