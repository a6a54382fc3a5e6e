"""The process that runs random programs: one request a line, one answer a line, both JSON.

A request has `seed`, `length` and `kinds`, or `program`; `modes` are the execute modes. The answer
has the program, the lines that raise on the CPU, and `failure`: what is wrong, or None.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torch_tenon import _C, config
from torch_tenon.builder.counts import plan_counts
from torch_tenon.ops.lowerings.table import CannotLower
from torch_tenon.testing.fuzz.compare import CPU, difference, expect
from torch_tenon.testing.fuzz.failing import Failed
from torch_tenon.testing.fuzz.generate import generate
from torch_tenon.testing.fuzz.program import Program
from torch_tenon.testing.fuzz.running import judged, run

# How often a program runs in each mode. The first call of an op with new layouts runs at once, the
# second is recorded, and a window that comes for the second time gets a plan, which the next uses.
MODES = {"reference": 1, "auto": 4, "compiled": 2, "verify": 2}
_PLAN_WAIT = 240.0  # seconds


class PlanFailures(logging.Handler):
    """Windows that got no plan for a reason that the builder did not expect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps what is no plain `CannotLower`."""
        errors = [x for x in record.args or () if isinstance(x, Exception)]
        if errors and not isinstance(errors[0], CannotLower | NotImplementedError):
            self.found.append(f"{type(errors[0]).__name__}: {errors[0]}")


def check(program: Program, modes: Sequence[str]) -> str | None:
    """Runs a program on the CPU and in each mode on the device; in words what is wrong."""
    expected = expect(program)
    count = _C.device_count()
    devices = {
        "D0": torch.device("tenon", 0),
        "D1": torch.device("tenon", min(1, count - 1)),
        "H": torch.device("cpu"),
    }
    failures = PlanFailures()
    logger = logging.getLogger("torch_tenon.program")
    logger.addHandler(failures)
    before = _C.execute_mode()
    try:
        for mode in modes:
            _C.set_execute_mode(config.EXECUTE_MODES.index(mode))
            for turn in range(MODES[mode]):
                forget_errors()
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("ignore")
                    warnings.filterwarnings("always", message="tenon: verify")
                    got = run(program, devices, commit=_C.commit_all, course=expected.course)
                found = difference(expected, got)
                del got
                if found:
                    return f"{mode}, run {turn + 1}: {found}"
                if warned:
                    return f"{mode}, run {turn + 1}: {warned[0].message}"
                if mode == "auto":
                    wait_for_plans()
            if failures.found:
                return f"{mode}: a window got no plan: {failures.found[0]}"
    finally:
        logger.removeHandler(failures)
        _C.set_execute_mode(before)
    return None


def forget_errors() -> None:
    """What an earlier run left that nobody read is not for a later one to see."""
    for index in range(_C.device_count()):
        with contextlib.suppress(Exception):
            _C.synchronize(index)


def wait_for_plans() -> None:
    """Returns when every plan that was asked for is made."""
    _C.commit_all()
    deadline = time.monotonic() + _PLAN_WAIT
    while plan_counts()["waiting"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"a plan is not made within {_PLAN_WAIT:.0f} s")
        time.sleep(0.002)


def as_it_runs(program: Program) -> Program:
    """The program without the statements that are left out, and without threads that touch the
    same: what a person is shown is what runs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        course = judged(program, CPU)[1]
    statements = [
        replace(s, thread="") if s.block in course.one_by_one else s
        for k, s in enumerate(program.statements)
        if k not in course.left_out
    ]
    return Program(statements)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What a request asks for."""
    if "seed" in request:
        program = generate(request["seed"], request["length"], request.get("kinds", ()))
    else:
        program = Program.from_json(request["program"])
    program = as_it_runs(program)
    data: dict[str, Any] = {"program": program.to_json(), "raising": [], "failure": None}
    if request.get("modes"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data["failure"] = check(program, request["modes"])
            seen = judged(program, CPU)[0]
            raising = [o.where for o in seen if isinstance(o.value, str | Failed)]
        data["raising"] = [int(w[5:]) for w in raising if w.startswith("line ")]
    gc.collect()
    return data


def main() -> None:
    """Answers until the input ends."""
    # What a program prints, and what C code prints, must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    logging.getLogger("torch_tenon").addHandler(logging.NullHandler())
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
