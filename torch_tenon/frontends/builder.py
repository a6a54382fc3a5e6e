"""The thread that makes plans of windows while the program runs on."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections import deque
from typing import Any

from torch_tenon import _C, process
from torch_tenon.compiler.cpu_compiler import default_compiler
from torch_tenon.compiler.explain import Summary, summarise
from torch_tenon.compiler.plan import Plan
from torch_tenon.frontends.eager import BuiltWindow, build

log = logging.getLogger("torch_tenon.program")

_NICE = 10


class Builder:
    """The windows that want a plan, and the thread that makes them; it starts with the first."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: deque[_C.Window] = deque()  # the first is in work
        self.thread: threading.Thread | None = None
        self.stopped = False

    def ask(self, window: _C.Window, wait: bool) -> None:
        """Puts a window in the queue, once; with `wait` it comes back when that one is done, or
        nobody will do it."""
        with self.changed:
            if window not in self.waiting:
                self.waiting.append(window)
                self.changed.notify_all()
            if self.thread is None:
                self.thread = threading.Thread(target=self._run, name="tenon-builder", daemon=True)
                self.thread.start()
            if wait:
                self.changed.wait_for(lambda: self.stopped or window not in self.waiting)

    def stop(self, timeout: float) -> None:
        """Ends the thread after the plan that it makes."""
        with self.changed:
            self.stopped = True
            self.changed.notify_all()
        if self.thread is not None:
            self.thread.join(timeout)

    def forget(self) -> None:
        """After a fork: the thread is gone, and whose plan it owed may ask again."""
        self.changed, self.thread = threading.Condition(), None
        while self.waiting:
            self.waiting.pop().finish(None, [], [], "")

    def _run(self) -> None:
        # On Linux this is the thread's own, and that of the C compilers that it starts: they take
        # what the program that runs meanwhile leaves.
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.stopped or self.waiting)
                if self.stopped:
                    return
            _make_and_finish(self.waiting[0])
            with self.changed:
                self.waiting.popleft()
                self.changed.notify_all()


process.builder = builder = Builder()


def _make_and_finish(window: _C.Window) -> None:
    description = window.describe()
    start = time.perf_counter()
    try:
        with process.making_plans:
            plan, built = make_plan(description)
        # With more of them than processors, those of the program would not wait awake.
        _C.release_threads()
    except Exception as error:  # the window stays on reference execution
        log.warning("a window of %d calls runs by reference: %s", len(description[1]), error)
        log.debug("its plan failed", exc_info=True)
        window.finish(None, [], [], f"{type(error).__name__}: {error}")
    else:
        seconds = time.perf_counter() - start
        bytes_by_op = _bytes_by_op(description)
        summaries[window.number] = summarise(plan, bytes_by_op, built.fallbacks, seconds)
        window.finish(plan.native(()), built.inputs, built.outputs, "")


def plan_counts() -> dict[str, int]:
    """Windows that ran by a plan (`hits`) and by reference; structures, and how many of them have a
    plan that is waited for, is ready or failed."""
    runs = _C.window_runs()
    states = [state for _, _, state, _ in runs]
    return {
        "hits": sum(by_plan for by_plan, *_ in runs),
        "reference": sum(by_reference for _, by_reference, *_ in runs),
        "structures": len(runs),
        **{name: states.count(k) for k, name in enumerate(("waiting", "ready", "failed"), 1)},
    }


summaries: dict[int, Summary] = {}  # of the plans that were made, by the window's number


def make_plan(description: tuple[Any, ...]) -> tuple[Plan, BuiltWindow]:
    """The window's plan, compiled; raises CannotLower for one that has none."""
    built = build(description)
    plan = Plan(built.program).compile(default_compiler())
    plan.tune()
    return plan, built


def _bytes_by_op(description: tuple[Any, ...]) -> int:
    """What the window's calls read and write when each runs by itself."""

    def count(x: Any) -> int:
        if x is None or x[0] in ("constant", "number", "argument"):
            return 0
        if x[0] == "list":
            return sum(map(count, x[1]))
        return int(math.prod(x[3])) * x[2].itemsize

    return sum(count(x) for _, _, arguments, results in description[1] for x in arguments + results)
