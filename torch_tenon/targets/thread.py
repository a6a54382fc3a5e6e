"""A thread that works off a queue: for devices that Python code drives while the host goes on."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence

Command = Callable[[], None]
_LOOKS = 1.0  # seconds between two looks at whether the thread is there


class Commit:
    """The event of a command buffer: what it failed with is its error."""

    def __init__(self, queue: QueueThread) -> None:
        self._queue = queue
        self._process = os.getpid()
        self.error: Exception | None = None
        self._passed = threading.Event()
        self._seconds = 0.0

    def done(self) -> bool:
        """Has the thread passed it, well or not? Raises where it is gone, as `wait` does."""
        if self._passed.is_set():
            return True
        is_alive = self._queue.is_alive() and self._process == os.getpid()
        if is_alive or self._passed.is_set():  # it may have passed, and then ended
            return self._passed.is_set()
        raise RuntimeError(f"the thread of the queue {self._queue.name!r} has ended")

    def seconds(self) -> float:
        """When it passed, on the host's clock."""
        return self._seconds

    def wait(self) -> None:
        """Returns when the thread has passed it. Raises its error, each time; and, where the thread
        is gone, as in the child of a fork, that this is so."""
        while not self.done():
            self._passed.wait(_LOOKS)
        if self.error is not None:
            raise self.error

    def run(self, commands: Sequence[Command]) -> None:
        """Runs them, on the thread. Whatever happens there, nobody waits for it in vain."""
        try:
            for command in commands:
                command()
        except Exception as error:
            self.error = error
        except BaseException as error:  # SystemExit, say, which is not for whoever reads a tensor
            self.error = RuntimeError(f"the queue's thread was ended by {error!r}")
        self._seconds = time.monotonic()
        self._passed.set()


class QueueThread:
    """Command buffers in their order, run by a thread that starts with the first of them.

    Where a command raises, the rest of its buffer is left out. The next one runs. The child of a
    fork begins with nothing: what its parent handed over is the parent's.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._begin()

    def _begin(self) -> None:
        self._commits: queue.SimpleQueue[tuple[Commit, Sequence[Command]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self, commands: Sequence[Command]) -> Commit:
        """Hands over a command buffer, and does not wait: what a queue's `commit` returns."""
        if self._process != os.getpid():
            self._begin()
        made = Commit(self)
        self._commits.put((made, commands))
        if not self.is_alive():
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        return made

    def is_alive(self) -> bool:
        """Is there a thread that works it off?"""
        return self._thread is not None and self._thread.is_alive()

    def _work(self) -> None:
        while True:
            commit, commands = self._commits.get()
            commit.run(commands)
            del commit, commands  # what they hold is not kept until the next ones come
