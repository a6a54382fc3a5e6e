"""`torch.tenon.profiler`: what the device does between `start` and `stop`.

The names are those of `torch.mps.profiler`, `torch.cuda.profiler` and `torch.cuda.nvtx`. There is
no signpost of an operating system behind them: what is logged is in `metrics()`, and in the file
that `export_chrome_trace` writes, which https://ui.perfetto.dev and chrome://tracing show.
`torch.profiler` needs none of this, and both may run at once.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from torch_tenon import _C, config
from torch_tenon.api import accelerator
from torch_tenon.forked import LockOfProcess
from torch_tenon.reports.profiler import trace
from torch_tenon.reports.profiler.log import (
    ACTIVITIES,
    BY_PLAN,
    EVENT,
    ON_DEVICE,
    Events,
    Subjects,
    of,
    take,
)

__all__ = [
    "capture",
    "export_chrome_trace",
    "is_capture_enabled",
    "is_capturing",
    "is_profiling",
    "mark",
    "metrics",
    "profile",
    "range",
    "range_end",
    "range_pop",
    "range_push",
    "range_start",
    "start",
    "stop",
]

MODES = ("interval", "event")
_MOST_EVENTS = 1 << 20


@dataclass
class _Profile:
    """What is being logged, or what was."""

    log: _C.ProfileLog
    modes: tuple[str, ...]
    execute: int | None  # the mode of execution to go back to
    begin: int  # nanoseconds since 1970
    end: int = 0
    events: Events = field(default_factory=lambda: np.empty(0, EVENT))
    ranges: list[trace.Range] = field(default_factory=list)
    lost: int = 0


_lock = LockOfProcess()
_running: _Profile | None = None
_last: _Profile | None = None
_capturing = False


def start(mode: str = "interval", wait_until_completed: bool = False) -> None:
    """Starts a log of what the device does, with the kernels' begin and end ("interval"), marks
    where they are over ("event"), or both ("interval,event").

    With `wait_until_completed` each op runs at once and is waited for, as under
    `torch.tenon.blocking()`: one event for an op, and no fusion. Raises ValueError for another
    mode, and RuntimeError where a log was started and not stopped.
    """
    global _running
    modes = tuple(mode.lower().replace(" ", "").split(","))
    if not set(modes) <= set(MODES):
        raise ValueError(f"the mode {mode!r} is none of 'interval', 'event' and 'interval,event'")
    accelerator.synchronize()
    with _lock:
        if _running is not None:
            raise RuntimeError(
                "torch.tenon.profiler was started already; call torch.tenon.profiler.stop() first"
            )
        log = _C.ProfileLog(_MOST_EVENTS)
        execute = None
        if wait_until_completed:
            execute = _C.execute_mode()
            _C.set_execute_mode(config.EXECUTE_MODES.index("reference"))
        _running = _Profile(log, modes, execute, time.time_ns())


def stop() -> None:
    """Waits for the devices and ends the log; without one this does nothing. What a device raises
    is raised once the log has ended."""
    with _lock:
        if _running is None:
            return
        try:
            for index in builtins.range(accelerator.device_count()):
                accelerator.synchronize(index)
        finally:
            _end_log(_running)


def _end_log(log: _Profile) -> None:
    global _running, _last
    _running, _last = None, log
    if log.execute is not None:
        _C.set_execute_mode(log.execute)
    log.log.stop()
    _collect(log)
    log.end = time.time_ns()


@contextlib.contextmanager
def profile(mode: str = "interval", wait_until_completed: bool = False) -> Iterator[None]:
    """Context manager: `start` and `stop`."""
    start(mode, wait_until_completed)
    try:
        yield
    finally:
        stop()


def is_profiling() -> bool:
    """Whether a log was started and not stopped."""
    return _running is not None


def metrics() -> dict[str, float]:
    """What is in the log that runs, or in the last one, by name.

    `seconds` is its length; `<activity>` how many events of an activity there are and
    `<activity>_seconds` what they took, of the host's less what happened within them, for each of
    `ACTIVITIES` in `torch_tenon/reports/profiler/log.py`; `device_seconds` what kernels, calls and
    copies took, `bytes` and `operations` what those of plans moved and did, and `events_lost` what
    did not fit.
    Raises RuntimeError where nothing was ever started.
    """
    found = _found()
    events, subjects = found.events, Subjects()
    values = {"seconds": ((found.end or time.time_ns()) - found.begin) / 1e9}
    for name in ACTIVITIES:
        chosen = of(events, name)
        values[name] = float(len(chosen))
        whole = name in ON_DEVICE  # where that is asynchronous the host has no part in it
        took = chosen["end"] - chosen["begin"] if whole else chosen["own"]
        values[f"{name}_seconds"] = float(took.sum()) / 1e9
    device = events[trace.on_device(events)]
    values["device_seconds"] = float((device["end"] - device["begin"]).sum()) / 1e9
    planned = [subjects[n] for n in of(events, *BY_PLAN)["subject"]]
    values["bytes"] = float(sum(s.bytes for s in planned))
    values["operations"] = float(sum(s.operations for s in planned))
    values["events_lost"] = float(found.lost)
    return values


def export_chrome_trace(path: str | os.PathLike[str]) -> None:
    """Writes the log that runs, or the last one, as a Chrome trace (JSON; gzip for a path that
    ends in .gz). Raises RuntimeError where nothing was ever started, OSError where it cannot be
    written."""
    found = _found()
    trace.write(path, found.events, found.ranges, found.modes)


def _found() -> _Profile:
    with _lock:
        found = _running or _last
        if found is None:
            raise RuntimeError("nothing was logged: call torch.tenon.profiler.start() first")
        if found is _running:
            _collect(found)
        return found


def _collect(found: _Profile) -> None:
    found.events = np.concatenate([found.events, take(found.log)])
    found.lost = found.log.lost


# Ranges


@dataclass
class _Open:
    name: str
    begin: int
    function: torch.profiler.record_function


class _Stack(threading.local):
    def __init__(self) -> None:
        self.open: list[_Open] = []


_stack = _Stack()
_started: dict[int, _Open] = {}
_next_range = 0


def range_push(msg: str) -> int:
    """Begins a range within the thread's others, here and in `torch.profiler`; returns how many it
    lies within."""
    _stack.open.append(_begin(msg))
    return len(_stack.open) - 1


def range_pop() -> int:
    """Ends the range that the thread began last; returns how many it lay within, -1 where there was
    none."""
    if not _stack.open:
        return -1
    _end(_stack.open.pop())
    return len(_stack.open)


def range_start(msg: str) -> int:
    """Begins a range that may end anywhere, on any thread; returns what `range_end` takes."""
    global _next_range
    with _lock:
        _next_range += 1
        number = _next_range
    _started[number] = _Open(msg, time.time_ns(), torch.profiler.record_function(msg))
    return number


def range_end(range_id: int) -> None:
    """Ends such a range. Raises ValueError for one that is none."""
    found = _started.pop(range_id, None)
    if found is None:
        raise ValueError(f"no range of the number {range_id} was started")
    _note(found)


@contextlib.contextmanager
def range(msg: str, *args: object, **kwargs: object) -> Iterator[None]:
    """Context manager: a range; the arguments are filled into the text as `str.format` does."""
    range_push(msg.format(*args, **kwargs) if args or kwargs else msg)
    try:
        yield
    finally:
        range_pop()


def mark(msg: str) -> None:
    """Notes a moment, as a range without length."""
    _end(_begin(msg))


def _begin(msg: str) -> _Open:
    function = torch.profiler.record_function(msg)
    begin = time.time_ns()
    function.__enter__()
    return _Open(msg, begin, function)


def _end(found: _Open) -> None:
    found.function.__exit__(None, None, None)
    _note(found)


def _note(found: _Open) -> None:
    running = _running  # which another thread may end
    if running is not None and found.begin >= running.begin:
        thread = threading.get_native_id()
        running.ranges.append(trace.Range(found.name, found.begin, time.time_ns(), thread))


# Captures


def is_capture_enabled() -> bool:
    """Whether `capture` may be used: always."""
    return True


def is_capturing() -> bool:
    """Whether a `capture` is in progress."""
    return _capturing


@contextlib.contextmanager
def capture(fname: str) -> Iterator[None]:
    """Context manager: a Chrome trace of what the device does within, in a file of that name.

    Raises RuntimeError within a log or another capture.
    """
    global _capturing
    start("interval")
    _capturing = True
    try:
        yield
    finally:
        _capturing = False
        stop()
        export_chrome_trace(fname)
