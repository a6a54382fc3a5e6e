"""Targets to start from: what `tenon new-target` writes, a file and its tests.

There are three, each the one before and more: memory and a queue (`driver.py`); with a kernel of
the hardware's library (`library.py`); with kernels that are generated (`loops.py`). Their tests are
in `tests.py`. docs/target.md goes on from there.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from torch_tenon.targets import BUILT_IN
from torch_tenon.targets.starts import driver, library, loops, tests

# By name, what stands in the driver's text, and the tests.
STARTS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "memory": (driver.ALONE, tests.MEMORY),
    "library": (library.PARTS, tests.MEMORY + tests.LIBRARY),
    "loops": (loops.PARTS, tests.MEMORY + tests.LIBRARY + tests.LOOPS),
}


class BadName(ValueError):
    """No file can be written for that name; the text says why."""


def write(name: str, folder: Path, start: str = "memory") -> list[Path]:
    """Writes NAME.py and test_NAME.py into a folder; returns their paths, the target's first.

    Raises BadName for what is no name of a Python module, or hides one of Python's or the targets'
    that are built in; FileExistsError where a file is there already, and nothing is written then.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise BadName(
            f"{name!r} cannot be the name of a target: it becomes a module's, so write lower-case "
            "letters, digits and underscores, beginning with a letter"
        )
    if name in BUILT_IN or name in sys.stdlib_module_names or name in ("torch", "torch_tenon"):
        raise BadName(f"{name!r} is the name of something else already; choose another one")
    paths = [folder / f"{name}.py", folder / f"test_{name}.py"]
    for path in paths:
        if path.exists():
            raise FileExistsError(f"{path} is there already; nothing was written")
    parts, test = STARTS[start]
    words = {**parts, "@NAME@": name, "@FILE@": f"{name}.py", "@CLASS@": class_of(name)}
    for path, text in zip(paths, (driver.TEXT, test), strict=True):
        for mark, word in words.items():
            text = text.replace(mark, word)
        path.write_text(text)
    return paths


def class_of(name: str) -> str:
    """`my_npu` as `MyNpu`."""
    return "".join(part.capitalize() for part in name.split("_"))
