"""`tenon export`, `tenon info`, `tenon run`."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from torch_tenon.cli import app

MODEL = """
    import torch
    from torch import nn

    def model():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval(), (torch.ones(2, 4),)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(textwrap.dedent(MODEL))
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
    assert "forward(input) -> output" in result.output
    found = json.loads(CliRunner().invoke(app, ["info", str(program), "--json"]).output)
    assert len(found["digest"]) == 64
    assert [m["name"] for m in found["methods"]] == ["forward"]


def test_run(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 4), 2, "float32"))
    arguments = ["run", str(program), "-i", f"{tmp_path}/x.npy", "--repeat", "3"]
    result = CliRunner().invoke(app, [*arguments, "-o", f"{tmp_path}/out"])
    assert result.exit_code == 0, result.output
    assert "float32[2, 3]" in result.output
    assert np.load(tmp_path / "out" / "output.npy").shape == (2, 3)
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert found["runs"] == 3
    assert found["median_seconds"] > 0


def test_what_is_wrong_is_told(program: Path, tmp_path: Path) -> None:
    (tmp_path / "no.tenon").write_bytes(b"something else")
    for arguments, words in [
        (["info", f"{tmp_path}/no.tenon"], "is no program"),
        (["run", f"{tmp_path}/no.tenon"], "is no program"),
        (["run", str(program), "--method", "decode"], "forward"),
        (["export", "nowhere.py:f"], "FILE.py:NAME"),
    ]:
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 1
        assert words in result.output
