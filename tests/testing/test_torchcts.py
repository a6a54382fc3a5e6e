"""The adapter of TorchCTS, on a small suite of the same shape."""

import os
import textwrap
from pathlib import Path

import pytest

from torch_tenon.testing.others import torchcts
from torch_tenon.testing.others.workers import Outcome, Runner

FILES = {
    "__init__.py": "",
    "exemptions_lifted": "",
    "core/__init__.py": "",
    "core/version_rules.py": """
        def parse_torch_version(text):
            return tuple(int(part) for part in text.split("+")[0].split("."))
        """,
    "core/pytorch_compat.py": """
        def normalize_torch_version(version=None):
            return (version or "2.13.0+cpu").split("+")[0]
        """,
    "op_metadata.py": "def _validation_metadata(metadata): return {}",
    "templates/manifest.complete.py": "manifest = {'device_name': 'auto'}",
    "conftest.py": """
        import pytest
        from manifest import manifest
        from torchcts.core.pytorch_compat import normalize_torch_version

        _ARTIFACT_WRITES_ENABLED = True

        def flush_results_to_disk():
            pass

        def pytest_addoption(parser):
            for name in ("device", "known-segfault-policy", "adaptive-isolation", "level"):
                parser.addoption(f"--{name}")
            parser.addoption("--results-dir")

        @pytest.fixture
        def device():
            assert normalize_torch_version() == "2.12.1"
            return manifest["device_name"]
        """,
    "operators/test_some.py": """
        import os, time
        import pytest

        @pytest.mark.parametrize("n", range(6))
        def test_passes(n, device):
            assert device == "cpu"

        def test_fails(device):
            assert device == "another"

        def test_skips():
            pytest.skip("not here")

        def test_crashes():
            os._exit(7)

        def test_hangs():
            time.sleep(600)

        def test_hashes():
            assert hash("a") == hash("a") and os.environ["PYTHONHASHSEED"] == "0"
        """,
}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A suite, and the folder that outcomes go to."""
    for name, text in FILES.items():
        path = tmp_path / "torchcts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "results"


@pytest.mark.long
def test_crashes_and_hangs_are_outcomes_and_the_rest_runs(fake: Path) -> None:
    found = Runner("torchcts", fake, processes=2, seconds_for_one=8).run("cpu")
    names = {node.split("::")[1]: outcome for node, outcome in found.items()}
    assert [names.pop(f"test_passes[{n}]").passed for n in range(6)] == [True] * 6
    assert names["test_fails"].outcome == "failed" and "another" in names["test_fails"].why
    assert names["test_crashes"] == Outcome("crashed", "exit status 7")
    assert names["test_hangs"] == Outcome("hung", "after 8 s")
    assert names["test_skips"].outcome == "skipped" and names["test_hashes"].passed
    # Some of the nodes, and a sample of them.
    some = {node for node in found if "passes" in node}
    assert set(Runner("torchcts", fake, processes=1).run("cpu", some)) == some
    part = Runner("torchcts", fake, processes=1, select="passes", sample=2).run("cpu")
    assert 0 < len(part) < 6 and set(part) < some


def test_the_cpu_is_compared_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each exemption of the CPU is lifted, once, and another number of them is an error."""
    folder = tmp_path / "torchcts"
    monkeypatch.setattr(torchcts, "folder", lambda: folder)
    for name in ("autograd", "generated", "operators", "opinfo", "workloads"):
        (folder / name).mkdir(parents=True)
    path = folder / "operators" / "test_a.py"
    path.write_text('if torch.device(device).type == "cpu":\n    return\n' * 40)
    with pytest.raises(RuntimeError, match="in 40 places"):
        torchcts.lift_exemptions()
    assert '"cpu"' in path.read_text()
    other = folder / "opinfo" / "test_b.py"
    other.write_text('    and device != "cpu"\n    if err_device == "cpu":\n')
    torchcts.lift_exemptions()
    torchcts.lift_exemptions()
    assert path.read_text() == "if False:\n    return\n" * 40
    assert other.read_text() == '    and True\n    if err_device == "cpu":\n'
