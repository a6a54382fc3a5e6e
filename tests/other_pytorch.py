"""Other releases of PyTorch with this build of torch-tenon, for a person to run: gigabytes.

    python -m tests.other_pytorch 2.12.1 2.14.1

Each release comes from the package index into a fresh environment, with what it requires; this
build is put beside it as pip would. There `import torch` has to work, without the device, and to
say in one line which release is wanted and what to type. Raises AssertionError where it does not.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import distribution
from pathlib import Path

import torch

import torch_tenon

PACKAGE = Path(torch_tenon.__file__).parent
METADATA = distribution("torch-tenon")
USE = (
    "import torch; print(torch.__version__.partition('+')[0], torch.ones(2).sum().item(), "
    "torch._C._get_privateuse1_backend_name())"
)
OURS = ("PYTHONPATH", "TORCH_DEVICE_BACKEND_AUTOLOAD", "TENON_TARGET")


def check(release: str, folder: Path) -> None:
    """Installs a release into an environment in `folder`, and this build beside it; looks."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", f"torch=={release}"], check=True)
    _install(next((folder / "lib").glob("python*/site-packages")))
    used = _run(python, USE)
    assert (used.returncode, used.stdout) == (0, f"{release} 2.0 privateuseone\n"), used
    # PyTorch has a warning of its own where NumPy is not.
    (line,) = [line for line in used.stderr.splitlines() if line.startswith("torch-tenon")]
    wanted = torch.__version__.partition("+")[0]
    assert f"`pip install torch=={wanted}`" in line and release in line, line
    asked = _run(python, "import torch, torch_tenon")
    assert asked.returncode == 1 and asked.stderr.rstrip().endswith(line), asked
    print(f"{release}: {line}", flush=True)


def _install(site_packages: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "csrc")
    shutil.copytree(PACKAGE, site_packages / PACKAGE.name, ignore=ignored)
    information = site_packages / f"torch_tenon-{METADATA.version}.dist-info"
    information.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (information / name).write_text(METADATA.read_text(name) or "")


def _run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    return subprocess.run(
        [python, "-c", code],
        cwd=python.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


if __name__ == "__main__":
    for release in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            check(release, Path(folder))
