"""What stands before a kernel has all that it calls, whichever function its source names."""

import subprocess
from pathlib import Path

import pytest

from torch_tenon.targets.c_family.headers import BY_NAME
from torch_tenon.targets.cpu.compiler import default_compiler, headers

NAMES = sorted({name for names in BY_NAME.values() for name in names})


@pytest.mark.parametrize("name", NAMES)
def test_no_function_is_missing(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source.c"
    source.write_text("\n".join(headers(name)))
    command = [*default_compiler().toolchain.words, "-march=native", "-fsyntax-only"]
    command += ["-Werror=implicit-function-declaration", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
