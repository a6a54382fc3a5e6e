"""`import torch` works whatever the extension was built for, and says in one line what to do."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fresh_process import run

import torch_tenon
from torch_tenon import loading
from torch_tenon.cli import installation
from torch_tenon.ops import manifest

PACKAGE = Path(torch_tenon.__file__).parent
EXTENSION = Path(torch_tenon._C.__file__)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def _copy(folder: Path, record: dict[str, str] | None, extension: bytes) -> str:
    """A copy of the package with another extension; the path to import it from."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", loading.BUILT_FOR.name)
    shutil.copytree(PACKAGE, folder / "torch_tenon", ignore=ignored)
    (folder / "torch_tenon" / EXTENSION.name).write_bytes(extension)
    if record is not None:
        (folder / "torch_tenon" / loading.BUILT_FOR.name).write_text(json.dumps(record))
    return str(folder)


@pytest.fixture(scope="module")
def other_pytorch(tmp_path_factory: pytest.TempPathFactory) -> str:
    record = {"torch": "2.99.0+cpu", "python": PYTHON}
    return _copy(tmp_path_factory.mktemp("other"), record, b"nobody loads this")


def _line(stderr: str) -> str:
    (line,) = stderr.splitlines()
    assert line.startswith("torch-tenon is not loaded: ")
    return line


USE = "import torch; print(torch.ones(2).sum().item(), torch._C._get_privateuse1_backend_name())"


def test_an_extension_for_another_pytorch_is_not_loaded(other_pytorch: str) -> None:
    done = run(USE, PYTHONPATH=other_pytorch, TORCH_DEVICE_BACKEND_AUTOLOAD=None)
    assert (done.returncode, done.stdout) == (0, "2.0 privateuseone\n"), done.stderr
    line = _line(done.stderr)
    assert "built for PyTorch 2.99.0+cpu" in line and torch.__version__ in line
    assert "`pip install torch==2.99.0`" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import torch; import torch_tenon",
        "import torch; import torch_tenon.reports.counting",
        "import torch_tenon, torch; torch_tenon.report()",
        "import torch; torch.compile(lambda x: x + 1, backend='tenon')(torch.ones(1))",
    ],
)
def test_who_asks_for_it_gets_the_line_as_an_error(other_pytorch: str, code: str) -> None:
    imports = not code.startswith("import torch;")
    environment = {"PYTHONPATH": other_pytorch, "TORCH_DEVICE_BACKEND_AUTOLOAD": None}
    done = run(code, imports=imports, **environment)
    assert done.returncode == 1
    assert done.stderr.count("ImportError: torch-tenon is not loaded: it was built for") == 1


@pytest.mark.slow
def test_pytorchs_own_switch_silences_it(other_pytorch: str) -> None:
    switched_off = {"PYTHONPATH": other_pytorch, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    assert run(USE, **switched_off).stderr == ""
    assert run("import torch, torch_tenon", **switched_off).returncode == 1
    _line(run("import torch_tenon, torch", imports=True, **switched_off).stderr)


@pytest.mark.slow
@pytest.mark.parametrize("autoload", ["0", None])
def test_the_doctor_and_other_commands_say_it(other_pytorch: str, autoload: str | None) -> None:
    code = "import sys; from torch_tenon.cli import app; app(sys.argv[1:])"
    surroundings = {"PYTHONPATH": other_pytorch, "TORCH_DEVICE_BACKEND_AUTOLOAD": autoload}
    done = run(code, "doctor", **surroundings)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "built for PyTorch 2.99.0+cpu" in " ".join(done.stdout.replace("│", "").split())
    done = run(code, "explain", __file__, **surroundings)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: torch-tenon is not loaded" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [b"", b"\x7fELF and no more"])
def test_a_damaged_extension_is_one_line(tmp_path: Path, damaged: bytes) -> None:
    record = {"torch": torch.__version__, "python": PYTHON}
    path = _copy(tmp_path, record, damaged)
    done = run(USE, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD=None)
    assert (done.returncode, done.stdout) == (0, "2.0 privateuseone\n"), done.stderr
    assert EXTENSION.name in _line(done.stderr) and "builds it for this one" in done.stderr
    done = run("import torch, torch_tenon", PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD=None)
    assert done.returncode == 1 and "\nImportError: torch-tenon is not loaded" in done.stderr


def test_a_wrong_setting_still_raises() -> None:
    done = run("import torch", TENON_TARGET="no-such-target", TORCH_DEVICE_BACKEND_AUTOLOAD=None)
    assert done.returncode == 1 and "TENON_TARGET='no-such-target': no such target" in done.stderr


@pytest.mark.slow
def test_a_target_that_cannot_import_something_still_raises(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import no_such_module\n")
    target = f"{tmp_path}/mine.py:Mine"
    done = run("import torch", TENON_TARGET=target, TORCH_DEVICE_BACKEND_AUTOLOAD=None)
    assert done.returncode == 1 and "No module named 'no_such_module'" in done.stderr


@pytest.mark.parametrize(
    ("record", "found", "said"),
    [
        ({"torch": "2.13.0", "python": PYTHON}, "2.13.0", None),
        ({"torch": "2.13.0+cpu", "python": PYTHON}, "2.13.0+cu130", None),
        ({"torch": "2.13.0", "python": PYTHON}, "2.13.1", "pip install torch==2.13.0"),
        ({"torch": "2.13.0", "python": PYTHON}, "2.14.0.dev20260101", "pip install torch==2.13.0"),
        ({"torch": "2.13.0", "python": "3.99"}, "2.13.0", "for PyTorch 2.13.0 and Python 3.99"),
        ({"torch": "2.13.0"}, "2.13.0", "is damaged"),
        ([], "2.13.0", "is damaged"),
    ],
)
def test_which_version_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: object, found: str, said: str | None
) -> None:
    path = tmp_path / "built_for.json"
    monkeypatch.setattr(loading, "BUILT_FOR", path)
    assert loading.mismatch(found) is None  # nothing says what it was built for
    path.write_text(json.dumps(record))
    problem = loading.mismatch(found)
    assert problem is None if said is None else said in (problem or "") and "\n" not in problem


def test_the_doctor_compares_before_it_loads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "built_for.json"
    path.write_text(json.dumps({"torch": "2.99.0", "python": PYTHON}))
    monkeypatch.setattr(loading, "BUILT_FOR", path)
    monkeypatch.setattr(installation, "_load_device", lambda: pytest.fail("loaded"))
    device, _ = installation._device()
    assert device.failed and "pip install torch==2.99.0" in device.remedy


@pytest.mark.slow
def test_a_build_writes_what_it_is_for(tmp_path: Path) -> None:
    # The compiler's work is left out: what is under test is what the build writes beside it.
    code = (
        "import runpy, sys; from torch.utils.cpp_extension import BuildExtension as build; "
        "build.build_extensions = lambda self: None; "
        f"sys.argv = ['setup.py', '-q', 'build_ext', '--build-lib', {str(tmp_path)!r}]; "
        "runpy.run_path('setup.py')"
    )
    source = PACKAGE.parent
    if not (source / "setup.py").is_file():
        pytest.skip("the package was not built in its source tree")
    (tmp_path / "torch_tenon").mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    record = json.loads((tmp_path / "torch_tenon" / "built_for.json").read_text())
    assert record == {"torch": torch.__version__, "python": PYTHON}
    text = manifest.MANIFEST.read_bytes()
    built = manifest._built(tmp_path / "torch_tenon" / "ops" / "manifest.json", text)
    assert built is not None and built == manifest._parsed(text, manifest.MANIFEST)
