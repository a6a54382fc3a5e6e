"""What an exported program is given: examples when it is made, and arrays when it runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from against_cpu import assert_same
from torch import Tensor, nn

import torch_tenon
from torch_tenon.exporting.errors import ExportError

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: Tensor, y: Tensor, *, z: list[Tensor]) -> tuple[Tensor, ...]:
        return x * self.weight + y, z[0] + self.shift, x, y, z[0]


def examples(model: Scaled) -> dict[str, tuple[Any, ...]]:
    x, y = torch.randn(4), torch.randn(4)
    return {
        "input": (x, x, [x]),
        "parameter": (model.weight, y, [x]),
        "buffer": (x, y, [model.shift]),
    }


@pytest.mark.parametrize("kind", ["input", "parameter", "buffer"])
def test_an_example_that_is_another_tensor_too(tmp_path: Path, kind: str) -> None:
    model = Scaled().eval()
    x, y, z = examples(model)[kind]
    path = tmp_path / "model.tenon"
    torch_tenon.export(model, (x, y), path, {"z": z}, cpu="native")
    given = [torch.randn(4) for _ in range(3)]
    expected = model(*given[:2], z=given[2:])
    assert_same(torch_tenon.load(path)(*given), [t.detach() for t in expected])
    program = torch.export.export(model, (x, y), {"z": z})
    other = tmp_path / "other.tenon"
    for given_program in (program, {"forward": program}):
        with pytest.raises(ExportError, match=r"forward: the example .* is the same tensor as"):
            torch_tenon.export(given_program, path=other)
    assert not other.exists()


class NeverTraced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise AssertionError("the model is traced")


def folder_that_is_read_only(folder: Path) -> Path:
    if os.geteuid() == 0:  # who may write wherever a file system can
        return Path("/sys")
    folder.chmod(0o500)
    return folder


@pytest.mark.parametrize("weights", ["inside", "apart"])
def test_a_path_that_cannot_be_written_is_refused_first(tmp_path: Path, weights: str) -> None:
    (tmp_path / "file").write_bytes(b"something else")
    (tmp_path / "closed").mkdir()
    kinds: list[tuple[type[OSError], Path, str]] = [
        (FileNotFoundError, tmp_path / "no" / "m.tenon", "there is no folder .*no: make it"),
        (NotADirectoryError, tmp_path / "file" / "m.tenon", "file is a file and no folder"),
        (IsADirectoryError, tmp_path, "is a folder: give the path of a file in it"),
        (OSError, folder_that_is_read_only(tmp_path / "closed") / "m.tenon", "no file can be wri"),
    ]
    for kind, path, words in kinds:
        with pytest.raises(kind, match=words) as raised:
            torch_tenon.export(NeverTraced().eval(), (torch.ones(2),), path, weights=weights)
        assert raised.value.filename == str(path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["closed", "file"]


def test_a_path_of_weights_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").mkdir()
    how: dict[str, Any] = {"weights": tmp_path / "w.safetensors"}
    with pytest.raises(IsADirectoryError, match="is a folder"):
        torch_tenon.export(NeverTraced().eval(), (torch.ones(2),), tmp_path / "m.tenon", **how)
    for weights in ("apart", tmp_path / "m.safetensors"):
        with pytest.raises(ValueError, match="is the file of the weights too"):
            path = tmp_path / "m.safetensors"
            torch_tenon.export(NeverTraced().eval(), (torch.ones(2),), path, weights=weights)


class Products(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return x * x.conj(), x.real + 1, x.mH


def test_examples_that_are_complex_views(tmp_path: Path) -> None:
    model, path = Products().eval(), tmp_path / "model.tenon"
    x = torch.view_as_complex(torch.randn(3, 4, 2))
    for example in (x, x.conj(), x.clone().conj()):
        torch_tenon.export(model, (example,), path, cpu="native")
        program = torch_tenon.load(path)
        for given in (x, x.conj(), x.clone()):
            assert_same(program(given), model(given), rtol=1e-5, atol=1e-5)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_a_method_of_a_name_that_programs_have(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x, path = torch.randn(3), tmp_path / "model.tenon"
    method = torch.export.export(Twice(), (x,))
    torch_tenon.export({"reset": method, "double": method}, path=path, cpu="native")
    assert "program.methods['reset']" in caplog.text
    assert "double" not in caplog.text
    program = torch_tenon.load(path)
    assert_same(program.methods["reset"](x), x * 2)
    assert_same(program.double(x), x * 2)


def test_arguments_that_an_exported_program_has_no_use_for(tmp_path: Path) -> None:
    x = torch.randn(3)
    program = torch.export.export(Twice(), (x,))
    for model in (program, {"double": program}):
        for word, given in (
            ("args", (x,)),
            ("kwargs", {}),
            ("dynamic_shapes", ({0: torch.export.Dim.AUTO},)),
        ):
            with pytest.raises(TypeError, match=word):
                torch_tenon.export(model, path=tmp_path / "model.tenon", **{word: given})
    assert not list(tmp_path.iterdir())


class Thirds(nn.Module):
    """The sizes of parts are divisions whose rest is negative."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        n = x.shape[0]
        return *x.repeat(3, 1).chunk(3), x.new_zeros((3 * n - 1) // n, 2) + x[0, :2]


def test_sizes_by_divisions_that_round_down(tmp_path: Path) -> None:
    model, path = Thirds().eval(), tmp_path / "model.tenon"
    shapes = ({0: torch.export.Dim.AUTO},)
    torch_tenon.export(model, (torch.randn(11, 3),), path, dynamic_shapes=shapes, cpu="native")
    program = torch_tenon.load(path)
    for n in (2, 3, 11, 50):
        x = torch.randn(n, 3)
        assert_same(program(x), model(x))
    assert [o.sizes[0] for o in program.forward.outputs] == [(2, None)] * 3 + [2]


def test_masked_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.tenon"
    torch_tenon.export(Twice(), (torch.randn(3),), path, cpu="native")
    program = torch_tenon.load(path)
    x = np.ma.masked_less(np.array([1, -1, 2], "float32"), 0)
    with pytest.raises(TypeError, match="masked"):
        program(x)
    np.testing.assert_array_equal(program(x.filled(0)), np.array([2, 0, 4], "float32"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "NoneType is no array"),
        (np.array([1, None, 2], object), "an array of object"),
        (torch.ones(3).to_sparse(), "a tensor of torch.sparse_coo, and no dense one"),
        (torch.empty(3, device="meta"), "a tensor of meta, and no dense one"),
        ([[1.0, 2.0], [3.0]], "inhomogeneous"),
    ],
)
def test_what_is_no_array_is_told_by_the_inputs_name(
    tmp_path: Path, given: object, words: str
) -> None:
    """The error was PyTorch's or NumPy's own, and named none of several inputs."""
    path = tmp_path / "model.tenon"
    args = (torch.randn(3), torch.randn(3))
    torch_tenon.export(nn.PairwiseDistance().eval(), args, path, cpu="native")
    program = torch_tenon.load(path)
    name = program.forward.inputs[1].name
    with pytest.raises(TypeError, match=f"forward: input '{name}': .*{words}"):
        program(args[0], given)


@pytest.mark.parametrize("args", [torch.randn(1, 3), np.ones((1, 3), "float32"), {"x": 1}])
def test_arguments_are_a_tuple(tmp_path: Path, args: object) -> None:
    """A tensor was taken for its rows: of one row, the program had another shape."""
    with pytest.raises(TypeError, match=f"args: a tuple .* not {type(args).__name__}"):
        torch_tenon.export(Twice(), args, tmp_path / "model.tenon", cpu="native")  # type: ignore[arg-type]
