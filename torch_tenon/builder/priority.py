"""How much of the machine the builder takes.

A program that has just begun gets all that it can use: what its first seconds lose to the builder a
short one never gets back. Then the builder has a share like any other process: the plans are for
what is left of the run, and a builder with a small share costs a program that keeps every processor
busy as much, spread over a time in which it has no plans.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

NICE = 10  # where the builder cannot leave the processors to others for a while
YOUNG = 3.0  # seconds


class Priority:
    """Of this process; `newcomer` is told of each program that connects."""

    def __init__(self) -> None:
        self._may_yield = _may_come_back()
        if not self._may_yield:
            with contextlib.suppress(OSError):
                os.nice(NICE)
        self._timer: threading.Timer | None = None

    def newcomer(self) -> None:
        """From now on the builder works while a processor is idle, for some seconds."""
        if not self._may_yield:
            return
        if self._timer is not None:
            self._timer.cancel()
        _schedule(os.SCHED_IDLE)
        self._timer = threading.Timer(YOUNG, _schedule, [os.SCHED_OTHER])
        self._timer.daemon = True
        self._timer.start()


def _schedule(policy: int) -> None:
    """A policy is a thread's, and what it starts inherits it: so all of these, compilers too."""
    processes = [os.getpid()]
    for process in processes:  # which grows by their children
        with contextlib.suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setscheduler(int(thread), policy, os.sched_param(0))
                children = Path(f"/proc/{process}/task/{thread}/children").read_text()
                processes += map(int, children.split())


def _may_come_back() -> bool:
    """Whether the system lets a process of this user take a share again once it has had none."""
    if not hasattr(os, "SCHED_IDLE"):
        return False
    child = os.fork()
    if child == 0:
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
