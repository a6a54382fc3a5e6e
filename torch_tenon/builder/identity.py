"""What everything that is kept on disk depends on, beside what it is made of."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch_tenon.targets.target import Target

PACKAGE = Path(__file__).parent.parent
KINDS = (".py", ".so", ".h", ".c", ".yaml")


def identity(target: Target) -> str | None:
    """Versions, the target and what its code depends on; None where it compiles nothing."""
    from torch_tenon.targets.target import TargetError

    try:
        code = target.backend.identity() if target.backend is not None else None
    except TargetError:
        return None
    if code is None:
        return None
    return "\n".join([torch.__version__, str(torch.version.git_version), _sources(), code])


@cache
def _sources() -> str:
    """This package, by the sizes and times of its files: reading them would take too long."""
    found: list[tuple[str, int, int]] = []
    folders = [str(PACKAGE)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append(entry.path)
                elif entry.name.endswith(KINDS):
                    status = entry.stat()
                    found.append((entry.path, status.st_size, status.st_mtime_ns))
    return repr(sorted(found))
