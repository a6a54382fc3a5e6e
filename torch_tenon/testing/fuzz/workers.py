"""Worker processes: asking one, and telling a crash and a hang from an answer. Loads no PyTorch."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

# A process that grows from program to program is replaced after this many.
_PROGRAMS = 200


class Worker:
    """A process that runs programs, started when it is first asked and again after it ended."""

    def __init__(
        self,
        environment: dict[str, str],
        timeout: float,
        module: str = "torch_tenon.testing.fuzz.worker",
        programs: int = _PROGRAMS,
    ) -> None:
        self.environment, self.timeout = environment, timeout
        self.module, self.programs = module, programs
        self.process: subprocess.Popen[str] | None = None
        self.asked = 0

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The worker's answer; where it crashed or hangs, one without a program that says so."""
        if self.process is None or self.asked >= self.programs:
            self.start()
        assert self.process is not None and self.process.stdin and self.process.stdout
        self.asked += 1
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self._line(self.timeout)
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"failure": self._ending(line)}

    def _line(self, timeout: float) -> str | None:
        """One line; empty at the end of the output, None when nothing comes in time."""
        assert self.process is not None and self.process.stdout
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            if select.select([self.process.stdout], [], [], left)[0]:
                return self.process.stdout.readline()
        return None

    def _ending(self, line: str | None) -> str:
        assert self.process is not None
        if line is None:
            text = f"it hangs: no answer within {self.timeout:.0f} s"
        else:
            code = self.process.wait()
            text = f"the process ended by {signal.Signals(-code).name}" if code < 0 else "it failed"
        self.stop()
        self.errors.seek(0)
        last = "\n".join(self.errors.read().strip().splitlines()[-12:])
        return f"{text}\n{last}".strip()

    def start(self) -> None:
        """A new process."""
        self.stop()
        self.asked = 0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", self.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={**os.environ, **self.environment},
            text=True,
        )

    def stop(self) -> None:
        """Ends the process, if there is one."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None


def shrink(
    worker: Worker,
    program: Sequence[Any],
    modes: Sequence[str],
    seconds: float,
    once: bool = False,
) -> tuple[list[Any], dict[str, Any]]:
    """A program with fewer statements that still fails, found within about `seconds`, and what is
    wrong with it. `once`: a process shows such a failure only once, so each try has one of its own.
    """
    best = list(program)
    found: dict[str, Any] = {}
    deadline = time.monotonic() + seconds
    # The end goes first: what is behind the failure is most of it.
    size = max(1, len(best) // 2)
    while time.monotonic() < deadline:
        at, smaller = len(best), False
        while at > 0 and time.monotonic() < deadline:
            start = max(0, at - size)
            candidate = best[:start] + best[at:]
            if once:
                worker.start()
            answer = worker.ask({"program": candidate, "modes": list(modes)}) if candidate else {}
            if answer.get("failure"):
                # Statements that have no effect are gone from what it ran.
                best, found, smaller = answer.get("program") or candidate, answer, True
            at = start
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return best, found
