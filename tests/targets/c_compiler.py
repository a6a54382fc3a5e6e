"""Shared objects of C, for tests of targets in libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def shared_object(source: Path | str, result: Path) -> Path:
    """Builds a file, or a text that may use the interface, in C."""
    if isinstance(source, str):
        text = source
        source = result.with_suffix(".c")
        source.write_text(f'#include "tenon.h"\n{text}')
    subprocess.run(
        [
            *("cc", "-std=c11", "-Wall", "-Werror", "-O1", "-fPIC", "-shared"),
            *(f"-I{ROOT / 'include'}", str(source), "-o", str(result)),
        ],
        check=True,
    )
    return result
