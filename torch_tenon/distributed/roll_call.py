"""Which ranks are gone: what a collective's error is explained by.

Each rank leaves a record of its process in the group's store when the group begins, and reads those
of the others. When a collective ends with an error, processes of this machine are looked for; ranks
of other machines have to answer by the store. Who finds a rank lost leaves word in the store, so
that ranks that lose the finder next name the first one.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

from torch_tenon.forked import LockOfProcess

_T = TypeVar("_T")

# In seconds. A process that ends closes its connections a moment before it is seen to have ended.
_UNTIL_SEEN = 1.0
_FOR_ANSWERS = 5.0
_FOR_THE_STORE = 2.0
_PAUSE = 0.01

_NOBODY = (
    "No rank is seen to be gone: has each called the same collective, with tensors of the same "
    "sizes and dtype? TORCH_DISTRIBUTED_DEBUG=DETAIL compares them before each."
)


class RollCall:
    """The ranks of a group, by its store. The store is one of `torch.distributed`."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """Leaves the record of this rank, one of `size`."""
        self._store = store
        self._rank = rank
        self._own = _Record.of_this_process()
        self._records: list[_Record | None] = [None] * size
        self._lock = LockOfProcess()
        self._lost = ""  # once found
        store.set(f"process/{rank}", str(self._own))

    def meet(self) -> None:
        """Reads the records of all, if they are there. Call it when all have come."""
        keys = [f"process/{rank}" for rank in range(len(self._records))]
        if not self._store.check(keys):
            return
        found = [_Record.of_text(text.decode()) for text in self._store.multi_get(keys)]
        with self._lock:
            self._records[:] = found

    def explain(self) -> str:
        """Who is gone, or that nobody is, in a sentence; waits a few seconds at most. On any
        thread."""
        with self._lock:
            self._lost = self._lost or self._find_lost()
            return self._lost or _NOBODY

    def _find_lost(self) -> str:
        word = self._ask(self._word_left)
        if word:
            return word
        begun = time.monotonic()
        lost = self._missing()
        while not lost and time.monotonic() - begun < _UNTIL_SEEN:
            time.sleep(_PAUSE)
            lost = self._missing()
        if word is None:  # the store does not answer
            return self._describe(lost)
        lost = lost or self._silent()
        sentence = self._describe(lost)
        if lost:
            self._ask(lambda: self._store.compare_set(self._of_group("lost"), "", sentence))
        return sentence

    def _word_left(self) -> str:
        """What another rank has found."""
        key = self._of_group("lost")
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _missing(self) -> list[int]:
        """Those of this machine whose process has ended."""
        return [
            rank
            for rank, record in enumerate(self._records)
            if record and record.machine == self._own.machine and not record.is_alive()
        ]

    def _silent(self) -> list[int]:
        """Those of other machines that do not answer in time."""
        found = [
            rank
            for rank, record in enumerate(self._records)
            if record and record.machine != self._own.machine
        ]
        answers = self._of_group("answer")
        here = f"{answers}/{self._rank}"
        if not found or self._ask(lambda: self._store.set(here, "here") is None) is None:
            return []

        def look(ranks: list[int]) -> list[int]:
            return [rank for rank in ranks if not self._store.check([f"{answers}/{rank}"])]

        begun = time.monotonic()
        while found and time.monotonic() - begun < _FOR_ANSWERS:
            left = self._ask(lambda ranks=found: look(ranks))  # type: ignore[misc]
            if left is None:
                return []
            found = left
            time.sleep(10 * _PAUSE)
        return found

    def _describe(self, ranks: list[int]) -> str:
        found = []
        for rank in ranks:
            record = self._records[rank]
            assert record is not None
            here = record.machine == self._own.machine
            what = f"is gone: its process {record.pid} has ended"
            found.append(f"rank {rank} {what if here else f'on {record.host} does not answer'}")
        return "; ".join(found)

    def _of_group(self, name: str) -> str:
        """A key of this group alone: a store may serve another one after it."""
        return f"{name}/{self._records[0] or ''}"

    @staticmethod
    def _ask(question: Callable[[], _T]) -> _T | None:
        """What the store answers; None: nothing in time.

        A store may be served by the rank that is gone, and then a question is never answered. So
        it is asked on a thread of its own, which nobody waits for any longer.
        """
        answers: queue.SimpleQueue[_T | None] = queue.SimpleQueue()

        def ask() -> None:
            try:
                answers.put(question())
            except Exception:  # the connection is gone, which is no answer
                answers.put(None)

        threading.Thread(target=ask, daemon=True).start()
        try:
            return answers.get(timeout=_FOR_THE_STORE)
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True)
class _Record:
    """A rank's process."""

    machine: str  # the same for processes with the same numbers
    host: str
    started: str  # when, by the system's clock
    pid: int

    def __str__(self) -> str:
        return " ".join(map(str, astuple(self)))

    @classmethod
    def of_text(cls, text: str) -> _Record:
        machine, host, started, pid = text.split()
        return cls(machine, host, started, int(pid))

    @classmethod
    def of_this_process(cls) -> _Record:
        state = _state_of(os.getpid())
        host = socket.gethostname() or "?"
        return cls(_this_machine(), host, state[19] if state else "?", os.getpid())

    def is_alive(self) -> bool:
        """Of a process of this machine."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it is there, and another user's
            pass
        state = _state_of(self.pid)
        if not state:  # nothing but its number is known where the system has no such file
            return not _state_of(os.getpid())
        return state[0] not in ("Z", "X") and state[19] == self.started


def _this_machine() -> str:
    """Of one machine since it started, and of one container."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started},{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ","


def _state_of(pid: int) -> list[str]:
    """What follows the name in a process's `stat`, which may have any characters: its state, and,
    as the 20th word, when it was started. Empty where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace")
    except OSError:
        return []
    words = text[text.rfind(")") + 1 :].split()
    return words if len(words) >= 20 else []
