"""A thread that works off a queue: for devices that Python code drives while the host goes on."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

Command = Callable[[], None]


class Commit:
    """The event of a command buffer: what it failed with is its error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._passed = threading.Event()
        self._seconds = 0.0

    def done(self) -> bool:
        """Has the thread passed it, well or not?"""
        return self._passed.is_set()

    def seconds(self) -> float:
        """When it passed, on the host's clock."""
        return self._seconds

    def wait(self) -> None:
        """Returns when the thread has passed it. Raises its error, each time."""
        self._passed.wait()
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

    Where a command raises, the rest of its buffer is left out. The next one runs.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._commits: queue.SimpleQueue[tuple[Commit, Sequence[Command]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, commands: Sequence[Command]) -> Commit:
        """Hands over a command buffer, and does not wait: what a queue's `commit` returns."""
        made = Commit()
        self._commits.put((made, commands))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self._thread.start()
        return made

    def _work(self) -> None:
        while True:
            commit, commands = self._commits.get()
            commit.run(commands)
            del commit, commands  # what they hold is not kept until the next ones come
