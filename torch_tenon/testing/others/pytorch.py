"""PyTorch's device-generic test files, out of a checkout of its sources.

A file makes a class of tests for each type of device. A node is a test of such a class; its name is
here without the device's.
"""

import os
import re
from pathlib import Path

import pytest

from torch_tenon.testing import device_generic

BARS = {"auto": 0.995, "compiled": 0.99}
SKIPPED_COUNTS = False  # what is skipped is for other devices

# The variable that names the sources.
SOURCES = "PYTORCH_SOURCES"
# About other devices, or what a device has no part in.
_OTHERS = {
    "test_content_store.py", "test_cuda.py", "test_fx.py", "test_fx_experimental.py",
    "test_jit_fuser_te.py", "test_jit_llga_fuser.py", "test_jiterator.py", "test_matmul_cuda.py",
    "test_mkldnn.py", "test_mps.py", "test_sparse_semi_structured.py", "test_testing.py",
    "test_xpu.py",
}  # fmt: skip
_CLASS = re.compile(r"(::\w+?)(CPU|TENON|PRIVATEUSE1)(?=::)")
_TYPE = r"_(?:cpu|tenon|privateuse1)(?=_|$)"
_DEVICE = re.compile(f"{_TYPE}(?!.*{_TYPE})")  # the last one


def folder() -> Path:
    """The folder of the tests. Raises `FileNotFoundError` where there is none."""
    sources = Path(os.environ.get(SOURCES, ""))
    for found in (sources, sources / "test"):
        if (found / "test_torch.py").exists():
            return found.resolve()
    raise FileNotFoundError(
        f"{SOURCES} is to name PyTorch's sources, of the release that is installed: "
        "make test-pytorch PYTORCH_SOURCES=path/to/pytorch"
    )


def files() -> list[Path]:
    """The files with tests for any device."""
    return [
        path
        for path in sorted(folder().glob("test_*.py"))
        if path.name not in _OTHERS
        and "instantiate_device_type_tests(" in path.read_text(encoding="utf-8")
    ]


def prepare() -> None:
    """Raises where there are no sources."""
    folder()


def environment(device: str) -> dict[str, str]:
    """The tests of one type of device; where CI is set PyTorch's runner wants a package."""
    which = {"PYTORCH_TESTING_DEVICE_ONLY_FOR": device, "CI": ""}
    return which | ({} if device == "cpu" else {"TORCH_TEST_DEVICES": device_generic.__file__})


def arguments(scratch: Path, device: str, nodes: list[str] | None) -> list[str]:
    """Files by their paths; PyTorch's own plugins of pytest stay out."""
    home = folder()
    names = None if nodes is None else {node.split("::")[0] for node in nodes}
    where = [path for path in files() if names is None or path.name in names]
    return [*map(str, where), "--rootdir", str(home), "--noconftest"]


def begin() -> None:
    """There is nothing to change."""


def collected(config: pytest.Config) -> None:
    """There is nothing to change."""


def name_of(node: str) -> str | None:
    """Without the device's type in the class's name and the test's."""
    generic, classes = _CLASS.subn(r"\1", node)
    generic, devices = _DEVICE.subn("", generic)
    return generic if classes and devices else None
