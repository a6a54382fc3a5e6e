"""Which state of this package's files is at hand, for what is kept on disk."""

import os
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
KINDS = (".py", ".so", ".h", ".c", ".yaml")


@cache
def sources() -> str:
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
