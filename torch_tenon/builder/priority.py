"""How much of the machine the builder takes.

A program that has just begun gets all that it can use: what its first seconds lose to the builder a
short one never gets back. Then the builder has a share like any other process: the plans are for
what is left of the run, and a builder with a small share costs a program that keeps every processor
busy as much, spread over a time in which it has no plans.
"""

from __future__ import annotations

import contextlib
import os
import sys

from torch_tenon.builder import keeper

NICE = 10  # where the builder cannot leave the processors to others for a while
YOUNG = 10.0  # seconds


class Priority:
    """Of this process; `newcomer` is told of each program that connects.

    Make it before the process has threads: it forks. A process of its own gives the share back. One
    that works only while a processor is idle cannot: where none ever is, its threads hardly come to
    run, and the one that holds the interpreter's lock keeps it.
    """

    def __init__(self) -> None:
        self._keeper = 0  # the process that gives the share back
        self._newcomers: int | None = None  # tells it of newcomers
        if _may_come_back():
            with contextlib.suppress(OSError):  # an interpreter that is no program of its own
                self._keeper, self._newcomers = _start_keeper()
        if self._newcomers is None:
            with contextlib.suppress(OSError):
                os.nice(NICE)

    @property
    def yields(self) -> bool:
        """Whether this process works only while a processor is idle when somebody is new."""
        return self._newcomers is not None

    def newcomer(self) -> None:
        """From now on the builder works while a processor is idle, for some seconds."""
        if self._tell_keeper():
            keeper.schedule(os.getpid(), os.SCHED_IDLE, self._keeper)
            # That may have lasted until the share was given back, of what was idle by then.
            self._tell_keeper()

    def _tell_keeper(self) -> bool:
        """Whether it will give the share back."""
        if self._newcomers is None:
            return False
        try:
            os.write(self._newcomers, b"\0")
        except BlockingIOError:
            pass  # it has been told often enough
        except BrokenPipeError:
            return False  # somebody ended it
        return True


def _start_keeper() -> tuple[int, int]:
    """A process that gives this one its share back some seconds after it last read from a pipe, and
    that ends with this one; and the other end of that pipe. Raises OSError."""
    theirs, ours = os.pipe()
    try:
        os.set_inheritable(theirs, True)
        words = [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), str(theirs)]
        made = os.posix_spawn(sys.executable, [*words, str(YOUNG)], os.environ)
    except OSError:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    os.set_blocking(ours, False)
    return made, ours


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
