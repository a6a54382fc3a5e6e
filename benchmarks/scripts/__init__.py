"""Whole scripts, from start to end, as people write them: see `run.py` for how they are timed.

A script is a generator of what it prints or logs after each step, a number that the host reads. It
is given the device, and what compiles a function or module (which may be nothing).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Steps = Iterator[float]
Compile = Callable[[Any], Any]
Script = Callable[[str, Compile], Steps]

SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    """Enters a script under the name of its function."""
    SCRIPTS[function.__name__] = function
    return function


def load_all() -> dict[str, Script]:
    """Every script by its name."""
    from benchmarks.scripts import computing, learning, sequences  # noqa: F401  (they enter theirs)

    return SCRIPTS
