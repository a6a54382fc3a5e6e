"""Memory of a model that its program holds: views of one another, and what one method writes and
another reads."""

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

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Holds(nn.Module):
    """A function of a buffer and of an input."""

    def __init__(self, buffer: Tensor, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("buffer", buffer)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.buffer, x)


def add(buffer: Tensor, x: Tensor) -> Tensor:
    buffer.add_(x)
    return buffer * 2


def multiply(buffer: Tensor, x: Tensor) -> Tensor:
    return buffer * x


def program_of(folder: Path, methods: dict[str, tuple[nn.Module, Tensor]], **keywords: Any) -> Any:
    programs = {name: torch.export.export(m.eval(), (x,)) for name, (m, x) in methods.items()}
    torch_tenon.export(programs, path=folder / "model.tenon", cpu="native", **keywords)
    return torch_tenon.load(folder / "model.tenon")


COMPLEX = torch.complex(torch.randn(4, 6), torch.randn(4, 6))
LAZY = {
    "conjugate": (COMPLEX, COMPLEX.conj()),
    "with gaps": (COMPLEX[:, 1::2], COMPLEX.conj()[:, 1::2]),
    "turned": (COMPLEX.T, COMPLEX.mH),
    "negative": (COMPLEX.imag, COMPLEX.conj().imag),
    "negative and turned": (COMPLEX.imag.T, COMPLEX.mH.imag),
}


@pytest.mark.parametrize("kind", LAZY)
def test_weights_that_are_conjugated_lazily(tmp_path: Path, kind: str) -> None:
    plain, lazy = LAZY[kind]
    assert lazy.is_conj() or lazy.is_neg()
    x = torch.randn_like(plain).contiguous()
    models = {"plain": Holds(plain, multiply), "lazy": Holds(lazy, multiply)}
    program = program_of(tmp_path, {name: (m, x) for name, m in models.items()})
    for name, model in models.items():
        assert_same(program.methods[name](x), model(x), rtol=1e-6, atol=1e-6)


class Branch(nn.Module):
    """Two weights, by names that renaming another program's would give."""

    def __init__(self) -> None:
        super().__init__()
        self.third = nn.Module()
        self.third.register_buffer("buffer", torch.full((2, 2), 5.0))
        self.register_buffer("buffer", torch.full((2, 2), 6.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.third.buffer * x, self.buffer * x


@pytest.mark.parametrize("where", ["inside", "apart"])
def test_weights_of_one_name(tmp_path: Path, where: str) -> None:
    memory, x = torch.randn(40), torch.randn(2, 2)
    models = {
        "first": Holds(memory.as_strided((2, 2), (2, 1)), multiply),
        "second": Branch(),
        "third": Holds(torch.randn(2, 2), multiply),
        "wide": Holds(memory.as_strided((2, 2), (20, 3)), multiply),
    }
    program = program_of(tmp_path, {name: (m, x) for name, m in models.items()}, weights=where)
    for name, model in models.items():
        assert_same(program.methods[name](x), model(x))
    names = [name for name, _, _ in program.head.weights]
    assert len(set(names)) == len(names)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(self.layer(x))
        return found


class Calibrate(nn.Module):
    """Writes what another method reads."""

    def __init__(self, images: Images) -> None:
        super().__init__()
        self.images = images

    def forward(self, mean: Tensor) -> Tensor:
        assert self.images.norm.running_mean is not None
        self.images.norm.running_mean.copy_(mean)
        return mean * 2


@pytest.mark.parametrize("is_first", [True, False])
def test_statistics_that_another_method_writes(tmp_path: Path, is_first: bool) -> None:
    model = Images().eval()
    calibrate = Calibrate(model)
    x, mean = torch.randn(1, 3, 6, 6), torch.randn(8)
    methods: dict[str, tuple[nn.Module, Tensor]] = {
        "calibrate": (calibrate, mean),
        "forward": (model, x),
    }
    program = program_of(tmp_path, methods if is_first else dict(reversed(methods.items())))
    with torch.no_grad():
        assert_same(program.forward(x), model(x), rtol=1e-5, atol=1e-5)
        before = copy.deepcopy(model)
        program.calibrate(mean), calibrate(mean)
        assert_same(program.forward(x), model(x), rtol=1e-5, atol=1e-5)
        program.reset()
        assert_same(program.forward(x), before(x), rtol=1e-5, atol=1e-5)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda x: x.t(),
    "a part": lambda x: x[1:],
    "another dtype": lambda x: x.view(torch.int32),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_of_state_are_refused(tmp_path: Path, kind: str) -> None:
    buffer = torch.randn(4, 4)
    seen = VIEWS[kind](buffer)
    x = torch.ones_like(seen)
    writes = (Holds(buffer, add), torch.ones(4, 4))
    for function in (multiply, add):
        with pytest.raises(ExportError, match=r"'buffer'.*memory of the state 'buffer'"):
            program_of(tmp_path, {"write": writes, "other": (Holds(seen, function), x)})
    assert not list(tmp_path.iterdir())


def test_state_between_other_state(tmp_path: Path) -> None:
    buffer, x = torch.randn(4, 6), torch.randn(4, 3)
    models = {
        "even": Holds(buffer[:, ::2], add),
        "odd": Holds(buffer[:, 1::2], add),
        "same": Holds(buffer[:, ::2], multiply),
    }
    program = program_of(tmp_path, {name: (m, x) for name, m in models.items()})
    for _ in range(2):
        for name, model in models.items():
            assert_same(program.methods[name](x), model(x))


class TwoNames(nn.Module):
    """Memory by two names, which is written by one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(4))
        self.register_buffer("two", self.one[1:])

    def forward(self, x: Tensor) -> Tensor:
        self.one += x
        return self.two * 2


def test_state_of_two_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="'one' and 'two' share memory"):
        program_of(tmp_path, {"forward": (TwoNames(), torch.ones(4))})


class Averages(nn.Module):
    """Writes a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.lerp_(x, 0.25)
        return self.mean * 2


def test_parameters_may_be_state(tmp_path: Path) -> None:
    model = Averages()
    program = program_of(tmp_path, {"forward": (copy.deepcopy(model), torch.ones(4))})
    for _ in range(3):
        x = torch.randn(4)
        assert_same(program(x), model(x).detach(), rtol=1e-6, atol=1e-6)


def test_weights_that_no_safetensors_file_has(tmp_path: Path) -> None:
    model = Holds(COMPLEX.to(torch.complex128), multiply)
    methods: dict[str, tuple[nn.Module, Tensor]] = {"forward": (model, COMPLEX)}
    with pytest.raises(ExportError, match=r"no weights of torch\.complex128"):
        program_of(tmp_path, methods, weights="apart")
    assert not list(tmp_path.iterdir())
    assert_same(program_of(tmp_path, methods)(COMPLEX), model(COMPLEX), rtol=1e-6, atol=1e-6)


class Passes(nn.Module):
    """Buffers that get what others had before these were written."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcd":
            self.register_buffer(name, torch.randn(3, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        first, last = self.a.clone(), self.d.sum()
        self.a.copy_(self.b)
        self.b.copy_(self.c.t())  # is written before what it gets is
        self.d.copy_(self.c[0])  # after it
        self.c.copy_(first)
        self.c.add_(x)
        return self.a, self.b, self.d, last


def test_state_that_is_passed_on(tmp_path: Path) -> None:
    model = Passes()
    program = program_of(tmp_path, {"forward": (copy.deepcopy(model), torch.zeros(3))})
    for _ in range(4):
        x = torch.randn(3)
        assert_same(program(x), copy.deepcopy(model)(x), rtol=1e-6, atol=1e-6)
        model(x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.float32], ids=str)
def test_state_of_another_kind_than_what_it_gets(tmp_path: Path, dtype: torch.dtype) -> None:
    """A buffer that is given fewer elements than it has, or numbers that its dtype has not."""

    def store(buffer: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        buffer.copy_(x)
        return buffer, buffer.double() * 3, buffer.sum(0)

    model = Holds(torch.zeros(2, 4, dtype=dtype), store)
    program = program_of(tmp_path, {"forward": (copy.deepcopy(model), torch.ones(4))})
    for _ in range(2):
        x = torch.randn(4) * 9
        assert_same(program(x), model(x), rtol=1e-6, atol=1e-6)
