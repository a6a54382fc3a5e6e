"""Running a script as `python script arguments...` does, within a command of this package."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Ended(NamedTuple):
    """How a script ended: its exit status, and what it said of an error, "" for none."""

    status: int
    error: str


def run_script(script: Path, arguments: Sequence[str]) -> Ended:
    """Runs a Python file with its arguments. What it raises is printed and is the result."""
    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [str(script), *arguments], str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leaving:
        if isinstance(leaving.code, int) or leaving.code is None:
            return Ended(leaving.code or 0, "")
        print(leaving.code, file=sys.stderr)
        return Ended(1, str(leaving.code))
    except KeyboardInterrupt:
        return Ended(130, "interrupted")
    except Exception as raised:
        traceback.print_exc()
        return Ended(1, said(raised))
    finally:
        sys.argv, sys.path[0] = before
    return Ended(0, "")


def said(raised: BaseException) -> str:
    """The last line of an error's traceback."""
    return "".join(traceback.format_exception_only(raised)).strip()
