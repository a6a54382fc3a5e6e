"""The argument space as a suite of `tenon conformance`.

A case is an op and the number of a stretch of its calls. A process beside the one that draws runs
them.
"""

from __future__ import annotations

import atexit
import fnmatch
import os
import time
from collections.abc import Callable, Iterable

from torch_tenon.testing.conformance.case import Case, CaseResult, CheckResult, Status
from torch_tenon.testing.conformance.databases import UnknownName
from torch_tenon.testing.space import ops
from torch_tenon.testing.space.asking import Asking
from torch_tenon.testing.space.running import MODES
from torch_tenon.testing.space.script import script
from torch_tenon.testing.space.search import search

__all__ = ["Case", "list_cases", "prepare", "run_case"]

KIND = "space"
# Calls of an op in a stretch, unless `--samples` says otherwise.
CALLS = 30
# What the options of the command leave for the processes that run cases.
MODES_VARIABLE, SHRINKING_VARIABLE = "TENON_SPACE_MODES", "TENON_SPACE_SHRINKING"
_processes: list[Asking] = []


def prepare() -> None:
    """Finds the ops, which a process does once before it forks the ones that run cases."""
    ops.names()


def list_cases(
    kinds: Iterable[str] = (), patterns: Iterable[str] = (), dtypes: Iterable[str] = ()
) -> list[Case]:
    """A case for each op that a pattern names, or that has its name; `dtypes` is one number."""
    numbers = [int(n) for n in dtypes] or [0]
    chosen = [n for n in ops.names() if not (p := list(patterns)) or any(_named(n, q) for q in p)]
    if not chosen:
        raise UnknownName(f"no op of the argument space is called {' or '.join(patterns)}")
    return [Case(KIND, name, str(number)) for number in numbers for name in chosen]


def _named(name: str, pattern: str) -> bool:
    names = {name, name.removeprefix("aten."), ops.base_name(ops.named(name))}
    names |= {n.rpartition(".")[0] for n in names}
    return any(fnmatch.fnmatchcase(n, pattern) for n in names)


def run_case(
    case: Case,
    device: str,
    *,
    limit: int = 0,
    position: Callable[[str, str], None] = lambda check, sample: None,
) -> CaseResult:
    """Draws calls of an op and has them run; `limit` is how many."""
    began = time.perf_counter()
    modes = os.environ.get(MODES_VARIABLE, "").split(",") if MODES_VARIABLE in os.environ else MODES
    seconds = float(os.environ.get(SHRINKING_VARIABLE, "60"))
    position("drawing", "none")
    if not _processes:
        _processes.append(Asking())
        atexit.register(_processes[0].stop)
    ask = _processes[0]
    found = search(case.name, int(case.dtype), limit or CALLS, ask, list(modes), seconds)
    checks: dict[str, CheckResult] = {
        mode: CheckResult(Status.PASS, compared=count) for mode, count in found.modes.items()
    }
    for failing in found.failing.values():
        mode = failing.case["mode"]
        compared = found.modes.get(mode, 0)
        text = f"{failing.text}\n\n{script([failing.case, *failing.beside])}"
        checks[f"{mode}, {failing.kind}"] = CheckResult(
            Status.FAIL, compared, failing.kind, text, traceback=text
        )
    if not checks:
        checks = {"calls": CheckResult(message=f"the CPU refuses all of {found.refused} calls")}
    return CaseResult.from_checks(
        case,
        checks,
        seconds=time.perf_counter() - began,
        samples=found.ran,
        samples_available=found.ran + found.refused,
    )
