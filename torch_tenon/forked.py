"""Locks over forks: a child has its parent's memory and one thread, whatever the others were at."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class LockOfProcess:
    """A lock that is open in a forked child: the thread that held it in the parent is not there.

    What it guards may be half changed in the child, so that has to be of use there as it is.
    """

    def __init__(self) -> None:
        self._lock = self._taken = threading.Lock()
        _all.add(self)

    def __enter__(self) -> None:
        lock = self._lock
        lock.acquire()
        self._taken = lock

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._taken.release()  # also in a child that the thread has forked meanwhile

    def open_anew(self) -> None:
        """In the child, before anything else runs there."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[LockOfProcess] = weakref.WeakSet()


def _after_fork() -> None:
    for lock in list(_all):
        lock.open_anew()


os.register_at_fork(after_in_child=_after_fork)
