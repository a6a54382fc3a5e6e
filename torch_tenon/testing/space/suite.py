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
from typing import Any

from torch_tenon.testing.conformance.case import Case, CaseResult, CheckResult, Status
from torch_tenon.testing.conformance.databases import UnknownName
from torch_tenon.testing.fuzz.workers import Worker
from torch_tenon.testing.space import ops
from torch_tenon.testing.space.case import Data
from torch_tenon.testing.space.running import MODES
from torch_tenon.testing.space.script import script
from torch_tenon.testing.space.search import search

__all__ = ["Case", "list_cases", "prepare", "run_case"]

KIND = "space"
# How long a call may take, with its plans and graphs.
CALL_SECONDS = 120.0
# Calls of an op in a stretch, unless `--samples` says otherwise.
CALLS = 30
# What the options of the command leave for the processes that run cases.
MODES_VARIABLE, SHRINKING_VARIABLE = "TENON_SPACE_MODES", "TENON_SPACE_SHRINKING"
_workers: list[Worker] = []


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
    found = search(case.name, int(case.dtype), limit or CALLS, _ask, list(modes), seconds)
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


def _ask(cases: list[Data]) -> list[dict[str, Any]]:
    """What a worker process says of calls that run together. Where the CPU itself ends the process,
    nothing."""
    if not _workers:
        environment = {"TENON_PLAN": "all", "TENON_PLAN_FILES": "0", "TENON_DEVICES": "1"}
        environment |= {"TENON_BUILDER": "thread", "OMP_NUM_THREADS": "1"}
        module = "torch_tenon.testing.space.worker"
        _workers.append(Worker(environment, CALL_SECONDS, module, programs=500))
        atexit.register(_workers[0].stop)
    answer = _workers[0].ask({"cases": cases})
    if "answers" in answer:
        found: list[dict[str, Any]] = answer["answers"]
        return found
    if len(cases) > 1:
        return [one for case in cases for one in _ask([case])]
    text: str = answer["failure"]
    if ON_CPU in text:
        return [{"failure": None, "refused": "the CPU ends the process"}]
    kind = "hang" if text.startswith("it hangs") else "crash"
    return [{"failure": [kind, text], "refused": ""}]


ON_CPU = "the CPU runs it"
