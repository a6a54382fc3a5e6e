"""Cases that a worker has to survive; `--suite` runs them in place of PyTorch's databases."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from torch_tenon.testing.conformance.case import Case, CaseResult, CheckResult, Status

NAMES = ("passes", "crashes", "hangs", "exits", "is_wrong", "passes_too")


def prepare() -> None:
    """There is nothing to build."""


def list_cases(
    kinds: Iterable[str], patterns: Iterable[str] = (), dtypes: Iterable[str] = ()
) -> list[Case]:
    """One case for each way to misbehave."""
    patterns = list(patterns)
    return [Case("ops", name, "float32") for name in NAMES if not patterns or name in patterns]


def run_case(
    case: Case, device: str, *, limit: int, position: Callable[[str, str], None]
) -> CaseResult:
    """Does what the name says."""
    position("forward", "7")
    if case.name == "crashes":
        print("about to crash", flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if case.name == "hangs":
        time.sleep(3600)
    if case.name == "exits":
        os._exit(3)
    check = CheckResult(Status.PASS, 1)
    if case.name == "is_wrong":
        check = CheckResult(Status.FAIL, 1, "values differ", "result: 1.5, CPU 2.5 </script>", "0")
    return CaseResult.from_checks(case, {"forward": check}, samples=1, samples_available=1)
