"""`tenon export`, `tenon info`, `tenon run`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from torch_tenon.cli import app
from torch_tenon.runtime.size_words import size_text, size_value

MODEL = """
    import torch
    from torch import nn

    from sizes_of_the_model import BATCH

    class Pair(nn.Module):
        def forward(self, x, mask):
            y = torch.cat([x * mask, x])
            return y, y, 3

    class Named(nn.Module):
        def forward(self, x):
            return {"a/b": x + 1, "a_b": x + 2, "a_b1": x + 3}

    def named():
        return Named(), (torch.ones(2),)

    def pair():
        sizes = ({0: BATCH, 1: torch.export.Dim.AUTO}, {0: BATCH, 1: torch.export.Dim.AUTO})
        return torch.export.export(
            Pair(), (torch.ones(4, 3), torch.ones(4, 3)), dynamic_shapes=sizes
        )

    three = nn.Linear(1, 1)
    triple = lambda: (three, (torch.ones(1, 1),), None)

    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
    (tmp_path / "sizes_of_the_model.py").write_text(
        "import torch\nBATCH = torch.export.Dim('batch', max=64)\n"
    )
    path = tmp_path / "m.tenon"
    arguments = ["export", f"{tmp_path}/model.py:model", "-o", str(path), "--cpu", "native"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "forward" in result.output
    return path


def test_info(program: Path) -> None:
    result = CliRunner().invoke(app, ["info", str(program)])
    assert result.exit_code == 0, result.output
    assert "machine code" in result.output
    assert "forward(input: float32[2, 4]) -> output: float32[2, 3]" in result.output
    found = json.loads(CliRunner().invoke(app, ["info", str(program), "--json"]).output)
    assert len(found["digest"]) == 64
    assert [m["name"] for m in found["methods"]] == ["forward"]
    assert found["methods"][0]["inputs"][0]["shape"] == ["2", "4"]


def test_run(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 4), 2, "float32"))
    arguments = ["run", str(program), "-i", f"{tmp_path}/x.npy", "--repeat", "3"]
    result = CliRunner().invoke(app, [*arguments, "-o", f"{tmp_path}/out"])
    assert result.exit_code == 0, result.output
    assert "float32[2, 3]" in result.output
    assert np.load(tmp_path / "out" / "output.npy").shape == (2, 3)
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert found["runs"] == 3
    assert found["replays"] == 0  # the processor records nothing
    assert found["median_seconds"] > 0


def test_each_result_has_a_file(program: Path, tmp_path: Path) -> None:
    path, folder = f"{tmp_path}/named.tenon", tmp_path / "out"
    arguments = ["export", f"{tmp_path}/model.py:named", "-o", path, "--cpu", "native"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert CliRunner().invoke(app, ["run", path, "-o", str(folder)]).exit_code == 0
    found = {file.name: np.load(file).tolist() for file in folder.iterdir()}
    assert found == {"a_b.npy": [2, 2], "a_b1.npy": [3, 3], "a_b11.npy": [4, 4]}


@pytest.mark.slow
def test_sizes_are_chosen_by_their_names(program: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "pair.tenon")
    arguments = ["export", f"{tmp_path}/model.py:pair", "-o", path, "--cpu", "native"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    method, *ones = json.loads(CliRunner().invoke(app, ["info", path, "--json"]).output)["methods"]
    assert {m["name"] for m in ones} == {"forward"}, "forms for sizes of 1"
    (rows, *_), (columns, *_) = method["symbols"]
    shown = CliRunner().invoke(app, ["info", path]).output
    assert f"x: float32[{rows}, {columns}], mask: float32[{rows}, {columns}]" in shown
    assert f"float32[2 * {rows}, {columns}]" in shown

    run = CliRunner().invoke(app, ["run", path, "--size", f"{rows}=5", "--size", f"{columns}=7"])
    assert run.exit_code == 0, run.output
    assert run.output.count("float32[10, 7]") == 2

    np.save(tmp_path / "x.npy", np.ones((6, 8), "float32"))
    run = CliRunner().invoke(app, ["run", path, "-i", f"{tmp_path}/x.npy"])
    assert "float32[12, 8]" in run.output, "what is made up fits what is given"

    run = CliRunner().invoke(app, ["run", path, "--size", "x=5"])
    assert run.exit_code == 1
    assert f"--size x=5: forward has the sizes {rows}, {columns}" in run.output


def test_expressions_of_sizes() -> None:
    a, b = [1, 0], [1, 1]
    for words, text in [
        ([0, 7], "7"),
        ([0, 1, *a, 3, 0, 2, 2], "a + 2"),
        ([*a, *b, 2, 0, 3, 3], "(a + b) * 3"),
        ([*a, *b, 0, 2, 3, 4], "a // (b * 2)"),
        ([*a, *b, 4, 0, 2, 3], "a // b * 2"),
        ([*a, 0, -1, *b, 3, 2, 0, 4, 5], "(a + -1 * b) % 4"),
        ([*a, *b, 6], "a // b"),
    ]:
        assert size_text(words, "ab") == text
        assert size_value(words, [23, 5]) == eval(text, {"a": 23, "b": 5})
    for damaged in ([0], [2], [*a, *b], [], [*a, *b, 9]):
        with pytest.raises((IndexError, KeyError, ValueError)):
            size_text(damaged, "ab")


def test_what_is_wrong_is_told(program: Path, tmp_path: Path) -> None:
    (tmp_path / "no.tenon").write_bytes(b"something else")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "two.npz", x=np.ones(3), y=np.ones(3))
    (tmp_path / "half.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:100])
    for arguments, words in [
        (["info", f"{tmp_path}/no.tenon"], "is no program"),
        (["run", f"{tmp_path}/no.tenon"], "is no program"),
        (["run", str(program), "--method", "decode"], "forward"),
        (["run", str(program), "-i", f"{tmp_path}/empty.npy"], "empty.npy: "),
        (["run", str(program), "-i", f"{tmp_path}/two.npz"], "two.npz: it has several arrays"),
        (["run", str(program), "-i", f"{tmp_path}/half.npz"], "half.npz: "),
        (["run", str(program), "--size", "n=3"], "forward has no size to choose"),
        (["export", "nowhere.py:f"], "FILE.py:NAME"),
        (["export", f"{tmp_path}/model.py:three"], "three of"),
        (["export", f"{tmp_path}/model.py:triple"], "triple gives 3 things"),
        (["export", f"{tmp_path}/model.py:model", "-o", f"{tmp_path}/no/m"], "there is no folder"),
    ]:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1
        assert words in result.output
