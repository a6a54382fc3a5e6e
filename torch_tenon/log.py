"""The log: what each stage does, for TENON_LOG to switch on.

A stage writes to `stage("target")`, a logger of Python's named `torch_tenon.target`; programs that
configure logging on their own find it there.
"""

import logging
import threading
import time
from collections.abc import Iterable

from torch_tenon import _C, config

_LONG_WAIT = 10.0  # seconds; told again after twice as many, and so on


def stage(name: str) -> logging.Logger:
    """The logger of a stage, one of `config.LOG_STAGES`."""
    assert name in config.LOG_STAGES, name
    return logging.getLogger(f"torch_tenon.{name}")


def apply_settings() -> None:
    """Lets the stages that TENON_LOG names write to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("[tenon %(name)s] %(message)s"))
    for name in config.LOG.read():
        stage(name).setLevel(logging.DEBUG)
        stage(name).addHandler(handler)
    _C.set_logs_plans("plans" in config.LOG.read())  # the core's part, in a process that runs them
    if "waits" in config.LOG.read():
        threading.Thread(target=_tell_long_waits, name="tenon waits", daemon=True).start()


def long_waits(
    waits: Iterable[tuple[int, str, float, int]], told: dict[tuple[int, int], float]
) -> list[str]:
    """What is to be said of these waits (`_C.waits`), and was not yet. `told`: by device and thread
    how many seconds a wait has to take before it is told of; those that are over go."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    lines, current = [], {}
    for device, reason, seconds, thread in waits:
        is_long = seconds >= _LONG_WAIT
        least = told.get((device, thread), _LONG_WAIT) if is_long else _LONG_WAIT
        if seconds >= least:
            who = names.get(thread, f"thread {thread}")
            lines.append(f"{who} has waited {seconds:.0f} s for tenon:{device} ({reason})")
            least = 2 * seconds
        current[device, thread] = least
    told.clear()
    told.update(current)
    return lines


def _tell_long_waits() -> None:
    told: dict[tuple[int, int], float] = {}
    while True:
        time.sleep(1.0)
        for line in long_waits(_C.waits(), told):
            stage("waits").debug("%s", line)
