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
UNSEEN: dict[str, Script] = {}


def script(function: Script) -> Script:
    """Enters a script under the name of its function."""
    unseen = function.__module__.startswith(f"{__name__}.unseen.")
    (UNSEEN if unseen else SCRIPTS)[function.__name__] = function
    return function


def load_all() -> dict[str, Script]:
    """Every script by its name, but for those that nothing is tuned on."""
    from benchmarks.scripts import (  # noqa: F401  (they enter theirs)
        computing,
        everyday,
        learning,
        sequences,
        tables,
    )

    return SCRIPTS


def load_unseen() -> dict[str, Script]:
    """The scripts that nothing is tuned on, by name."""
    from benchmarks.scripts.unseen import models, numbers  # noqa: F401  (they enter theirs)

    return UNSEEN
