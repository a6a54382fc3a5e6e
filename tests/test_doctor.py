"""The doctor sees what is missing, says how to get it, and fails only for what is needed."""

import sys
import tomllib
from pathlib import Path

import pytest
from fresh_process import TENON, python

from torch_tenon import config, loading
from torch_tenon.cli import installation
from torch_tenon.cli.installation import Finding

PYPROJECT = Path(installation.__file__).parents[2] / "pyproject.toml"
PINNED = installation.requirements()[""]["torch"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in config.SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


def _by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_pins_are_those_of_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = installation.requirements()
    settings = tomllib.loads(PYPROJECT.read_text())["tool"]["torch-tenon"]
    assert pins[""].pop("torch") == loading.built_for().partition("+")[0]
    assert [f"{name}=={version}" for name, version in pins[""].items()] == settings["dependencies"]
    pins = installation.requirements()
    assert "scipy" in pins["conformance"] and "ruff" in pins["dev"]

    def uninstalled(name: str) -> list[str]:
        raise installation.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(installation.importlib.metadata, "requires", uninstalled)
    assert installation.requirements() == pins


@pytest.mark.parametrize(
    ("found", "ok"),
    [(PINNED, True), (f"{PINNED}+cpu", True), ("2.12.1", False), (None, False)],
)
def test_pytorch_has_to_be_the_pinned_one(
    monkeypatch: pytest.MonkeyPatch, found: str | None, ok: bool
) -> None:
    monkeypatch.setattr(installation, "_installed", lambda name: found)
    (finding,) = installation._torch()
    assert finding.ok is ok and finding.failed is not ok
    assert ok or f"pip install torch=={PINNED}" in finding.remedy


def test_a_missing_extra_is_not_needed_and_a_missing_package_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pins = {"": {"no-such-package": "1.0"}, "dev": {"no-such-tool": "2.0", "torch": "0"}}
    monkeypatch.setattr(installation, "requirements", lambda: pins)
    findings = _by_name(installation._extras())
    packages, extra = findings["Packages"], findings["Extra `dev`"]
    assert packages.failed and packages.remedy == "pip install no-such-package==1.0"
    assert not extra.ok and not extra.failed and extra.remedy == "pip install no-such-tool==2.0"


def test_no_compiler_is_allowed_and_a_wrong_one_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = installation._compiler()
    assert finding.ok and config.COMPILER_PACKAGE in finding.text
    monkeypatch.setitem(sys.modules, config.COMPILER_PACKAGE, None)
    (finding,) = installation._compiler()
    assert not finding.ok and not finding.failed and "apt install gcc" in finding.remedy
    monkeypatch.setenv("TENON_CC", "no-such-compiler")
    (finding,) = installation._compiler()
    assert finding.failed and finding.remedy == "unset TENON_CC"
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\necho mycc 1.2.3\necho more\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("TENON_CC", str(compiler))
    (finding,) = installation._compiler()
    assert finding == Finding("C compiler", f"{compiler}: mycc 1.2.3")


def test_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cache"
    monkeypatch.setenv("TENON_CACHE_DIR", str(path))
    (finding,) = installation._cache()
    assert finding.ok and "not made yet" in finding.text
    config.cache_directory()
    (path / "kernels").mkdir()
    (path / "kernels" / "a.so").write_bytes(bytes(1500))
    (path / "b.json").write_bytes(bytes(36))
    (finding,) = installation._cache()
    assert finding.ok and finding.text == f"{path}, 1.5 KiB in 2 files, yours alone"
    path.chmod(0o755)
    (finding,) = installation._cache()
    assert finding.failed and "TENON_CACHE_DIR" in finding.remedy


def test_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [f.text for f in installation._settings()] == ["all at their defaults"]
    monkeypatch.setenv("TENON_DEVICES", "2")
    monkeypatch.setenv("TENON_LOG", "nonsense")
    findings = _by_name(installation._settings())
    assert findings["TENON_DEVICES"].text == "2 (default: 1)"
    assert findings["TENON_LOG"].failed and "nonsense" in findings["TENON_LOG"].text


def test_a_device_that_does_not_load_shows_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        try:
            raise ValueError("no such target")
        except ValueError as error:
            raise RuntimeError("Failed to load the backend extension") from error

    monkeypatch.setattr(installation, "_load_device", fails)
    monkeypatch.setattr(installation.importlib.util, "find_spec", lambda name: object())
    device, _ = installation._device()
    assert device.failed and device.text == "does not load: ValueError: no such target"
    assert "pip install" in device.remedy
    monkeypatch.setenv("TENON_TARGET", "nonsense")
    device, target = installation._device()
    assert device.remedy == "look at the settings below" and target.text == "nonsense"


@pytest.mark.slow
def test_every_check_answers() -> None:
    # With the extension built or not: what the report holds, and that the exit status tells.
    done = python(*TENON, "doctor")
    for name in ("Python", "PyTorch", "Device", "Target", "C compiler", "Cache", "Build tools"):
        assert name in done.stdout, done.stdout + done.stderr
    assert done.returncode == ("something needed is missing" in done.stdout)
