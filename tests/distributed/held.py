"""Runs a script as `python` does, but holds it before its last step: `held FILE STEP SCRIPT ...`.

What has written the line of that step goes on once the file is there. So a rank that is to be
killed has not ended by then, however late whoever kills it is.
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path


def hold(released: Path, step: int) -> None:
    """This process waits for the file after it has written the line of that step."""
    write, line = sys.stdout.write, ""

    def write_and_wait(text: str) -> int:
        nonlocal line
        written, line = write(text), line + text
        ends = line.endswith("\n")
        is_last = ends and line.startswith(f"step {step} ")
        line = "" if ends else line
        if is_last:
            sys.stdout.flush()
            while not released.exists():
                time.sleep(0.01)
        return written

    sys.stdout.write = write_and_wait  # type: ignore[method-assign]


if __name__ == "__main__":
    hold(Path(sys.argv[1]), int(sys.argv[2]))
    sys.argv = sys.argv[3:]
    runpy.run_path(sys.argv[0], run_name="__main__")
