"""The command `tenon`: what it prints, its exit status, and that it starts without PyTorch."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import fresh_process
import pytest
from typer.testing import CliRunner, Result

from torch_tenon import cli
from torch_tenon.cli import installation
from torch_tenon.cli.installation import Finding
from torch_tenon.ops import catalogue, manifest, manifest_check, native
from torch_tenon.ops.manifest import Entry, Problem


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, arguments, prog_name="tenon")


def _run_alone(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "from torch_tenon.cli import app\n"
        "try: app(sys.argv[1:], prog_name='tenon')\n"
        "finally: print('torch loaded:', 'torch' in sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=Path(__file__).parents[1],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=fresh_process.TIMEOUT,
    )


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torch_tenon", "--help"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=fresh_process.TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: tenon" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["ops", "--help"], ["--version"], ["ops"]])
def test_starts_without_pytorch(arguments: list[str]) -> None:
    done = _run_alone(*arguments)
    assert done.returncode == 0, done.stderr
    assert "torch loaded: False" in done.stdout


def test_help_names_the_commands() -> None:
    text = _run("--help").output
    assert all(command in text for command in ("ops", "doctor", "conformance"))


@pytest.mark.slow
def test_ops_counts_routes() -> None:
    answer = json.loads(_run("ops", "--json").output)
    routed = list(manifest.routed(manifest.load()))
    assert [row["op"] for row in answer["ops"]] == [op for op, _ in routed]
    decomposed = [op for op, entry in routed if entry.route == "decomposed"]
    with_out = sum(native.variants(op).out is not None for op in decomposed)
    found = {"listed": len(decomposed), "ops": len(decomposed) + with_out}
    assert answer["routes"]["decomposed"] == found
    assert sum(route["ops"] for route in answer["routes"].values()) > 3000
    assert "aten::empty.memory_format" in _run("ops", "--all").output


def test_ops_fits_a_screen_and_counts_every_op_once() -> None:
    lines = _run("ops").output.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    families = catalogue.counts_by_family(manifest.load())
    by_route = {way: total for way, (_, total) in catalogue.counts(manifest.load()).items()}
    assert {way: sum(f[way] for f in families.values()) for way in by_route} == by_route
    assert lines[-2].split() == ["all", *map(str, by_route.values())]
    assert all(any(counts.values()) for counts in families.values())


@pytest.mark.slow
def test_an_op_that_was_described_before_needs_no_pytorch(tmp_path: Path) -> None:
    arguments = ("ops", "lerp.Scalar", "--json")
    first = _run_alone(*arguments, TENON_CACHE_DIR=str(tmp_path / "cache"))
    again = _run_alone(*arguments, TENON_CACHE_DIR=str(tmp_path / "cache"))
    answer, loaded = again.stdout.rsplit("torch loaded: ", 1)
    assert loaded.strip() == "False" and first.stdout.startswith(answer)
    assert json.loads(answer)[0]["compiled"] == "lowered"
    other = _run_alone("ops", "relu", TENON_CACHE_DIR=str(tmp_path / "cache"))
    assert "torch loaded: False" in other.stdout and "aten::relu_" in other.stdout


def test_ops_describes_an_op(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"aten::lerp": (("float32", "float64"), ("float32",))}
    monkeypatch.setattr(catalogue, "cpu_dtypes", lambda: known)
    rows = json.loads(_run("ops", "lerp", "--json").output)
    assert {row["op"] for row in rows} == {
        f"aten::lerp{variant}"
        for variant in (".Scalar", "_.Scalar", ".Scalar_out", ".Tensor", "_.Tensor", ".Tensor_out")
    }
    assert all(row["cpu_dtypes"] == ["float32", "float64"] for row in rows)
    by_op = {row["op"]: row for row in rows}
    assert by_op["aten::lerp.Scalar"]["registration"] == "optional"
    assert by_op["aten::lerp.Scalar_out"]["registration"] == "required"
    assert by_op["aten::lerp_.Scalar"]["autograd"] == "formula"
    assert by_op["aten::lerp.Scalar"]["variants"]["out"] == "aten::lerp.Scalar_out"
    text = _run("ops", "aten::_thnn_fused_gru_cell").output
    assert "decomposed" in text and "required of a backend" in text


def test_ops_without_the_database_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ModuleNotFoundError("No module named 'expecttest'", name="expecttest")

    monkeypatch.setattr(catalogue, "cpu_dtypes", missing)
    result = _run("ops", "relu")
    assert result.exit_code == 0
    assert "unknown without expecttest; pip install" in " ".join(result.output.split())


def test_ops_with_an_unknown_name_names_the_nearest() -> None:
    result = _run("ops", "lerp.Scaler")
    assert result.exit_code == 1 and result.stdout == ""
    assert "no op aten::lerp.Scaler; the nearest is aten::lerp.Scalar" in result.stderr
    assert "the nearest is aten::softmax" in _run("ops", "softmx").stderr


@pytest.mark.slow
def test_ops_check_passes_on_the_manifest() -> None:
    done = _run_alone("ops", "--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(manifest.read())} entries, 0 problems" in done.stdout


def test_ops_check_fails_with_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "read", lambda: [Entry(("aten::rleu",), "fallback")])
    monkeypatch.setattr(catalogue, "registered", set)
    result = _run("ops", "--check")
    assert result.exit_code == 1
    assert "aten::rleu: is no op of PyTorch; the nearest is aten::relu" in result.output
    problem = Problem("aten::abs", "is odd")
    monkeypatch.setattr(manifest_check, "check", lambda *_: [problem])
    result = _run("ops", "--check", "--json")
    assert result.exit_code == 1
    assert json.loads(result.output)["problems"] == [{"op": "aten::abs", "text": "is odd"}]


@pytest.mark.slow
def test_a_wrong_setting_is_one_line_not_a_traceback() -> None:
    done = _run_alone("ops", "--check", TENON_TARGET="no-such-target")
    if "not loaded" in done.stdout:
        pytest.skip("the device is not built here")
    assert done.returncode == 1
    assert "no-such-target" in done.stderr and "tenon doctor" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("finding", "status"),
    [
        (Finding("Thing", "there"), 0),
        (Finding("Thing", "missing", ok=False, needed=False, remedy="get it"), 0),
        (Finding("Thing", "missing", ok=False, remedy="get it"), 1),
    ],
)
def test_doctor_fails_for_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, finding: Finding, status: int
) -> None:
    monkeypatch.setattr(installation, "examine", lambda: [finding])
    result = _run("doctor")
    assert result.exit_code == status
    assert finding.text in result.output
    assert finding.ok or "→ get it" in result.output


def test_conformance_passes_its_options_on() -> None:
    result = _run("conformance", "--help")
    assert result.exit_code == 0 and "tenon conformance" in result.output
    assert "--db" in result.output
    assert _run("conformance", "--no-such-option").exit_code == 2


def test_conformance_without_its_packages_says_what_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'expecttest'", name="expecttest")

    monkeypatch.setattr(importlib, "import_module", missing)
    result = _run("conformance")
    assert result.exit_code == 1
    text = " ".join(result.stderr.split())
    assert "needs expecttest, which is not installed; run: pip install" in text


def test_cache_shows_and_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    monkeypatch.setenv("TENON_CACHE_DIR", str(folder))
    (folder / "kernels").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    (folder / "kernels" / "a.so").write_bytes(bytes(100))
    (folder / "kernels" / "mm-1.json").write_text("{}")
    found = json.loads(_run("cache", "--json").output)
    assert found["directory"] == str(folder)
    assert found["kinds"]["compiled objects"] == {"files": 1, "bytes": 100}
    assert found["kinds"]["tuning results"]["files"] == 1
    assert str(folder) in _run("cache").output
    assert "deleted" in _run("cache", "--clear").output
    assert list(folder.iterdir()) == []
    folder.chmod(0o777)
    refused = _run("cache", "--clear")
    assert refused.exit_code == 1


@pytest.mark.slow
def test_ops_of_a_file_of_kernels(tmp_path: Path) -> None:
    def tenon(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        code = "import sys\nfrom torch_tenon.cli import app\napp(sys.argv[1:], prog_name='tenon')"
        return fresh_process.run(code, *arguments, **environment)

    file = str(Path(__file__).parents[1] / "examples" / "softshrink" / "softshrink.yaml")
    (row,) = json.loads(tenon("ops", "softshrink::softshrink", "--load", file, "--json").stdout)
    assert row["route"] == "kernel" and "for the target 'cpu'" in row["reason"]
    assert "kernels for: cpu, opencl" in row["compiled"] and row["autograd"] == "declared"
    remote = f"{Path(__file__).parent / 'targets' / 'remote.py'}:RemoteTarget"
    done = tenon("ops", "--load", file, TENON_TARGET=remote)
    assert "fallback: it has no kernel for the target 'remote', and runs by" in done.stdout
    assert "softshrink::softshrink_backward" in done.stdout
    done = tenon("ops", "softshrink::sofshrink", "--load", file)
    assert done.returncode == 1 and "the nearest is softshrink::softshrink" in done.stderr
    (tmp_path / "bad.yaml").write_text("- fnuc: x")
    done = tenon("ops", "--load", str(tmp_path / "bad.yaml"))
    assert done.returncode == 1 and "bad.yaml:1: an op has no key" in done.stderr
