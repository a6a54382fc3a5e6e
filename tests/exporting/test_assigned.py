"""Buffers that a model assigns: state of its program, as written ones are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn

import torch_tenon
from torch_tenon.exporting.errors import ExportError


class Holds(nn.Module):
    """A function of itself, which has two buffers, and of an input."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("h", torch.arange(6.0).view(2, 3))
        self.register_buffer("g", torch.ones(2, 3))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x * 2)


def the_old_one(m: Any, x: Tensor) -> Any:
    old = m.h
    m.h = old + x
    return old, old[1:], m.h, old * 2


def an_input(m: Any, x: Tensor) -> Any:
    old = m.h
    m.h = x
    return old


def exchanged(m: Any, x: Tensor) -> Any:
    m.h, m.g = m.g, m.h
    return m.h + x, m.g


def exchanged_and_written(m: Any, x: Tensor) -> Any:
    m.h, m.g = m.g, m.h
    m.h.add_(x)
    return m.h * 1, m.g


def passed_on(m: Any, x: Tensor) -> Any:
    m.g = m.h.flip(0).flip(0).view(-1).view(2, 3)
    m.h = m.h.view(2, 3)[:, [2, 0, 1]] * x
    return m.g - m.h


def written_and_assigned(m: Any, x: Tensor) -> Any:
    m.h.mul_(2)
    old = m.h
    m.h = torch.zeros(2, 3)
    m.h += x
    return old, m.h


def taken_away_for_a_while(m: Any, x: Tensor) -> Any:
    h, m.h = m.h, None
    m.h = h + x
    return m.h


def twice(m: Any, x: Tensor) -> Any:
    for _ in range(2):
        m.h = m.h + x
    return m.h, x.view(-1), x


FUNCTIONS = (
    *(the_old_one, an_input, exchanged, exchanged_and_written, passed_on),
    *(written_and_assigned, taken_away_for_a_while, twice),
)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_buffers_that_are_assigned(
    tmp_path: Path, function: Callable[..., Any], inner: bool
) -> None:
    """Those of a module within the model as well."""
    model: nn.Module = Around(Holds(function)) if inner else Holds(function)
    model.eval()
    reference, path = copy.deepcopy(model), tmp_path / "model.tenon"
    before = {name: x.clone() for name, x in model.state_dict().items()}
    torch_tenon.export(model, (torch.randn(2, 3),), path, cpu="native")
    assert_same(dict(model.state_dict()), before)
    assert "forward" not in vars(model)
    program = torch_tenon.load(path)
    for _ in range(3):
        x = torch.randn(2, 3)
        assert_same(program(x.clone()), reference(x.clone()), rtol=1e-6, atol=1e-6)


def test_one_that_is_assigned_for_sizes_of_1(tmp_path: Path) -> None:
    model = Holds(lambda m, x: the_old_one(m, x.sum(0)))
    reference, path = copy.deepcopy(model), tmp_path / "model.tenon"
    rows = torch.export.Dim("rows", max=8)
    torch_tenon.export(model.eval(), (torch.randn(4, 2, 3),), path, dynamic_shapes=({0: rows},))
    program = torch_tenon.load(path)
    for n in (1, 3, 1):
        x = torch.randn(n, 2, 3)
        assert_same(program(x), reference(x), rtol=1e-6, atol=1e-6)


def _another_dtype(m: Any, x: Tensor) -> Any:
    m.h = m.h.double()
    return m.h


def _other_sizes(m: Any, x: Tensor) -> Any:
    m.h = torch.cat([m.h, x])
    return m.h


def _none(m: Any, x: Tensor) -> Any:
    m.h = None
    return x + 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (_another_dtype, r"'h', \(2, 3\) of torch.float32, a .* is \(2, 3\) of torch.float64"),
        (_other_sizes, r"'h', \(2, 3\) of torch.float32, a .* is \(4, 3\) of torch.float32"),
        (_none, "takes away its buffer 'h'"),
    ],
)
def test_state_that_would_change_its_kind(
    tmp_path: Path, function: Callable[..., Any], text: str
) -> None:
    with pytest.raises(ExportError, match=text):
        torch_tenon.export(Holds(function), (torch.randn(2, 3),), tmp_path / "model.tenon")


def test_buffers_of_two_names(tmp_path: Path) -> None:
    """Of the other name the program would have the new numbers."""
    model = Holds(the_old_one)
    model.g = model.h
    with pytest.raises(ExportError, match="share memory"):
        torch_tenon.export(model, (torch.randn(2, 3),), tmp_path / "model.tenon")
