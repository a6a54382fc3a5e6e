"""What the device does when the process forks or exits."""

from __future__ import annotations

import atexit
import functools
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import set_num_threads  # before settings.py makes more of it

from torch_tenon import _C

if TYPE_CHECKING:
    from torch_tenon.builder.thread import Builder

# Held while a plan is made. A process forks between two plans: a lock that another thread holds, of
# an import as well, stays locked in the child for good.
making_plans = threading.Lock()
builder: Builder | None = None  # of plans, once one is wanted
_FORK_WAIT = 30.0  # seconds, for one plan
_EXIT_WAIT = 5.0  # seconds for threads to end; at most one plan is left to make


def install() -> None:
    """Registers both. Called once, at import."""
    atexit.register(_end_autograd_threads)
    atexit.register(_stop_builder)
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork
    )


_forking = threading.local()


@functools.cache
def _make_what_children_use() -> None:
    # What is made at its first use and ends with the process is registered under a lock of the C
    # library that a fork does not take: where another thread registers something at the time of
    # the fork, a child that makes its first pool of threads waits for that lock for good. Setting
    # the number of threads makes the pool, here and in a DataLoader's workers.
    set_num_threads(torch.get_num_threads())


def _before_fork() -> None:
    _forking.alone = False  # of what is raised here Python only tells
    if _C.counter_values():
        _make_what_children_use()
    _C.commit_all()
    # Whoever runs a window may wait for its plan.
    _C.take_long_held_locks()
    _forking.alone = making_plans.acquire(timeout=_FORK_WAIT)


def _after_fork_in_parent() -> None:
    if _forking.alone:
        making_plans.release()


def _after_fork() -> None:
    # OpenMP's threads stay behind in the parent, and a parallel region of the child would wait for
    # them for good: the child computes on one thread. The first backward starts autograd's
    # threads, used or not; in a child of a process that has them PyTorch raises and says to spawn.
    # A program that did not use the device is left alone.
    _C.restore_handlers_after_fork()
    if making_plans.locked():
        making_plans.release()
    if builder is not None:
        builder.forget()
    if _C.counter_values():
        set_num_threads(1)


def _stop_builder() -> None:
    _C.ask_for_later()
    # A thread that comes back from C++ to an interpreter that is going down aborts the process.
    _C.set_ask_for_plan(None)
    _C.keep_known_calls()
    # What it shares with this process would be copied while the interpreter ends.
    _C.end_standby()
    if builder is not None:
        builder.stop(_EXIT_WAIT)


def _end_autograd_threads() -> None:
    # Autograd's thread for a device takes the interpreter's lock when it lets go of a graph, which
    # may be after `backward` returned. A thread that asks for the lock of an interpreter that is
    # going down is ended by force, and that aborts the process.
    if not _autograd_threads():
        return
    _C.stop_autograd_threads()
    deadline = time.monotonic() + _EXIT_WAIT
    while _autograd_threads() and time.monotonic() < deadline:
        time.sleep(0.0005)


def _autograd_threads() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except OSError:  # it ended meanwhile
            continue
        if name.startswith("pt_autograd"):
            found.append(name)
    return found
