"""A target whose kernels and copies are two threads that sleep, for `copy_beside.py`.

A kernel and a copy take as long as their numbers say. The copy then moves its bytes.
"""

from __future__ import annotations

import ctypes
import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from torch_tenon.targets.target import Launch, Target

A_SECOND = 2e9  # bytes that the one engine copies, and steps that the other computes


class Event:
    """Of a commit."""

    def __init__(self) -> None:
        self.passed, self.time = threading.Event(), 0.0

    def done(self) -> bool:
        return self.passed.is_set()

    def seconds(self) -> float:
        return self.time

    def end(self) -> None:
        self.time = time.monotonic()
        self.passed.set()


class Engine:
    """A queue on a thread."""

    runs_calls = False

    def __init__(self, address: Callable[[Any], int]) -> None:
        self.address, self.commands = address, queue.SimpleQueue[Callable[[], Any]]()
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        while True:
            self.commands.get()()

    def copy(self, dst: Any, src: Any, nbytes: int) -> None:
        def run() -> None:
            time.sleep(nbytes / A_SECOND)
            ctypes.memmove(self.address(dst), self.address(src), nbytes)

        self.commands.put(run)

    def launch(self, launch: Launch) -> None:
        seconds = launch.numbers[0] / A_SECOND
        self.commands.put(lambda: time.sleep(seconds))

    def after(self, event: Event) -> None:
        self.commands.put(event.passed.wait)

    def commit(self) -> Event:
        event = Event()
        self.commands.put(event.end)
        return event

    def wait(self, event: Event) -> None:
        event.passed.wait()


class Sleeping(Target):
    """One device."""

    name, host_memory = "sleeping", False

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.handles = itertools.count(1)
        self.engines = [Engine(self.address), Engine(self.address)]

    def address(self, end: Any) -> int:
        return end if isinstance(end, int) else ctypes.addressof(self.memory[end[0]]) + end[1]

    def total_memory(self, device: int) -> int:
        return 1 << 32

    def allocate(self, nbytes: int, device: int) -> int:
        self.memory[handle := next(self.handles)] = ctypes.create_string_buffer(nbytes)
        return handle

    def free(self, handle: int, device: int) -> None:
        del self.memory[handle]

    def queue(self, device: int) -> Any:
        return self.engines[0]

    def copy_queues(self, device: int) -> Any:
        return self.engines[1:]
