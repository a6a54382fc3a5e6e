"""Runs cases in worker processes; a crash or a hang costs one case and one worker."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from .case import Case, CaseResult, Status
from .worker import POSITION

SUITE = "torch_tenon.testing.conformance.suite"
# A case that makes its process hold more is ended.
MEMORY_LIMIT = 10 << 30
# The import of PyTorch and its databases on a busy machine.
START_SECONDS = 180.0
# How many cases that the same process had run before are told of one that did not pass.
TOLD_BEFORE = 12


_STACK_MARKS = ("Fatal Python error", "Current thread 0x")
# The way from the worker to the op, which is the same in every stack.
_OWN_FRAMES = (
    "/unittest/",
    "/testing/_internal/common_",
    "conformance/worker.py",
    "<frozen runpy>",
)


class WorkerFailed(RuntimeError):
    """Workers die before they can run a case: the set-up is broken, not a case."""


@dataclass(frozen=True)
class Settings:
    """How to run: `timeout` is in seconds for each case, `limit` in samples (0 for all).

    `execute` is how the device runs (TENON_EXECUTE), None for what the environment says.
    """

    device: str
    jobs: int
    timeout: float
    limit: int = 0
    target: str | None = None
    suite: str = SUITE
    execute: str | None = None


class Worker:
    """A process that keeps a child for cases, and the case that the child has."""

    def __init__(self, settings: Settings) -> None:
        self.case: Case | None = None
        self.child = 0  # its process id once it is ready, 0 before
        self.ran: deque[str] = deque(maxlen=TOLD_BEFORE)  # what the child ran, the last ones
        self.began = time.monotonic()
        self._buffer = b""
        self._log = os.memfd_create("log")
        self._position = os.memfd_create("position")
        self.results, write_end = os.pipe()
        os.set_blocking(self.results, False)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
            # Entries that PyTorch marks as slow are run too.
            "PYTORCH_TEST_WITH_SLOW": "1",
        }
        if settings.target:
            environment["TENON_TARGET"] = settings.target
        if settings.execute:
            environment["TENON_EXECUTE"] = settings.execute
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch_tenon.testing.conformance.worker"),
                *("--suite", settings.suite, "--device", settings.device),
                *("--limit", str(settings.limit), "--timeout", str(settings.timeout)),
                *("--results", str(write_end), "--position", str(self._position)),
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(write_end, self._position),
            env=environment,
            # A group of its own: a signal to the terminal's is the parent's to handle, and killing
            # this one ends the child too.
            start_new_session=True,
        )
        os.close(write_end)

    def give(self, case: Case) -> None:
        """Hands a case to a child that is ready; a dead one is noticed when its end is told."""
        self.case, self.began = case, time.monotonic()
        os.ftruncate(self._position, 0)
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"case": case.id}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return

    def take(self) -> Case | None:
        """The case that the child had; it has none from now on."""
        case, self.case = self.case, None
        self.began = time.monotonic()
        return case

    def messages(self) -> Iterator[dict[str, Any] | None]:
        """The messages that have arrived; None at the end of a process that is gone."""
        try:
            while chunk := os.read(self.results, 1 << 16):
                self._buffer += chunk
            ended = True
        except BlockingIOError:
            ended = False
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            # What a child wrote of a line before it was killed is no message.
            if line.startswith(b"{") and line.endswith(b"}"):
                yield json.loads(line)
        if ended:
            yield None

    @property
    def seconds(self) -> float:
        """How long the current case, or the start, has taken."""
        return time.monotonic() - self.began

    def position(self) -> str:
        """Where in its case the child was last."""
        return os.pread(self._position, POSITION, 0).decode(errors="replace").strip()

    def log(self) -> str:
        """What matters of what was printed during the case: the last words, the stack."""
        size = os.fstat(self._log).st_size
        text = os.pread(self._log, 1 << 16, max(0, size - (1 << 16))).decode(errors="replace")
        # Python's fault handler writes the innermost call first.
        starts = [text.find(mark) for mark in _STACK_MARKS if mark in text]
        if not starts:
            return text[-2000:]
        lines = text[min(starts) :].splitlines()
        stack = [line for line in lines if not any(frame in line for frame in _OWN_FRAMES)]
        return "\n".join([text[: min(starts)][-1000:].strip(), *stack[:20]]).strip()

    def resident_bytes(self) -> int:
        """Memory that the child holds now."""
        try:
            with open(f"/proc/{self.child}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0

    def end_child(self, *, show_stack: bool) -> None:
        """Kills the child, which the process then replaces; its stack goes to the log if asked."""
        # It may have ended by itself just now.
        with contextlib.suppress(ProcessLookupError):
            if show_stack:
                os.kill(self.child, signal.SIGUSR1)
                time.sleep(0.3)
            os.kill(self.child, signal.SIGKILL)
        self.child = 0

    def close(self) -> int:
        """Ends the process with its child, frees what it had and returns its exit status."""
        # A group whose last process has been waited for is gone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        assert self.process.stdin is not None
        # What was still to be written belonged to a process that is dead.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self.results)
        os.close(self._log)
        os.close(self._position)
        return status


class Pool:
    """Runs cases with `settings.jobs` workers at a time and yields results as they come."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._selector = selectors.DefaultSelector()
        self._workers: list[Worker] = []
        self._failed_starts = 0

    def start(self) -> None:
        """Starts the workers, which import PyTorch while the caller goes on."""
        for _ in range(self.settings.jobs):
            self._add()

    def close(self) -> None:
        """Ends the workers."""
        for worker in list(self._workers):
            self._remove(worker)
        self._selector.close()

    def run(self, cases: Iterable[Case]) -> Iterator[CaseResult]:
        """Runs every case once, in order of the workers' leisure. Raises WorkerFailed.

        Of `cases` a few are taken ahead of their turn: it may end by the clock.
        """
        source, waiting = iter(cases), deque[Case]()
        given = done = 0
        if not self._workers:
            self.start()
        try:
            while True:
                # One for each worker: those that find none waiting are ended below.
                while len(waiting) < len(self._workers) and (case := next(source, None)):
                    waiting.append(case)
                    given += 1
                if done == given:
                    return
                for worker in list(self._workers):
                    if worker.child and worker.case is None and waiting:
                        worker.give(waiting.popleft())
                for key, _ in self._selector.select(0.5):
                    for result in self._read(key.data):
                        done += 1
                        yield result
                for result in self._overdue():
                    done += 1
                    yield result
                if not waiting and (case := next(source, None)):
                    waiting.append(case)
                    given += 1
                spare = [w for w in self._workers if w.case is None]
                for worker in spare[len(waiting) :] if not waiting else []:
                    self._remove(worker)
        finally:
            self.close()

    def _read(self, worker: Worker) -> Iterator[CaseResult]:
        for message in worker.messages():
            if message is None:
                yield from self._gone(worker)
                return
            if "ready" in message:
                worker.child, self._failed_starts = message["ready"], 0
                worker.ran.clear()
            elif "ended" in message:
                yield from self._child_ended(worker, message["ended"])
            else:
                worker.take()
                if message["last"]:
                    worker.child = 0
                result = CaseResult.from_json(message["result"])
                if result.status is Status.FAIL:
                    result.after = list(worker.ran)
                worker.ran.append(result.case.id)
                yield result

    def _child_ended(self, worker: Worker, code: int) -> Iterator[CaseResult]:
        if worker.case is None:
            # It was replaced for its memory, killed for a hang, or could not start at all.
            if worker.child == 0 and code == 1:
                self._failed_start(f"the last one said:\n{worker.log()}")
            worker.child = 0
            return
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        yield self._stopped(worker, Status.CRASH, f"crash: {name}")

    def _gone(self, worker: Worker) -> Iterator[CaseResult]:
        log, ready = worker.log(), worker.child != 0
        if worker.case is not None:
            yield self._stopped(worker, Status.CRASH, "crash: the process is gone")
        status = self._remove(worker)
        if not ready:
            self._failed_start(f"the last one ended with status {status}:\n{log}")
        self._add()

    def _overdue(self) -> Iterator[CaseResult]:
        for worker in list(self._workers):
            if worker.case is None:
                if not worker.child and worker.seconds > START_SECONDS:
                    log = worker.log()
                    self._remove(worker)
                    self._failed_start(f"no answer in {START_SECONDS:g} s:\n{log}")
                    self._add()
            elif worker.seconds > self.settings.timeout:
                worker.end_child(show_stack=True)
                reason = f"hang: over {self.settings.timeout:g} s"
                yield self._stopped(worker, Status.HANG, reason)
            elif worker.resident_bytes() > MEMORY_LIMIT:
                worker.end_child(show_stack=False)
                reason = f"crash: over {MEMORY_LIMIT >> 30} GiB of memory"
                yield self._stopped(worker, Status.CRASH, reason)

    def _stopped(self, worker: Worker, status: Status, reason: str) -> CaseResult:
        """The result of the case in which a worker's child ended."""
        message = f"in {worker.position()}\n{worker.log()}".strip()
        seconds, case = worker.seconds, worker.take()
        worker.child = 0
        assert case is not None
        after = list(worker.ran)
        return CaseResult(
            case, status, reason=reason, message=message, seconds=seconds, after=after
        )

    def _failed_start(self, detail: str) -> None:
        self._failed_starts += 1
        if self._failed_starts > 2 * self.settings.jobs:
            raise WorkerFailed(f"workers end before they are ready; {detail}")

    def _add(self) -> None:
        worker = Worker(self.settings)
        self._workers.append(worker)
        self._selector.register(worker.results, selectors.EVENT_READ, worker)

    def _remove(self, worker: Worker) -> int:
        self._selector.unregister(worker.results)
        self._workers.remove(worker)
        return worker.close()
