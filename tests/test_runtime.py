"""The runtime by itself: `csrc/runtime`, which knows neither PyTorch nor Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "csrc" / "runtime"
MOST_BYTES = 153_600


def includes(path: Path) -> set[str]:
    return set(re.findall(r'^#include [<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE))


def test_it_includes_itself_and_the_c_plus_plus_library() -> None:
    headers = {f"runtime/{path.name}" for path in SOURCES.glob("*.h")} | {"tenon.h"}
    system = {"dlfcn.h", "fcntl.h", "link.h", "pthread.h", "sched.h", "unistd.h"}
    system |= {"sys/mman.h", "sys/stat.h"}
    for path in SOURCES.iterdir():
        if path.suffix in (".h", ".cpp"):
            found = includes(path) - headers - system
            assert all(re.fullmatch("[a-z_]+", name) for name in found), (path.name, found)


def test_what_is_looked_for_would_be_found(tmp_path: Path) -> None:
    source = tmp_path / "a.cpp"
    source.write_text('#include <torch/torch.h>\n#include "runtime/run.h"\n#include <vector>\n')
    assert includes(source) == {"torch/torch.h", "runtime/run.h", "vector"}


def test_the_library_of_the_package_is_small_and_needs_no_other() -> None:
    """The build makes it as `make runtime` does."""
    library = ROOT / "torch_tenon" / "runtime" / "libtenon_rt.so"
    assert library.stat().st_size < MOST_BYTES
    needed = subprocess.run(
        ["ldd", str(library)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names = {line.split()[0].split(".so")[0].rpartition("/")[2] for line in needed.splitlines()}
    allowed = {"linux-vdso", "libstdc++", "libm", "libgcc_s", "libc", "libdl", "libpthread"}
    assert {name for name in names if not name.startswith("ld-linux")} <= allowed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_it_builds_and_passes_its_tests_without_pytorch(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "CXX", "CC")}
    made = subprocess.run(
        ["make", "-s", "-j2", "-C", str(SOURCES), "test", f"OUT={tmp_path}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert made.returncode == 0, made.stdout[-3000:] + made.stderr[-3000:]
    assert int(made.stdout.split()[-2]) > 20
