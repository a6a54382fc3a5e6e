"""What `tenon new-target` writes: three targets to start from, with their tests."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from fresh_process import ROOT, TENON, output, python
from typer.testing import CliRunner

from torch_tenon import cli

TESTS = {"memory": 4, "library": 5, "loops": 7}


def _run(*arguments: str):
    return CliRunner().invoke(cli.app, ["new-target", *arguments], prog_name="tenon")


@pytest.mark.slow
@pytest.mark.parametrize("start", TESTS)
def test_each_start_works_at_once(start: str, tmp_path: Path) -> None:
    done = _run("my_npu", "--folder", str(tmp_path), "--start", start)
    assert done.exit_code == 0, done.output
    assert f"TENON_TARGET={tmp_path}/my_npu.py:MyNpu python" in done.stdout.replace("\n", "")
    command = "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_npu.py"
    tests = python(*command, cwd=tmp_path)
    passed = f"{TESTS[start]} passed"
    assert tests.returncode == 0 and passed in tests.stdout, tests.stdout + tests.stderr
    code = """
        import torch
        x = torch.arange(6.0, device="tenon").view(2, 3)
        print(torch.tenon.target_name(), (x.t() @ x).sort(1)[0].sum().item())
    """
    target = f"{tmp_path}/my_npu.py:MyNpu"
    assert output(code, TENON_TARGET=target) == "my_npu 153.0"


def test_without_a_start_it_is_memory_and_a_queue(tmp_path: Path) -> None:
    assert _run("one", "--folder", str(tmp_path)).exit_code == 0
    assert _run("two", "--folder", str(tmp_path), "--start", "memory").exit_code == 0
    one, two = ((tmp_path / f"{name}.py").read_text() for name in ("one", "two"))
    assert one.replace("one", "two").replace("One", "Two") == two.replace("one", "two")
    assert "launch" in one and "backend = None" in one


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_the_report_says_that_generated_kernels_computed(tmp_path: Path) -> None:
    """By plans, though nobody asked for that: the target is not one that is built in."""
    _run("npu", "--folder", str(tmp_path), "--start", "loops")
    file = tmp_path / "report.json"
    ops = "add,softmax,sum,index_select,nn.functional.layer_norm,sort"
    options = f"--db ops --ops {ops} --dtype float32 --samples 2 --jobs 2"
    environment = {k: v for k, v in os.environ.items() if k != "TENON_EXECUTE"}
    report = "--target", f"{tmp_path}/npu.py:Npu", "--json", str(file)
    env = {**environment, "PYTHONPATH": str(ROOT)}
    done = python(*TENON, "conformance", *options.split(), *report, env=env, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(file.read_text())
    made = report["kinds"]["ops"]["made"]
    assert sum(made.values()) == sum(sum(r["made"].values()) for r in report["results"])
    assert made["the target's kernels"] > sum(made.values()) / 2, made
    for result in report["results"]:  # ... and why the host did, where it has worked
        by_check = sum((Counter(c["made"]) for c in result["checks"].values()), Counter())
        assert by_check == result["made"]
        worked = by_check["the host"] + by_check["them and the host"]
        assert bool(worked) == bool(result["on_host"]), (result["made"], result["on_host"])
    assert "at once: it changes the layout of an argument (" in done.stdout, done.stdout
    by_case = {r["case"].split("/")[1]: r["made"] for r in report["results"]}
    assert by_case["softmax"]["the target's kernels"] > by_case["softmax"].get("the host", 0)
    assert by_case["sort"]["the host"] > 0, by_case["sort"]
    ours = made["the target's kernels"]
    assert f"the target's kernels {ours:,}," in done.stdout


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
