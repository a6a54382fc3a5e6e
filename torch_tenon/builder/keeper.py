"""Gives the builder its share of the processors back, some seconds after it was last told to.

A program of its own, `python -I -S keeper.py BUILDER PIPE SECONDS`, and none of PyTorch: a copy of
the builder would share its memory, and so would have it copy what it writes.
"""

import os
import select
import sys


def schedule(builder: int, policy: int, keeper: int) -> None:
    """A policy is a thread's, and what it starts inherits it: so all of these, compilers too."""
    processes = [builder]
    for process in processes:  # which grows by their children
        if process == keeper:
            continue
        try:
            for thread in os.listdir(f"/proc/{process}/task"):
                os.sched_setscheduler(int(thread), policy, os.sched_param(0))
                with open(f"/proc/{process}/task/{thread}/children") as children:
                    processes += map(int, children.read().split())
        except OSError:
            pass  # it ended meanwhile


def keep(builder: int, newcomers: int, seconds: float) -> None:
    """Until the pipe, from which it is told, ends with the builder."""
    wait: float | None = None
    while True:
        ready, _, _ = select.select([newcomers], [], [], wait)
        if not ready:
            schedule(builder, os.SCHED_OTHER, os.getpid())
            wait = None
        elif os.read(newcomers, 1 << 12):
            wait = seconds
        else:
            return


if __name__ == "__main__":
    keep(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
