"""The process that runs calls: one request a line, one answer a line, both JSON.

A request has `case`; the answer has `failure`, its kind and what is wrong, or None, and `refused`,
the error's type where the CPU raises one.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import stat
import sys
from functools import partial
from typing import Any

import torch

from torch_tenon.testing.fuzz.worker import PlanFailures, forget_errors
from torch_tenon.testing.space.case import Case
from torch_tenon.testing.space.judgement import Finding, Judge
from torch_tenon.testing.space.ops import named
from torch_tenon.testing.space.running import INVALID, run, run_on_device
from torch_tenon.testing.space.undefined import evidence

# Address space: what a call asks for beyond it is refused, on the CPU and here.
_MOST = 64 << 30
# Written to standard error: whether a crash is the CPU's own.
ON_CPU = "the CPU runs it"


class Runner:
    """Runs cases, and keeps what the logs say."""

    def __init__(self) -> None:
        self.failures = PlanFailures()
        logging.getLogger("torch_tenon.program").addHandler(self.failures)

    def answer(self, case: Case, only_right: bool) -> dict[str, Any]:
        """What is wrong with a case. `only_right`: one that the CPU refuses is not run."""
        _mark(ON_CPU)
        wanted = {k: run(case, "cpu", k) for k in ((0, 1, 2) if _sized(case) else (0,))}
        refused = wanted[0].error
        if any(want.error == INVALID for want in wanted.values()):
            return {"failure": None, "refused": INVALID}
        if refused and only_right:
            return {"failure": None, "refused": refused}
        drawn = torch.Tag.nondeterministic_seeded in named(case.op).tags
        judges = {
            k: Judge(want, partial(evidence, case, k), values=not drawn)
            for k, want in wanted.items()
        }
        _mark("the device runs it")
        graph = case.mode in ("compiled", "dynamic")
        forget_errors()
        self.failures.found.clear()
        found: Finding | None = None
        for k, which, got in run_on_device(case):
            found = judges[k].find(got, graph=graph)
            if found:
                found = Finding(found.kind, f"{case.mode}, {which}: {found.text}")
                break
        if not found and self.failures.found:
            found = Finding(
                "no plan", f"{case.mode}: a window got no plan: {self.failures.found[0]}"
            )
        failure = [found.kind, found.text] if found else None
        return {"failure": failure, "refused": refused}


def _sized(case: Case) -> bool:
    return case.mode in ("sized", "dynamic")


def _mark(text: str) -> None:
    """Says on standard error, if that is a file, what comes now and nothing else."""
    if stat.S_ISREG(os.fstat(2).st_mode):
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        os.write(2, f"{text}\n".encode())


def main() -> None:
    """Answers until the input ends."""
    # What a call prints, and what C code prints, must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST, _MOST))
    torch.set_num_threads(1)
    torch.set_warn_always(True)
    logging.getLogger("torch_tenon").addHandler(logging.NullHandler())
    runner = Runner()
    for count, line in enumerate(sys.stdin):
        request = json.loads(line)
        answer = runner.answer(Case(request["case"]), request.get("only_right", False))
        print(json.dumps(answer), file=out, flush=True)
        if count % 50 == 0:
            gc.collect()


if __name__ == "__main__":
    main()
