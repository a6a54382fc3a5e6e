"""What `tenon new-target` writes."""

import subprocess
import sys
from pathlib import Path

import pytest
from fresh_process import output
from typer.testing import CliRunner

from torch_tenon import cli


def _run(*arguments: str):
    return CliRunner().invoke(cli.app, ["new-target", *arguments], prog_name="tenon")


def test_the_skeleton_works_at_once(tmp_path: Path) -> None:
    done = _run("my_npu", "--folder", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert f"TENON_TARGET={tmp_path}/my_npu.py:MyNpu python" in done.stdout.replace("\n", "")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_npu.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tests.returncode == 0 and "4 passed" in tests.stdout, tests.stdout + tests.stderr
    code = """
        import torch
        x = torch.arange(6.0, device="tenon").view(2, 3)
        print(torch.tenon.target_name(), (x.t() @ x).sort(1)[0].sum().item())
    """
    target = f"{tmp_path}/my_npu.py:MyNpu"
    assert output(code, TENON_TARGET=target) == "my_npu 153.0"


@pytest.mark.parametrize("name", ["", "Npu", "2npu", "my-npu", "class", "../npu", "cpu", "json"])
def test_bad_names(name: str, tmp_path: Path) -> None:
    done = _run(name, "--folder", str(tmp_path))
    assert done.exit_code == 1 and repr(name) in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", ["npu.py", "test_npu.py"])
def test_files_that_exist_are_kept(file: str, tmp_path: Path) -> None:
    (tmp_path / file).write_text("mine")
    done = _run("npu", "--folder", str(tmp_path))
    assert done.exit_code == 1 and "is there already" in done.output.replace("\n", " ")
    assert [p.name for p in tmp_path.iterdir()] == [file]
    assert (tmp_path / file).read_text() == "mine"
