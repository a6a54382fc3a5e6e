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
# A worker that holds more is replaced after its case, and killed in it when it holds more by far.
MEMORY_SOFT = 3 << 30
MEMORY_HARD = 10 << 30
# The import of PyTorch and its databases on a busy machine.
START_SECONDS = 180.0


class WorkerFailed(RuntimeError):
    """Workers die before they can run a case: the set-up is broken, not a case."""


@dataclass(frozen=True)
class Settings:
    """How to run: `timeout` is in seconds for each case, `limit` in samples (0 for all)."""

    device: str
    jobs: int
    timeout: float
    limit: int = 0
    target: str | None = None
    suite: str = SUITE


class Worker:
    """One process and the case that it has."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.case: Case | None = None
        self.ready = False
        self.began = time.monotonic()
        self._buffer = b""
        self._log = os.memfd_create("log")
        self._position = os.memfd_create("position")
        self.results, write_end = os.pipe()
        os.set_blocking(self.results, False)
        descriptors = (write_end, self._position)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
            # Entries that PyTorch marks as slow are run too.
            "PYTORCH_TEST_WITH_SLOW": "1",
        }
        if settings.target:
            environment["TENON_TARGET"] = settings.target
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch_tenon.testing.conformance.worker"),
                *("--suite", settings.suite, "--device", settings.device),
                *("--limit", str(settings.limit)),
                *("--results", str(write_end), "--position", str(self._position)),
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=descriptors,
            env=environment,
            # A signal to the terminal's group is the parent's to handle.
            start_new_session=True,
        )
        os.close(write_end)

    def give(self, case: Case) -> None:
        """Hands a case to a worker that is ready; a dead one is noticed when its pipe ends."""
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

    def messages(self) -> Iterator[dict[str, Any] | None]:
        """The messages that have arrived; None at the end of a worker that is gone."""
        try:
            while chunk := os.read(self.results, 1 << 16):
                self._buffer += chunk
            ended = True
        except BlockingIOError:
            ended = False
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            yield json.loads(line)
        if ended:
            yield None

    @property
    def seconds(self) -> float:
        """How long the current case, or the start, has taken."""
        return time.monotonic() - self.began

    def position(self) -> str:
        """Where in its case the worker was last."""
        return os.pread(self._position, POSITION, 0).decode(errors="replace").strip()

    def log(self) -> str:
        """The end of what the worker printed during its case."""
        size = os.fstat(self._log).st_size
        return os.pread(self._log, 4000, max(0, size - 4000)).decode(errors="replace")

    def resident_bytes(self) -> int:
        """Memory that the process holds now."""
        try:
            with open(f"/proc/{self.process.pid}/statm") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0

    def kill(self, *, show_stack: bool = False) -> int:
        """Ends the process and returns its exit status; its stack goes to the log if asked."""
        if show_stack and self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()

    def close(self) -> None:
        """Frees what belongs to a process that has ended."""
        assert self.process.stdin is not None
        # What was still to be written belonged to a process that is dead.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self.results)
        os.close(self._log)
        os.close(self._position)


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
        """Runs every case once, in order of the workers' leisure. Raises WorkerFailed."""
        waiting = deque(cases)
        total, done = len(waiting), 0
        if not self._workers:
            self.start()
        try:
            while done < total:
                for worker in list(self._workers):
                    if worker.ready and worker.case is None and waiting:
                        worker.give(waiting.popleft())
                for key, _ in self._selector.select(0.5):
                    for result in self._read(key.data):
                        done += 1
                        yield result
                for result in self._overdue():
                    done += 1
                    yield result
                spare = [w for w in self._workers if w.case is None]
                for worker in spare[len(waiting) :] if len(spare) > len(waiting) else []:
                    self._remove(worker)
        finally:
            self.close()

    def _read(self, worker: Worker) -> Iterator[CaseResult]:
        for message in worker.messages():
            if message is None:
                yield from self._gone(worker)
            elif "ready" in message:
                worker.ready, self._failed_starts = True, 0
            else:
                worker.case = None
                if message["rss"] > MEMORY_SOFT:
                    self._remove(worker)
                    self._add()
                yield CaseResult.from_json(message["result"])
                if worker not in self._workers:
                    return

    def _gone(self, worker: Worker) -> Iterator[CaseResult]:
        status = worker.kill()
        case, log, position = worker.case, worker.log(), worker.position()
        ready, seconds = worker.ready, worker.seconds
        self._remove(worker)
        if not ready:
            self._failed_starts += 1
            if self._failed_starts > 2 * self.settings.jobs:
                raise WorkerFailed(f"workers end before they are ready; the last one said:\n{log}")
        self._add()
        if case is not None:
            name = signal.Signals(-status).name if status < 0 else f"exit status {status}"
            yield _ended(case, Status.CRASH, f"crash: {name}", f"in {position}\n{log}", seconds)

    def _overdue(self) -> Iterator[CaseResult]:
        for worker in list(self._workers):
            limit = self.settings.timeout if worker.case else START_SECONDS
            late = worker.seconds > limit and (worker.case is not None or not worker.ready)
            heavy = worker.resident_bytes() > MEMORY_HARD
            if not late and not heavy:
                continue
            case, seconds = worker.case, worker.seconds
            worker.kill(show_stack=late)
            detail = f"in {worker.position()}\n{worker.log()}"
            self._remove(worker)
            if case is None:
                self._failed_starts += 1
                if self._failed_starts > 2 * self.settings.jobs:
                    raise WorkerFailed(f"workers do not become ready in {limit:g} s:\n{detail}")
            self._add()
            if case is not None and late:
                yield _ended(case, Status.HANG, f"hang: over {limit:g} s", detail, seconds)
            elif case is not None:
                reason = f"crash: over {MEMORY_HARD >> 30} GiB of memory"
                yield _ended(case, Status.CRASH, reason, detail, seconds)

    def _add(self) -> None:
        worker = Worker(self.settings)
        self._workers.append(worker)
        self._selector.register(worker.results, selectors.EVENT_READ, worker)

    def _remove(self, worker: Worker) -> None:
        self._selector.unregister(worker.results)
        self._workers.remove(worker)
        worker.kill()
        worker.close()


def _ended(case: Case, status: Status, reason: str, message: str, seconds: float) -> CaseResult:
    return CaseResult(case, status, reason=reason, message=message.strip(), seconds=seconds)
